"""Something that is due every so often."""

from __future__ import annotations

LATELY_NS = 10_000_000_000
"""What is older is no news any more; the driver's ring of samples holds about as much."""
LATELY_MS = LATELY_NS // 1_000_000
STEADY_NS = 2_000_000_000
"""Between two readings of gauges, and of what goes on as before: twice the usual tick."""
SHORTLY_NS = LATELY_NS // 2
"""Between two looks at what may change at any moment, but is dear or seldom matters."""
OFTEN_NS, SELDOM_NS = LATELY_NS, 3 * LATELY_NS
"""Between two readings of what hardly ever changes."""
LONG_NS = 6 * LATELY_NS
"""What was learned is kept for so long; who makes no progress meanwhile is stuck."""
NEW_NS = 2 * OFTEN_NS
FEW = 4
"""Processes that may all be looked at each time; of more, some, or less often."""
HALF_AS_OFTEN = 2
"""How many times as far apart looks are at what matters less, for half the cost."""
FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, LONG_NS / 1e9
"""Between two attempts at what failed."""


class Every:
    """Due at the first question, and then once per interval, at the first question in it."""

    __slots__ = ("_interval", "due")  # there may be thousands of processes

    def __init__(self, interval: float, due: float | None = None) -> None:
        """`interval`, in the unit of the clock that `is_due` is asked with.

        `due`: when it is due first; None: at once.
        """
        self._interval = interval
        self.due = due

    def is_due(self, now: float, interval: float | None = None) -> bool:
        """Whether it is due at monotonic `now`; if so, it is due again an interval later.

        `interval`: from now on. Intervals that were missed are not made up for.
        """
        self._interval = interval or self._interval
        due = now if self.due is None else self.due
        if now < due:
            return False
        self.due = due + ((now - due) // self._interval + 1) * self._interval
        return True


class RefreshSchedule:
    """A schedule for what rarely changes: often while it is new, seldom afterwards.

    A process that has just started may still be moved to its control group or open its
    connections; an older one hardly changes. All times are monotonic nanoseconds.
    """

    __slots__ = ("_of", "_since_ns", "due_ns")

    def __init__(self, since_ns: int = 0) -> None:
        """The thing is known since `since_ns`, and not read yet."""
        self._since_ns = self.due_ns = since_ns
        self._of: object = None

    def is_due(self, now_ns: int, of: object = None) -> bool:
        """Whether to read it at `now_ns`; if so, it is due again later.

        `of`: what is read, or whose; another one than at the last question is new.
        """
        if of != self._of:
            self._of, self._since_ns, self.due_ns = of, now_ns, now_ns
        if now_ns < self.due_ns:
            return False
        self.due_ns = now_ns + (OFTEN_NS if now_ns - self._since_ns < NEW_NS else SELDOM_NS)
        return True


class Backoff:
    """Pauses between attempts at what fails, in seconds: each time twice as long."""

    def __init__(self) -> None:
        self._next = FIRST_RETRY_SECONDS

    def pause(self) -> float:
        """The next one."""
        pause, self._next = self._next, min(2 * self._next, LONGEST_RETRY_SECONDS)
        return pause
