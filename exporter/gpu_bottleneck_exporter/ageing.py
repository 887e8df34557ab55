"""How often to read what hardly ever changes: often while it is new, seldom when it is not.

A process that has just come may still be moved to its control group or open its connections; one
that has been there for a while goes on as it is.
"""

from __future__ import annotations

OFTEN_NS = 10_000_000_000
SELDOM_NS = 30_000_000_000
NEW_NS = 20_000_000_000


class Ageing:
    """When to read one thing again; all times are monotonic nanoseconds."""

    __slots__ = ("_since_ns", "due_ns")

    def __init__(self, since_ns: int = 0) -> None:
        """Known `since_ns`, and not read yet."""
        self._since_ns = self.due_ns = since_ns

    def is_due(self, now_ns: int, *, new: bool = False) -> bool:
        """Whether to read it at `now_ns`; if so, the next time is later.

        `new`: it is another one than before.
        """
        if new:
            self._since_ns = self.due_ns = now_ns
        if now_ns < self.due_ns:
            return False
        self.due_ns = now_ns + (OFTEN_NS if now_ns - self._since_ns < NEW_NS else SELDOM_NS)
        return True
