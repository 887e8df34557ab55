"""A data loader in numbers: how many batches it delivers with how many workers.

The unit of time is the one in which the loop now takes one step. Workers prepare one batch each
and may run ahead by `PREFETCHED` batches each, as PyTorch's DataLoader lets them by default; the
main takes a batch, works on it together with its GPU, and takes the next one.

The mean alone is too optimistic where batches differ: a loader that delivers in order waits for
the slowest of those under way while the others are idle. So batches are played one by one.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice
from statistics import NormalDist

PREFETCHED = 2
"""Batches under way per worker (PyTorch's `prefetch_factor`)."""
_BATCHES = 400
_WARM_UP = 5
"""The first fifth of the batches does not count."""
_WAVES = 40
_FITS, _CLOSE = 4, 0.01
_SEED = 20
_MOST_SPREAD = 3.0


@dataclass(frozen=True, slots=True)
class Loader:
    """How the workers and the main of one loop take their time."""

    work: float
    """Time of one worker for a batch."""
    cycle: float
    """Time of the main and its GPU for a batch that is there."""
    spread: float = 0.0
    """Coefficient of variation of `work`: standard deviation by mean."""
    in_order: bool = True
    """Whether batches are delivered in the order in which they were begun."""

    def rate(self, workers: int) -> float:
        """Steps per unit of time with so many workers; 0 without one."""
        if workers <= 0:
            return 0.0
        if self.work <= 0:
            return 1 / self.cycle
        # Batches come in waves, one of each worker: of many waves it hardly matters where we stop.
        known = _works(min(self.spread, _MOST_SPREAD))
        works = [work * self.work for work in islice(cycle(known), _batches(workers))]
        return (self._ordered if self.in_order else self._as_they_come)(workers, works)

    def fitted(self, workers: int) -> Loader:
        """The same with `work` such that so many workers take one step per unit of time.

        As nearly as that goes: if the main alone takes longer, no work is little enough.
        """
        found = self
        for _ in range(_FITS):
            rate = found.rate(workers)
            if not rate or abs(rate - 1) < _CLOSE:
                break
            found = replace(found, work=found.work * rate)
        return found

    def _ordered(self, workers: int, works: Sequence[float]) -> float:
        """Batch j is prepared by worker j modulo their number, as PyTorch has it."""
        ahead = PREFETCHED * workers
        taken, free = [0.0] * ahead, [0.0] * workers
        ready = began = 0.0
        for batch, work in enumerate(works):
            worker, place = batch % workers, batch % ahead
            # It is asked for when the main takes the one that was as many batches ago.
            free[worker] = done = max(taken[place], free[worker]) + work
            taken[place] = max(ready, done)
            ready = taken[place] + self.cycle
            if batch == len(works) // _WARM_UP:
                began = ready
        return _rate(works, ready - began)

    def _as_they_come(self, workers: int, works: Sequence[float]) -> float:
        """Whatever is ready first is taken; workers stop while their buffer is full."""
        ahead = PREFETCHED * workers
        under_way = sorted(works[:workers])
        taken = [0.0] * ahead
        ready = began = 0.0
        for batch, work in enumerate((*works[workers:], *works[:workers])):
            done = heapq.heappop(under_way)
            # A worker goes on at once, unless the buffer is full until the main has taken one.
            room = taken[batch % ahead]
            taken[batch % ahead] = start = max(ready, done)
            heapq.heappush(under_way, max(done, room) + work)
            ready = start + self.cycle
            if batch == len(works) // _WARM_UP:
                began = ready
        return _rate(works, ready - began)


def _batches(workers: int) -> int:
    return max(_BATCHES, _WAVES * workers)


def _rate(works: Sequence[float], elapsed: float) -> float:
    return (len(works) - 1 - len(works) // _WARM_UP) / elapsed


@cache
def _works(spread: float) -> tuple[float, ...]:
    """Times of batches with mean 1: lognormal, which is heavy-tailed, as measured ones are.

    Quantiles in random order rather than draws: their mean is exact however few there are.
    """
    sigma = math.sqrt(math.log1p(spread * spread))
    drawn = [math.exp(sigma * z) for z in _quantiles()]
    mean = sum(drawn) / len(drawn)
    return tuple(work / mean for work in drawn)


@cache
def _quantiles() -> tuple[float, ...]:
    normal = NormalDist()
    found = [normal.inv_cdf((at + 0.5) / _BATCHES) for at in range(_BATCHES)]
    random.Random(_SEED).shuffle(found)  # noqa: S311 - no secret
    return tuple(found)
