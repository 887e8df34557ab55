"""Which children of a main are no workers of a loader: loggers and trackers hand nothing over.

A worker hands each batch over through a pipe, and loads with reads and receives: `syscw` of
/proc/PID/io, its write calls, follows how many batches it has finished.
"""

from __future__ import annotations

from collections import Counter, deque

_MOST_LOOKS = 320
"""Kept over all workers: more than a minute of eight of them, which are read every other second."""
_KNOWN_LOOKS = 5
_HARDLY = 0.05
"""Share of the calls of the one that writes most: whoever writes less hands nothing over."""


class Handovers:
    """Write calls of the workers of one GPU, while it waits for them."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int]] = deque(maxlen=_MOST_LOOKS)

    def note(self, worker: int, calls: int) -> None:
        """Note the `calls` of a worker since it was last noted."""
        self._looks.append((worker, calls))

    def forget(self) -> None:
        """Drop all: other workers feed the GPU now."""
        self._looks.clear()

    def idlers(self) -> int:
        """Number of processes that write so seldom that they cannot hand batches over."""
        calls: Counter[int] = Counter()
        looks: Counter[int] = Counter()
        for worker, number in list(self._looks):
            calls[worker] += number
            looks[worker] += 1
        most = max(calls.values(), default=0)
        return sum(
            looks[one] >= _KNOWN_LOOKS and calls[one] < _HARDLY * most for one in looks if most
        )
