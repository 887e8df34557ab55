"""How much the time varies that workers take for a batch, from how often they write.

A worker hands each batch over through a pipe, and loads with reads and receives: how many write
calls it has made (`syscw` of /proc/PID/io; sends on sockets do not count) follows how many batches
it has finished. Nobody knows how many calls a batch takes, but all of them come at once, so counts
grow by multiples of that number. If batches take equally long, a worker that is never idle writes
equally often in equal times; how far it deviates from that shows how much they differ.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_MOST_LOOKS = 320
"""Kept over all workers: more than a minute of eight of them, which are read every other second."""
_LEAST_BATCHES = 4.0
"""In a stretch of time: counts of fewer show when we looked, rather than what happened."""
_LEAST_STRETCHES = 8
_KNOWN_LOOKS, _HARDLY = 5, 0.05
_MOST_CALLS = 64
"""Write calls per batch that are considered."""
_MOSTLY = 0.75
"""Share of the counts that are multiples of the calls per batch: some looks fall between two."""
_AT_A_LOOK = 1 / 6
"""Variance of a count of batches that all take equally long, as looks fall anywhere between two."""
_UNSTEADY = 0.03
"""Dispersion of batches that are equal: looks come late, and so do workers (measured)."""


class Look(NamedTuple):
    """What one worker wrote since it was last looked at."""

    worker: int
    elapsed_ns: int
    calls: int


class Pace:
    """Of the workers of one GPU; add looks only while the GPU waits for them."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=_MOST_LOOKS)
        self._at_ns: dict[int, int] = {}
        """By worker, when it was last looked at."""

    def note(self, worker: int, now_ns: int, calls: int) -> None:
        """Note the `calls` of a worker since it was last noted."""
        before_ns = self._at_ns.get(worker)
        self._at_ns[worker] = now_ns
        if before_ns is not None:
            self.add(Look(worker, now_ns - before_ns, calls))

    def pause(self) -> None:
        """Nobody waits for the workers: what they do from here on says nothing."""
        self._at_ns.clear()

    def add(self, look: Look) -> None:
        """Take one look in."""
        self._looks.append(look)

    def forget(self) -> None:
        """Other workers feed it now."""
        self._looks.clear()
        self._at_ns.clear()

    def idlers(self) -> int:
        """How many processes write so seldom that they cannot hand batches over.

        Loggers and trackers are children of the main, too; nobody means them by `num_workers`.
        """
        calls: Counter[int] = Counter()
        looks: Counter[int] = Counter()
        for look in list(self._looks):
            calls[look.worker] += look.calls
            looks[look.worker] += 1
        most = max(calls.values(), default=0)
        return sum(
            looks[one] >= _KNOWN_LOOKS and calls[one] < _HARDLY * most for one in looks if most
        )

    def spread(self) -> float | None:
        """Coefficient of variation of the time that a batch takes; None if it is not known.

        From the index of dispersion of the counts, whose limit for a renewal process is the
        square of that coefficient (Cox and Miller, The Theory of Stochastic Processes, 9.3).
        """
        looks = [look for look in list(self._looks) if look.elapsed_ns > 0]
        calls = sum(look.calls for look in looks)
        if not calls:
            return None
        per_batch = _calls_per_batch(look.calls for look in looks)
        rate = calls / per_batch / sum(look.elapsed_ns for look in looks)
        stretches = [*_stretches(looks, per_batch, _LEAST_BATCHES / rate)]
        if len(stretches) < _LEAST_STRETCHES:
            return None
        squares = sum((found - rate * elapsed) ** 2 for elapsed, found in stretches)
        expected = sum(rate * elapsed for elapsed, _ in stretches)
        dispersion = (squares - _AT_A_LOOK * len(stretches)) / expected
        return math.sqrt(max(dispersion - _UNSTEADY, 0.0))


def _calls_per_batch(calls: Iterable[int]) -> int:
    """The largest number of which nearly all counts are multiples."""
    counts = [count for count in calls if count]
    most = min(max(counts), _MOST_CALLS)
    for number in range(most, 1, -1):
        if sum(not count % number for count in counts) >= _MOSTLY * len(counts):
            return number
    return 1


def _stretches(
    looks: Iterable[Look], per_batch: int, least_ns: float
) -> Iterator[tuple[int, float]]:
    """Looks at the same worker put together: nanoseconds of at least `least_ns`, and batches."""
    open_: dict[int, tuple[int, float]] = {}
    for worker, elapsed_ns, calls in looks:
        before_ns, before = open_.get(worker, (0, 0.0))
        now = before_ns + elapsed_ns, before + calls / per_batch
        if now[0] >= least_ns:
            yield now
            now = (0, 0.0)
        open_[worker] = now
