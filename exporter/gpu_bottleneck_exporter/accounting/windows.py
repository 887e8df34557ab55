"""Busy and observed time from the driver's utilization samples: pure arithmetic, no I/O.

All times are integer nanoseconds, so observed = busy + idle exactly, in every window. Time that no
source covered is unobserved, never idle. Observed plus unobserved time never exceeds the time since
the first call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from gpu_bottleneck_exporter.driver.readings import Ring, RingSample
from gpu_bottleneck_exporter.schedule import CADENCE

MAX_PERIOD_NS = 1_000_000_000
"""1/6 s to 1 s, by product (nvml.h, nvmlUtilization_t)."""

WINDOW_BUCKETS = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Quarters, and the limits of idle and of fully busy."""


class Window(NamedTuple):
    """One observed stretch of time.

    `end_ns` is on the monotonic clock, with an error below one sample period: the age of the newest
    sample.
    """

    end_ns: int
    duration_ns: int
    active_ns: int


def sums(windows: Sequence[Window]) -> tuple[int, int]:
    """Observed and active nanoseconds of `windows`."""
    duration_ns = active_ns = 0
    for _, duration, active in windows:  # half the time of two sums
        duration_ns += duration
        active_ns += active
    return duration_ns, active_ns


class ClockMap:
    """Maps a clock of the driver onto the monotonic one."""

    def __init__(self) -> None:
        self._offset_ns: int | None = None

    def note(self, now_ns: int, newest_us: int) -> None:
        """Record that the newest sample is of `newest_us`."""
        # The newest sample is up to a period old, so the smallest lag is the closest. A lag far
        # above it means that a clock was set: begin again.
        lag, offset = now_ns - newest_us * 1000, self._offset_ns
        if offset is None or lag < offset or lag > offset + 2 * MAX_PERIOD_NS:
            self._offset_ns = lag

    def monotonic_ns(self, timestamp_us: int) -> int:
        """Monotonic time of `timestamp_us`, with an error below one sample period."""
        return timestamp_us * 1000 + (self._offset_ns or 0)

    def covers(self, now_ns: int, timestamp_us: int) -> bool:
        """Whether `timestamp_us` is recent, so of the same clock."""
        age_ns = now_ns - self.monotonic_ns(timestamp_us)
        return self._offset_ns is not None and abs(age_ns) < CADENCE.recent_ns


