"""Intervals, lifetimes and back-off of all that recurs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    """The intervals, timeouts and lifetimes of the sampler."""

    stagger_seconds: float = 0.001
    """Offset between GPUs' ticks, against contention for the GIL."""
    pass_seconds: float = 0.1
    """Interval of passes, doubled for more than `SMALL_GROUP` mains, as wake-ups cost most."""
    search_ns: int = 300_000_000
    """Initial interval of searches for helpers; grows by a quarter up to `slow_ns`."""
    children_seconds: float = 0.4
    """Interval of checks for new children: some workers live for a second."""
    refresh_timeout_seconds: float = 0.5
    """Wait of a scrape for a pass, which takes milliseconds, before it serves the last snapshot."""
    counter_seconds: float = 1.0
    """Interval of reading counters, and the maximum between two samples."""
    event_timeout_seconds: float = 1.0
    """Timeout of the driver's wait for events, which delays a stop."""
    min_retry_seconds: float = 1.0
    """First pause between attempts."""
    gauge_ns: int = 2_000_000_000
    """Interval of gauges and of the driver's own counters: twice the usual tick."""
    prescription_ns: int = 3_900_000_000
    """Shortest time of an observation to predict from: feeders are counted every 4 s or sooner."""
    window_ns: int = 4_000_000_000
    """Time over which the dominant activity of helpers is judged: workers are sampled in turn. Also
    the interval of snapshots without scrapes, and of counters of steady feeders."""
    probe_ns: int = 5_000_000_000
    """Interval of expensive or rare probes, of state that may change any time."""
    hang_timeout_ns: int = 5_000_000_000
    """Time until a thread that reads one GPU's processes is replaced."""
    recent_ns: int = 10_000_000_000
    """Age up to which an event counts as recent, as in the driver's ring."""
    slow_ns: int = 10_000_000_000
    """Interval of readings that are costly or rarely change."""
    advice_seconds: float = 20.0
    """Interval of advice, times idle GPUs: it takes milliseconds each."""
    rare_ns: int = 30_000_000_000
    """Interval of readings that rarely change, once these are established."""
    access_lost_timeout_seconds: float = 30.0
    """Time without access to the driver until the process exits: only a new one can recover."""
    cache_ttl_ns: int = 60_000_000_000
    """Lifetime of cached and learned state."""
    tenant_ns: int = 300_000_000_000
    """Lifetime of a tenant's series on a shared GPU: the last scrapes see its end."""
    stall_timeout_seconds: float = 60.0
    """Time without progress after which a thread is stuck: a pass takes milliseconds."""
    max_retry_seconds: float = 60.0
    """Longest pause between attempts."""
    sparse_factor: int = 2
    """Multiple of the usual interval for less important samples."""
    reading_intervals: int = 3
    """Lifetime of a reading in intervals: one may fail and the next be late."""
    rest_factor: int = 9
    """Pause after a pass, in times of its CPU time: a tenth of a core."""


CADENCE = Cadence()
SMALL_GROUP = 4
"""Number of processes that are all sampled in each pass."""


class Every:
    """A timer that is due at the first call in each interval."""

    __slots__ = ("_interval", "due")  # there may be thousands of processes

    def __init__(self, interval: float, due: float | None = None) -> None:
        """`interval` and `due`, the first time (None: at once), in the unit of the clock."""
        self._interval = interval
        self.due = due

    def is_due(self, now: float, interval: float | None = None) -> bool:
        """Whether it is due at monotonic `now`; if so, it is due again an interval later.

        Missed intervals are skipped.
        """
        self._interval = interval or self._interval
        due = now if self.due is None else self.due
        if now < due:
            return False
        self.due = due + ((now - due) // self._interval + 1) * self._interval
        return True


class RefreshSchedule:
    """A schedule for readings that rarely change: frequent while new, rare afterwards.

    A new process may still open its connections. Times: monotonic nanoseconds.
    """

    __slots__ = ("_of", "_since_ns", "due_ns")

    def __init__(self, since_ns: int = 0) -> None:
        """The thing is known since `since_ns`, and not read yet."""
        self._since_ns = self.due_ns = since_ns
        self._of: object = None

    def is_due(self, now_ns: int, of: object = None) -> bool:
        """Whether to read it at `now_ns`; if so, it is due again later.

        `of`: its identity; a changed one is new.
        """
        if of != self._of:
            self._of, self._since_ns, self.due_ns = of, now_ns, now_ns
        if now_ns < self.due_ns:
            return False
        is_new = now_ns - self._since_ns < 2 * CADENCE.slow_ns
        self.due_ns = now_ns + (CADENCE.slow_ns if is_new else CADENCE.rare_ns)
        return True


class Backoff:
    """Pauses between failing attempts, in seconds: each is doubled."""

    def __init__(self) -> None:
        self._next = CADENCE.min_retry_seconds

    def pause(self) -> float:
        """The next pause."""
        pause, self._next = self._next, min(2 * self._next, CADENCE.max_retry_seconds)
        return pause
