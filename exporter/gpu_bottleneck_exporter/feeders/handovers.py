"""Which children of a main are no workers of a loader: loggers and trackers hand nothing over.

A worker hands each batch over through a pipe, and loads with reads and receives: `syscw` of
/proc/PID/io, its write calls, follows how many batches it has finished.
"""

from __future__ import annotations

from collections import Counter

from gpu_bottleneck_exporter.accounting.stall import HARDLY

_MOST_LOOKS = 320
"""Over all workers: more than a minute of eight that are read every other second. Of more, those
before count half."""
_KNOWN_LOOKS = 5
"""Until a worker is judged: a batch may take longer than from one look to the next."""


class Handovers:
    """Write calls of the workers of one GPU, while it waits for them."""

    def __init__(self) -> None:
        self._calls: Counter[int] = Counter()
        self._looks: Counter[int] = Counter()

    def note(self, worker: int, calls: int) -> None:
        """Note the `calls` of a worker since it was last noted."""
        self._calls[worker] += calls
        self._looks[worker] += 1
        if self._looks.total() > _MOST_LOOKS:
            self._calls, self._looks = _halved(self._calls), _halved(self._looks)

    def forget(self) -> None:
        """Drop all: other workers feed the GPU now."""
        self._calls.clear()
        self._looks.clear()

    def idlers(self) -> int:
        """Number of processes that write so seldom that they cannot hand batches over."""
        # Of the calls of the one that writes most.
        least = HARDLY * max(self._calls.values(), default=0)
        known = (one for one, looks in self._looks.items() if looks >= _KNOWN_LOOKS)
        return sum(self._calls[one] < least for one in known)


def _halved(counts: Counter[int]) -> Counter[int]:
    return Counter({one: number // 2 for one, number in counts.items()})