class Integrator:
    """Adds up one utilization signal of one GPU.

    Call `ring` once a tick or, where the driver has no ring, `reading` or `mean`. Each returns the
    booked windows.
    """

    def __init__(self, tick_ns: int) -> None:
        self.observed_ns = 0
        self.active_ns = 0
        self.unobserved_ns = 0
        self.lost_ns = 0
        """Part of `unobserved_ns` that the ring dropped before it was read."""
        self.booked_at_ns: int | None = None
        """Monotonic time at which a window was last booked."""
        self._tick_ns = tick_ns
        self._longest_reading_ns = 2 * max(tick_ns, MAX_PERIOD_NS)
        self._began_ns: int | None = None
        self._accounted_ns: int | None = None
        self._frontier_us: int | None = None
        """Driver time of the newest booked sample."""
        self.clock = ClockMap()
        self._steps: deque[int] = deque(maxlen=15)
        self._pending: list[tuple[int, int]] = []
        """Single readings taken while the ring is silent: booked if it remains so."""
        self._covered_ns = 0
        """Time beyond the frontier that single readings have booked.

        Skipped in a ring that delivers again, which includes samples of that time.
        """

    def ring(self, now_ns: int, ring: Ring | None, percent: int | None) -> list[Window]:
        """Book the samples of a drained ring.

        Some GPUs empty their ring while idle: after three silent periods, the driver's single
        readings `percent` stand in.
        """
        self._began_ns = self._began_ns or now_ns
        if ring is None:
            windows = self.reading(now_ns, percent)
            self._covered_ns += sum(window.duration_ns for window in windows)
            return windows
        if ring:
            return self._samples(now_ns, ring)
        return self._silence(now_ns, percent)

    def reading(self, now_ns: int, percent: int | None) -> list[Window]:
        """Book the time since the last call by one reading of the driver.

        It stands for two periods at most; the rest of a longer gap is unobserved.
        """
        if percent is None:
            return []
        if self._accounted_ns is None:
            self._begin(now_ns)
            return []
        elapsed = now_ns - self._accounted_ns
        observed = min(elapsed, self._longest_reading_ns)
        self._miss(now_ns, elapsed - observed)
        self._accounted_ns = now_ns
        return self._book(now_ns, now_ns, observed, observed * percent // 100)

    def mean(self, now_ns: int, interval_ns: int, ratio: float) -> list[Window]:
        """Book an interval by its mean `ratio` (0-1), as the driver gives it.

        Time that a ring or a reading has booked is not booked again.
        """
        if self._accounted_ns is None:
            self._begin(now_ns - interval_ns)
        since = now_ns - (self._accounted_ns or 0)
        self._miss(now_ns, since - interval_ns)
        self._accounted_ns = now_ns
        self._frontier_us = None  # a ring that delivers again starts anew
        observed = min(interval_ns, since)
        return self._book(now_ns, now_ns, observed, round(observed * ratio))

    def longest_wait_ns(self) -> int:
        """Longest time without a booked window that is no fault: that of a silent ring."""
        return 4 * self._period_ns() + 2 * self._tick_ns

    def _begin(self, now_ns: int) -> None:
        self._accounted_ns = now_ns
        self._began_ns = self._began_ns or now_ns

    def _samples(self, now_ns: int, samples: tuple[RingSample, ...]) -> list[Window]:
        self._pending.clear()
        self.clock.note(now_ns, samples[-1].timestamp_us)
        if self._frontier_us is None:
            self._start(now_ns, samples)
            return []
        period = self._period_ns()
        windows: list[Window] = []
        newest_us = samples[-1].timestamp_us
        for sample in self._unseen(samples):
            windows += self._sample(now_ns, sample, period, newest_us)
        self._accounted_ns = now_ns
        # The ring has caught up, and never delivers samples for time covered beyond two periods.
        self._covered_ns = min(self._covered_ns, 2 * period)
        return windows

    def _unseen(self, samples: tuple[RingSample, ...]) -> tuple[RingSample, ...]:
        """Samples beyond the frontier; a reopened GPU repeats old ones."""
        assert self._frontier_us is not None  # noqa: S101 - checked by the caller
        newest = samples[-1].timestamp_us
        if newest <= self._frontier_us:  # the driver's clock was set back
            self._frontier_us = newest - self._period_ns() // 1000
        return tuple(sample for sample in samples if sample.timestamp_us > self._frontier_us)

    def _start(self, now_ns: int, samples: tuple[RingSample, ...]) -> None:
        # The first drain covers up to 10 s before the start: only the period is used.
        for old, new in pairwise(samples):
            self._steps.append((new.timestamp_us - old.timestamp_us) * 1000)
        self._frontier_us = samples[-1].timestamp_us
        self._covered_ns = 0
        if self._accounted_ns is not None:
            self._miss(now_ns, now_ns - self._accounted_ns)
        self._begin(now_ns)

    def _sample(self, now_ns: int, sample: RingSample, period: int, newest_us: int) -> list[Window]:
        assert self._frontier_us is not None  # noqa: S101 - set by `_start`
        step = (sample.timestamp_us - self._frontier_us) * 1000
        self._frontier_us = sample.timestamp_us
        self._steps.append(step)
        if self._covered_ns:
            covered = min(step, self._covered_ns)
            self._covered_ns -= covered
            step -= covered
        # A sample stands for one period; up to two allow for jitter. The rest was dropped.
        observed = min(step, 2 * period)
        if observed < step:
            # If the driver's clock jumps ahead, at most the time that has passed here is missing.
            accounted_ns = self._accounted_ns or now_ns
            elapsed = now_ns - accounted_ns - (newest_us - sample.timestamp_us) * 1000
            self.lost_ns += self._miss(now_ns, min(step, elapsed) - observed)
        if sample.percent is None:
            self._miss(now_ns, observed)
            return []
        end = self.clock.monotonic_ns(sample.timestamp_us)
        return self._book(now_ns, end, observed, observed * sample.percent // 100)

    def _silence(self, now_ns: int, percent: int | None) -> list[Window]:
        if percent is None:
            return []
        if self._accounted_ns is None:
            self._begin(now_ns)
        self._pending.append((now_ns, percent))
        if now_ns - (self._accounted_ns or now_ns) <= 3 * self._period_ns():
            return []
        windows = []
        for at_ns, value in self._pending:
            before = self._accounted_ns or at_ns
            windows += self.reading(at_ns, value)
            self._covered_ns += at_ns - before
        self._pending.clear()
        return windows

    def _period_ns(self) -> int:
        if not self._steps:
            return MAX_PERIOD_NS
        # Not statistics.median, which takes longer than all else here.
        steps = sorted(self._steps)
        middle = len(steps) // 2
        return min((steps[middle] + steps[~middle]) // 2, MAX_PERIOD_NS)

    def _book(self, now_ns: int, end_ns: int, duration_ns: int, active_ns: int) -> list[Window]:
        room_ns = min(duration_ns, self._room_ns(now_ns))
        if room_ns <= 0:
            return []
        if room_ns < duration_ns:
            active_ns = active_ns * room_ns // duration_ns
            duration_ns = room_ns
        self.observed_ns += duration_ns
        self.active_ns += active_ns
        self.booked_at_ns = now_ns
        return [Window(end_ns, duration_ns, active_ns)]

    def _miss(self, now_ns: int, duration_ns: int) -> int:
        """Book uncovered time, within the time left; returns how much."""
        duration_ns = max(min(duration_ns, self._room_ns(now_ns)), 0)
        self.unobserved_ns += duration_ns
        return duration_ns

    def _room_ns(self, now_ns: int) -> int:
        """Time since the first call that is not booked."""
        began_ns = now_ns if self._began_ns is None else self._began_ns
        return now_ns - began_ns - self.observed_ns - self.unobserved_ns


class WindowHistogram:
    """A histogram of the busy share of windows."""

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
        return list(accumulate(self.counts))
