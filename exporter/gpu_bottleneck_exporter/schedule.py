"""Something that is due every so often."""

from __future__ import annotations

OFTEN_NS = 10_000_000_000
SELDOM_NS = 30_000_000_000
NEW_NS = 20_000_000_000


class RefreshSchedule:
    """When to read again what rarely changes: often while it is new, seldom afterwards.

    A process that has just started may still be moved to its control group or open its
    connections; an older one hardly changes. All times are monotonic nanoseconds.
    """

    __slots__ = ("_since_ns", "due_ns")

    def __init__(self, since_ns: int = 0) -> None:
        """The thing is known since `since_ns`, and not read yet."""
        self._since_ns = self.due_ns = since_ns

    def is_due(self, now_ns: int, *, new: bool = False) -> bool:
        """Whether to read it at `now_ns`; if so, it is due again later.

        `new`: it was replaced by another one.
        """
        if new:
            self._since_ns = self.due_ns = now_ns
        if now_ns < self.due_ns:
            return False
        self.due_ns = now_ns + (OFTEN_NS if now_ns - self._since_ns < NEW_NS else SELDOM_NS)
        return True


class Every:
    """Due at the first question, and then once per interval, at the first question in it."""

    def __init__(self, interval: float) -> None:
        """`interval`, in the unit of the clock that `is_due` is asked with."""
        self._interval = interval
        self._next: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is due at monotonic `now`; if so, it is due again an interval later.

        Intervals that were missed are not made up for.
        """
        due = now if self._next is None else self._next
        if now < due:
            return False
        self._next = due + ((now - due) // self._interval + 1) * self._interval
        return True
