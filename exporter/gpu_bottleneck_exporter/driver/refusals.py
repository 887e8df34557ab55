"""Requests refused by the driver, with the time of their next try.

Some refusals pass (a GPU wakes, the MIG mode changes), so they must last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

SETTLE_NS = 10_000_000_000
"""Time after which a refusal stands."""
RECHECK_INTERVAL_NS = 30_000_000_000
"""Interval between tries of a refused request."""


class Refusals:
    """The refusals of one device by request (`key`)."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._answered: set[Hashable] = set()
        self._refused: dict[Hashable, tuple[int, int]] = {}
        """Start, and time of the next try."""

    def stands(self, key: Hashable) -> bool:
        """Whether the refusal of `key` stands and no recheck is due."""
        return key in self._refused and self._clock() < self._refused[key][1]

    def was_answered(self, key: Hashable) -> bool:
        """Whether `key` was ever answered."""
        return key in self._answered

    def is_unknown(self, key: Hashable) -> bool:
        """Whether `key` was refused last, and never answered."""
        return key in self._refused and key not in self._answered

    def answered(self, key: Hashable) -> None:
        """Record an answer of `key`."""
        self._answered.add(key)
        self._refused.pop(key, None)

    def clear(self, key: Hashable) -> None:
        """Drop all records of `key`, as its answer does not show support."""
        self._answered.discard(key)
        self._refused.pop(key, None)

    def refused(self, key: Hashable) -> bool:
        """Record a refusal of `key`; return whether it is a failure, after an answer."""
        now, failed = self._clock(), key in self._answered
        since, _ = self._refused.get(key, (now, now))
        stands = now - since >= SETTLE_NS and not failed
        self._refused[key] = since, now + RECHECK_INTERVAL_NS if stands else now
        return failed
