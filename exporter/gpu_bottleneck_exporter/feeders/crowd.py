"""How much of a crowd of workers is looked at: shares of what the exporter may spend in all.

The counters of a process say what it used since it was last read, however long ago: read
in turn, the sums of a crowd are as exact as those of a few, and come later. Of processes
beyond `MOST_FOLLOWED` there is no sum. Only a few at a time are looked at closely.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.member import Member

MOST_FOLLOWED = 8_192
"""Workers of which counters are read, over all GPUs."""
READS_PER_TICK = 512
"""Workers whose counters are read in one tick, over all GPUs."""
CLOSELY = 64
"""Workers of a GPU that may be looked at closely: threads, connections."""
CLOSELY_NS = 10_000_000_000
"""Then it is the turn of others."""
_FEW = 4
"""So many workers' counters are read every tick; of more, half in one tick, half in the next."""
_ROUND_TICKS = 2


class Share(NamedTuple):
    """What is spent on the workers of one GPU."""

    followed: int
    reads: int
    """In a tick."""

    def rounds(self, workers: int) -> int:
        """In how many ticks all of so many `workers` are read once."""
        usual = 1 if workers <= _FEW else _ROUND_TICKS
        return max(-(-workers // self.reads), usual)

    def is_prompt(self, workers: int) -> bool:
        """Whether they are read as often as those of a small tree."""
        return self.rounds(workers) <= _ROUND_TICKS


WHOLE = Share(MOST_FOLLOWED, READS_PER_TICK)


def share_of(gpus: int) -> Share:
    """That of each of so many `gpus`."""
    return Share(MOST_FOLLOWED // max(gpus, 1), max(READS_PER_TICK // max(gpus, 1), _FEW))


def chosen(workers: set[int], known: Collection[int], most: int) -> set[int]:
    """At most `most` of `workers`: those `known`, and as many others at random as there is room."""
    if len(workers) <= most:
        return set(workers)
    stay = [pid for pid in known if pid in workers][:most]
    others = sorted(workers.difference(stay))
    return {*stay, *random.sample(others, most - len(stay))}


class Turns:
    """Those of a crowd whose turn it is to be looked at closely."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._next = 0
        self._until_ns = 0

    def take(self, crowd: list[Member], now_ns: int) -> None:
        """Choose among `crowd` at monotonic `now_ns`; what others had open is given back."""
        if len(crowd) <= CLOSELY:
            self.members = crowd
        elif now_ns >= self._until_ns or len(self.members) < CLOSELY // 2:
            self._until_ns = now_ns + CLOSELY_NS
            first = self._next % len(crowd)
            self._next = first + CLOSELY
            before, self.members = self.members, (crowd + crowd)[first : first + CLOSELY]
            for member in {*before}.difference(self.members):
                member.look_no_closer()

    def keep(self, crowd: Collection[Member]) -> None:
        """Forget those that are not in `crowd` any more."""
        self.members = [member for member in self.members if member in crowd]
