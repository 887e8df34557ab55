"""Intervals, lifetimes and back-off of everything that is due again and again."""

from __future__ import annotations

RECENT_NS = 10_000_000_000
"""Age up to which an event counts as recent; the driver's ring of samples covers about as much."""
RECENT_MS = RECENT_NS // 1_000_000
GAUGE_INTERVAL_NS = 2_000_000_000
"""Interval of gauges: twice the usual tick."""
PROBE_INTERVAL_NS = RECENT_NS // 2
"""Interval of probes that are expensive or rarely matter, of state that may change at any time."""
SLOW_INTERVAL_NS, RARE_INTERVAL_NS = RECENT_NS, 3 * RECENT_NS
"""Intervals of readings that rarely change, new and established."""
CACHE_TTL_NS = 6 * RECENT_NS
"""Lifetime of cached and learned state."""
STALL_TIMEOUT_NS = CACHE_TTL_NS
"""Time without progress after which a thread is stuck."""
SMALL_GROUP = 4
"""Number of processes that are all sampled in each pass."""
SPARSE_FACTOR = 2
"""Multiple of the usual interval for less important samples."""
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, STALL_TIMEOUT_NS / 1e9
"""Bounds of the pause between attempts."""


class Every:
    """A timer that is due at the first call, then at the first call in each interval."""

    __slots__ = ("_interval", "due")  # there may be thousands of processes

    def __init__(self, interval: float, due: float | None = None) -> None:
        """`interval` and `due`, the first time (None: at once), in the unit of the clock."""
        self._interval = interval
        self.due = due

    def is_due(self, now: float, interval: float | None = None) -> bool:
        """Whether it is due at monotonic `now`; if so, it is due again an interval later.

        `interval` replaces the present one. Missed intervals are skipped.
        """
        self._interval = interval or self._interval
        due = now if self.due is None else self.due
        if now < due:
            return False
        self.due = due + ((now - due) // self._interval + 1) * self._interval
        return True


class RefreshSchedule:
    """A schedule for readings that rarely change: frequent while new, rare afterwards.

    A new process may still be moved to its control group or open its connections. All times are
    monotonic nanoseconds.
    """

    __slots__ = ("_of", "_since_ns", "due_ns")

    def __init__(self, since_ns: int = 0) -> None:
        """The thing is known since `since_ns`, and not read yet."""
        self._since_ns = self.due_ns = since_ns
        self._of: object = None

    def is_due(self, now_ns: int, of: object = None) -> bool:
        """Whether to read it at `now_ns`; if so, it is due again later.

        `of`: its identity; another one than at the last call is new.
        """
        if of != self._of:
            self._of, self._since_ns, self.due_ns = of, now_ns, now_ns
        if now_ns < self.due_ns:
            return False
        is_new = now_ns - self._since_ns < 2 * SLOW_INTERVAL_NS
        self.due_ns = now_ns + (SLOW_INTERVAL_NS if is_new else RARE_INTERVAL_NS)
        return True


class Backoff:
    """Pauses between failing attempts, in seconds: each twice as long as the one before."""

    def __init__(self) -> None:
        self._next = MIN_RETRY_SECONDS

    def pause(self) -> float:
        """The next pause."""
        pause, self._next = self._next, min(2 * self._next, MAX_RETRY_SECONDS)
        return pause
