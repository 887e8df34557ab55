"""Something that is due every so often."""

from __future__ import annotations


class Every:
    """Due once per interval, at the first question in it."""

    def __init__(self, interval: float) -> None:
        """`interval`, in the unit of the clock that `is_due` is asked with."""
        self._interval = interval
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it is due at monotonic `now`; if so, it is due again an interval later.

        Intervals that were missed are not made up for.
        """
        if now < self._next:
            return False
        missed = (now - self._next) // self._interval
        self._next += (missed + 1) * self._interval
        return True
