"""How much of a crowd of workers is sampled: each GPU gets a share of the exporter's budget.

A process's counters say what it used since they were last read, however long ago. Read in turn,
the sums of a crowd are as exact as those of a few, only later. Processes beyond `MOST_FOLLOWED`
are in no sum. Deep probes go to a few workers at a time.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.schedule import FEW, HALF_AS_OFTEN, OFTEN_NS, Every

MOST_FOLLOWED = 8_192
"""Workers whose counters are read at all, over all GPUs: 5 000 take 13 MiB (tests/bench)."""
READS_PER_TICK = 512
"""Those that are read per tick, over all GPUs: so many cost 1.3 % of a core (tests/bench)."""
CLOSELY = 64
"""Workers of one GPU that get deep probes at a time; after `OFTEN_NS` others do."""


class SamplingBudget(NamedTuple):
    """What may be spent on the workers of one GPU."""

    followed: int
    reads: int
    """Per tick."""

    def rounds(self, workers: int) -> int:
        """Ticks in which each of so many `workers` is read once."""
        usual = 1 if workers <= FEW else HALF_AS_OFTEN  # half in one tick, half in the next
        return max(-(-workers // self.reads), usual)

    def is_prompt(self, workers: int) -> bool:
        """Whether so many workers are read as often as those of a small tree."""
        return self.rounds(workers) <= HALF_AS_OFTEN


WHOLE = SamplingBudget(MOST_FOLLOWED, READS_PER_TICK)


def share_of(gpus: int) -> SamplingBudget:
    """The allowance of each of so many `gpus`."""
    return SamplingBudget(MOST_FOLLOWED // max(gpus, 1), max(READS_PER_TICK // max(gpus, 1), FEW))


def chosen(workers: AbstractSet[int], known: Collection[int], most: int) -> set[int]:
    """At most `most` of `workers`: those `known`, then others at random."""
    if len(workers) <= most:
        return set(workers)
    stay = [pid for pid in known if pid in workers][:most]
    others = sorted(workers - {*stay})
    return {*stay, *random.sample(others, most - len(stay))}


class RoundRobin:
    """Whose turn it is, of a crowd that changes."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int, crowd: Collection[Process]) -> list[Process]:
        """The next `count` of `crowd`, or all."""
        members = list(crowd)
        first = self._next
        self._next += min(count, len(members))
        return [members[i % len(members)] for i in range(first, self._next)]


class DeeplyProbed:
    """Workers of a crowd that get deep probes for now."""

    def __init__(self) -> None:
        self.members: list[Process] = []
        self._turns = RoundRobin()
        self._choosing = Every(OFTEN_NS)

    def choose_from(self, crowd: Mapping[int, Process], now_ns: int) -> None:
        """Choose among `crowd`, by pid, at monotonic `now_ns`; others close what they had open."""
        if len(crowd) <= CLOSELY:
            self.members = list(crowd.values())
            return
        self.members = [one for one in self.members if crowd.get(one.pid) is one]
        if self._choosing.is_due(now_ns) or len(self.members) < CLOSELY // 2:
            before, self.members = self.members, self._turns.take(CLOSELY, crowd.values())
            for process in {*before}.difference(self.members):
                process.close_deep()
