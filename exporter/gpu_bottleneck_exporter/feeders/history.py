"""The buckets of one GPU's last seconds, and their sum since the start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gpu_bottleneck_exporter.accounting.bucket import Bucket, Part, Role

WINDOW_NS = 4_000_000_000
"""Workers are sampled in turn, and counters read once a second: what takes most of the helpers'
time shows over seconds, not in one tick."""
_SLACK_NS = 1_500_000_000
"""For ratios, counters that were read so long after a window are near enough."""
_HOLDS_NS = 1_500_000_000
"""What was seen of a feeder holds until the next look, but not for longer."""
_PASSES_KEPT_NS = 12_000_000_000
"""A GPU is read every few seconds at least, and its driver's ring holds 10 s."""
_SECONDS_KEPT_NS = 20_000_000_000
"""Predictions look back over several windows."""


class History:
    """One thread adds; any thread may ask."""

    def __init__(self) -> None:
        self.total = Bucket()
        self._passes: deque[Bucket] = deque()
        self._seconds: deque[Bucket] = deque()

    def add_pass(self, one: Bucket) -> None:
        """Add what one pass saw."""
        self._passes.append(one)

    def passes_since(self, start_ns: int) -> Bucket:
        """What passes after `start_ns` saw: a second, once its counters are added."""
        return _sum(_between(self._passes, start_ns))

    def add_second(self, one: Bucket) -> None:
        """Add a second, its passes included."""
        self._seconds.append(one)
        self.total.add(one)
        for known, kept_ns in (
            (self._passes, _PASSES_KEPT_NS),
            (self._seconds, _SECONDS_KEPT_NS),
        ):
            while known and known[0].at_ns < one.at_ns - kept_ns:
                known.popleft()

    def seconds(self, start_ns: int, end_ns: int) -> Bucket | None:
        """The seconds after `start_ns` up to `end_ns`, added up; None if there are none."""
        found = _between(self._seconds, start_ns, end_ns)
        return _sum(found) if found else None

    def explaining(self, start_ns: int, end_ns: int) -> Bucket | None:
        """What explains idle time from `start_ns` to `end_ns`; None if nobody was looked at then.

        Mains: what they did in that time, as they are sampled at each pass. All else: over the
        last `WINDOW_NS`.
        """
        # Looks may be further apart than ticks are long: then the last one holds on.
        passes = _between(self._passes, start_ns, end_ns)
        passes = passes or _between(self._passes, end_ns - _HOLDS_NS, end_ns)[:1]
        if not passes:
            return None
        seconds = _between(self._seconds, end_ns - WINDOW_NS, end_ns + _SLACK_NS)
        counted_ns = seconds[0].at_ns if seconds else end_ns - WINDOW_NS
        found = _sum([*seconds, *_between(self._passes, counted_ns, end_ns)])
        now = _sum(passes)
        main = now.of(Role.MAIN)
        found.parts[Role.MAIN] = Part(main.seen, main.present, main.looks, found.of(Role.MAIN).used)
        found.runnable_ns, found.counted_ns = now.runnable_ns, now.counted_ns
        return found


def _between(history: deque[Bucket], start_ns: int, end_ns: int | None = None) -> list[Bucket]:
    """Those after `start_ns` up to `end_ns`, the newest first: mostly few out of many."""
    found: list[Bucket] = []
    for bucket in reversed(list(history)):
        if bucket.at_ns <= start_ns:
            break
        if end_ns is None or bucket.at_ns <= end_ns:
            found.append(bucket)
    return found


def _sum(buckets: Iterable[Bucket]) -> Bucket:
    total = Bucket()
    for bucket in buckets:
        total.add(bucket)
    return total
