"""How long first threads were runnable between two looks, as the kernel counted it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.member import Member


class Runnable(NamedTuple):
    """How long first threads were runnable, with a CPU or without, and out of how much time."""

    ran_ns: int
    of_ns: int
    """Summed over the threads."""


class RunnableCounter:
    """Counts for the mains of one GPU: exactly what samples of their states only estimate."""

    def __init__(self) -> None:
        self._at_ns: int | None = None
        self._known: dict[int, int] = {}
        """By pid, how long it has been runnable since it started."""

    def count(self, mains: Collection[Member], now_ns: int) -> Runnable | None:
        """Since the last call: run time and run queue delay (/proc/PID/schedstat).

        None if one of `mains` was not counted then, or cannot be now.
        """
        before, self._known = self._known, {}
        for member in mains:
            counted = member.reader.leader_ns()
            if counted is not None:
                self._known[member.pid] = sum(counted)
        at_ns, self._at_ns = self._at_ns, now_ns
        complete = len(self._known) == len(mains) and self._known.keys() <= before.keys()
        if at_ns is None or not complete:
            return None
        ran_ns = sum(counted - before[pid] for pid, counted in self._known.items())
        return Runnable(max(ran_ns, 0), (now_ns - at_ns) * len(mains))

    def pause(self) -> None:
        """Nobody asks for a while."""
        self._at_ns = None
        self._known = {}


def runnable_share(counted: Iterable[Runnable | None]) -> float | None:
    """Share of the time, 0-1, over all threads; None if nothing was counted."""
    known = [one for one in counted if one]
    of_ns = sum(one.of_ns for one in known)
    return min(sum(one.ran_ns for one in known) / of_ns, 1.0) if of_ns else None
