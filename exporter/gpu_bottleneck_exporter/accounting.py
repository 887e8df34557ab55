"""Busy and observed time from the driver's utilization samples: pure arithmetic, no I/O.

Everything is integer nanoseconds, so that sums are exact:
observed = busy + idle, window by window, always. What no source covered is
unobserved, never idle.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from gpu_bottleneck_exporter.driver.readings import Ring, RingSample, RingState

MAX_PERIOD_NS = 1_000_000_000
"""The driver's sample period is 1/6 s to 1 s, by product (nvml.h, nvmlUtilization_t)."""

WINDOW_BUCKETS = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class Window(NamedTuple):
    """One observed stretch of time.

    `end_ns` is its end on the monotonic clock, as near as the driver's clock can be
    mapped onto it (the age of the newest sample, less than a period).
    """

    end_ns: int
    duration_ns: int
    active_ns: int


class Integrator:
    """Adds up one utilization signal of one GPU.

    Feed it once a tick with either `ring`, or, where the driver has no ring,
    `reading` or `mean`. Each returns the windows it accounted.
    """

    def __init__(self, tick_ns: int) -> None:
        """`tick_ns`: the time between two feeds when all is well."""
        self.observed_ns = 0
        self.active_ns = 0
        self.unobserved_ns = 0
        self.lost_ns = 0
        """The part of `unobserved_ns` for which the driver had samples that came too late to us."""
        self._longest_reading_ns = 2 * max(tick_ns, MAX_PERIOD_NS)
        self._accounted_ns: int | None = None
        self._frontier_us: int | None = None
        self._clock_offset_ns: int | None = None
        self._steps: deque[int] = deque(maxlen=15)
        self._pending: list[tuple[int, int]] = []
        self._covered_ns = 0

    def ring(self, now_ns: int, ring: Ring, percent: int | None) -> list[Window]:
        """Account the samples of a drained ring.

        A ring that stays silent (an idle GPU empties it on some parts) is replaced by
        the driver's single readings `percent`, one for each silent tick.
        """
        if ring.state is RingState.UNSUPPORTED:
            return self.reading(now_ns, percent)
        if ring.samples:
            return self._samples(now_ns, ring.samples)
        return self._silence(now_ns, percent)

    def reading(self, now_ns: int, percent: int | None) -> list[Window]:
        """Account the time since the last feed with one reading of the driver.

        A gap too long for one reading to stand for counts as unobserved.
        """
        if percent is None:
            return []
        if self._accounted_ns is None:
            self._accounted_ns = now_ns
            return []
        elapsed = now_ns - self._accounted_ns
        seen = min(elapsed, self._longest_reading_ns)
        self.unobserved_ns += elapsed - seen
        self._accounted_ns = now_ns
        return [self._book(now_ns, seen, seen * percent // 100)] if seen > 0 else []

    def mean(self, now_ns: int, interval_ns: int, ratio: float) -> list[Window]:
        """Account an interval of which the driver gives the mean `ratio` (0-1)."""
        if self._accounted_ns is not None:
            self.unobserved_ns += max(now_ns - interval_ns - self._accounted_ns, 0)
        self._accounted_ns = now_ns
        return [self._book(now_ns, interval_ns, min(round(interval_ns * ratio), interval_ns))]

    def _samples(self, now_ns: int, samples: tuple[RingSample, ...]) -> list[Window]:
        self._pending.clear()
        self._map_clock(now_ns, samples[-1].timestamp_us)
        if self._frontier_us is None:
            self._start(now_ns, samples)
            return []
        period = self._period_ns()
        windows = [self._sample(now_ns, sample, period) for sample in self._unseen(samples)]
        self._accounted_ns = now_ns
        return [window for window in windows if window]

    def _unseen(self, samples: tuple[RingSample, ...]) -> tuple[RingSample, ...]:
        """Samples beyond the frontier; a GPU that was opened anew repeats old ones."""
        assert self._frontier_us is not None  # noqa: S101 - the caller has looked
        newest = samples[-1].timestamp_us
        if newest <= self._frontier_us:  # the driver's clock was set back
            self._frontier_us = newest - self._period_ns() // 1000
            return samples[-1:]
        return tuple(sample for sample in samples if sample.timestamp_us > self._frontier_us)

    def _start(self, now_ns: int, samples: tuple[RingSample, ...]) -> None:
        # What the ring remembers from before the first drain is not ours to count.
        for old, new in pairwise(samples):
            self._steps.append((new.timestamp_us - old.timestamp_us) * 1000)
        self._frontier_us = samples[-1].timestamp_us
        self._covered_ns = 0
        if self._accounted_ns is not None:
            self.unobserved_ns += now_ns - self._accounted_ns
        self._accounted_ns = now_ns

    def _sample(self, now_ns: int, sample: RingSample, period: int) -> Window | None:
        assert self._frontier_us is not None  # noqa: S101 - set by `_start`
        step = (sample.timestamp_us - self._frontier_us) * 1000
        self._frontier_us = sample.timestamp_us
        self._steps.append(step)
        covered = min(step, self._covered_ns)
        self._covered_ns -= covered
        step -= covered
        seen = min(step, 2 * period)
        self._book_gap(now_ns, step - seen)
        if seen == 0:
            return None
        end = sample.timestamp_us * 1000 + (self._clock_offset_ns or 0)
        return self._book(end, seen, seen * sample.percent // 100)

    def _book_gap(self, now_ns: int, gap: int) -> None:
        # A driver clock that was set forward must not invent time that never passed.
        elapsed = now_ns - (self._accounted_ns or now_ns)
        gap = min(gap, max(elapsed, 0))
        self.unobserved_ns += gap
        self.lost_ns += gap

    def _silence(self, now_ns: int, percent: int | None) -> list[Window]:
        if percent is None:
            return []
        if self._accounted_ns is None:
            self._accounted_ns = now_ns
        self._pending.append((now_ns, percent))
        if now_ns - self._accounted_ns <= 3 * self._period_ns():
            return []
        windows = []
        for at_ns, value in self._pending:
            before = self._accounted_ns
            windows += self.reading(at_ns, value)
            self._covered_ns += at_ns - before
        self._pending.clear()
        return windows

    def _period_ns(self) -> int:
        if not self._steps:
            return MAX_PERIOD_NS
        # Not statistics.median: it takes longer than all the rest of a tick's accounting.
        steps = sorted(self._steps)
        middle = len(steps) // 2
        return min((steps[middle] + steps[~middle]) // 2, MAX_PERIOD_NS)

    def _map_clock(self, now_ns: int, newest_us: int) -> None:
        # The newest sample is at most a period old: the smallest lag seen is the truest.
        lag = now_ns - newest_us * 1000
        known = self._clock_offset_ns
        if known is None or lag < known or lag > known + 2 * MAX_PERIOD_NS:
            self._clock_offset_ns = lag

    def _book(self, end_ns: int, duration_ns: int, active_ns: int) -> Window:
        self.observed_ns += duration_ns
        self.active_ns += active_ns
        return Window(end_ns, duration_ns, active_ns)


class WindowHistogram:
    """How many windows were how busy: one observation per window."""

    def __init__(self) -> None:
        self.counts = [0] * len(WINDOW_BUCKETS)
        self.sum = 0.0

    def observe(self, windows: list[Window]) -> None:
        """Add windows."""
        for window in windows:
            ratio = window.active_ns / window.duration_ns
            self.counts[bisect_left(WINDOW_BUCKETS, ratio)] += 1
            self.sum += ratio

    def cumulative(self) -> list[int]:
        """Observations at or below each of `WINDOW_BUCKETS`."""
        totals, total = [], 0
        for count in self.counts:
            total += count
            totals.append(total)
        return totals
