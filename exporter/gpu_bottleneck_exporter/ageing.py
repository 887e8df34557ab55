"""How often to read what hardly ever changes: often while it is new, seldom when it is not.

A process that has just come may still be moved to its control group or open its connections; one
that has been there for a while goes on as it is.
"""

from __future__ import annotations

OFTEN_NS = 10_000_000_000
SELDOM_NS = 30_000_000_000
NEW_NS = 20_000_000_000


def next_reading_ns(now_ns: int, since_ns: int) -> int:
    """When to read again what was read at `now_ns` and is known `since_ns`, all monotonic."""
    return now_ns + (OFTEN_NS if now_ns - since_ns < NEW_NS else SELDOM_NS)
