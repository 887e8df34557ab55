"""Busy and observed time from the driver's utilization samples: pure arithmetic, no I/O.

Everything is integer nanoseconds, so that sums are exact:
observed = busy + idle, window by window, always. What no source covered is
unobserved, never idle. Whatever the driver says, observed and unobserved time
together are never more than has passed since the first feed.
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
        self.booked_at_ns: int | None = None
        """When a window was last booked."""
        self._tick_ns = tick_ns
        self._longest_reading_ns = 2 * max(tick_ns, MAX_PERIOD_NS)
        self._began_ns: int | None = None
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
        self._began_ns = self._began_ns or now_ns
        if ring.state is RingState.UNSUPPORTED:
            windows = self.reading(now_ns, percent)
            self._covered_ns += sum(window.duration_ns for window in windows)
            return windows
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
            self._begin(now_ns)
            return []
        elapsed = now_ns - self._accounted_ns
        seen = min(elapsed, self._longest_reading_ns)
        self._miss(now_ns, elapsed - seen)
        self._accounted_ns = now_ns
        return self._book(now_ns, now_ns, seen, seen * percent // 100)

    def mean(self, now_ns: int, interval_ns: int, ratio: float) -> list[Window]:
        """Account an interval of which the driver gives the mean `ratio` (0-1).

        The part of it that a ring or a reading has covered is not counted again.
        """
        if self._accounted_ns is None:
            self._begin(now_ns - interval_ns)
        since = now_ns - (self._accounted_ns or 0)
        self._miss(now_ns, since - interval_ns)
        self._accounted_ns = now_ns
        self._frontier_us = None  # a ring that comes back begins anew
        seen = min(interval_ns, since)
        return self._book(now_ns, now_ns, seen, round(seen * ratio))

    def longest_wait_ns(self) -> int:
        """How long nothing may be booked while all is well: a silent ring is waited for."""
        return 4 * self._period_ns() + 2 * self._tick_ns

    def _begin(self, now_ns: int) -> None:
        self._accounted_ns = now_ns
        self._began_ns = self._began_ns or now_ns

    def _samples(self, now_ns: int, samples: tuple[RingSample, ...]) -> list[Window]:
        self._pending.clear()
        self._map_clock(now_ns, samples[-1].timestamp_us)
        if self._frontier_us is None:
            self._start(now_ns, samples)
            return []
        period = self._period_ns()
        windows: list[Window] = []
        for sample in self._unseen(samples):
            windows += self._sample(now_ns, sample, period, samples[-1].timestamp_us)
        self._accounted_ns = now_ns
        self._covered_ns = min(self._covered_ns, 2 * period)  # the ring has caught up by now
        return windows

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
            self._miss(now_ns, now_ns - self._accounted_ns)
        self._begin(now_ns)

    def _sample(self, now_ns: int, sample: RingSample, period: int, newest_us: int) -> list[Window]:
        assert self._frontier_us is not None  # noqa: S101 - set by `_start`
        step = (sample.timestamp_us - self._frontier_us) * 1000
        self._frontier_us = sample.timestamp_us
        self._steps.append(step)
        covered = min(step, self._covered_ns)
        self._covered_ns -= covered
        step -= covered
        seen = min(step, 2 * period)
        # A driver clock that was set forward must not invent time that never passed.
        elapsed = now_ns - (self._accounted_ns or now_ns) - (newest_us - sample.timestamp_us) * 1000
        self.lost_ns += self._miss(now_ns, min(step, elapsed) - seen)
        if sample.percent is None:
            self._miss(now_ns, seen)
            return []
        end = sample.timestamp_us * 1000 + (self._clock_offset_ns or 0)
        return self._book(now_ns, end, seen, seen * sample.percent // 100)

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

    def _book(self, now_ns: int, end_ns: int, duration_ns: int, active_ns: int) -> list[Window]:
        """Book a window, as far as there is time left for it."""
        room_ns = min(duration_ns, self._room_ns(now_ns))
        if room_ns <= 0:
            return []
        active_ns = active_ns * room_ns // duration_ns
        duration_ns = room_ns
        self.observed_ns += duration_ns
        self.active_ns += active_ns
        self.booked_at_ns = now_ns
        return [Window(end_ns, duration_ns, active_ns)]

    def _miss(self, now_ns: int, duration_ns: int) -> int:
        """Book time that nothing covered; returns what of it there was time for."""
        duration_ns = max(min(duration_ns, self._room_ns(now_ns)), 0)
        self.unobserved_ns += duration_ns
        return duration_ns

    def _room_ns(self, now_ns: int) -> int:
        """Time since the first feed that is booked neither as observed nor as unobserved."""
        began_ns = now_ns if self._began_ns is None else self._began_ns
        return now_ns - began_ns - self.observed_ns - self.unobserved_ns


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
