"""Requests that the driver refused, and when to try them again.

Drivers refuse some requests only for a moment (while a GPU wakes, a permission changes, MIG mode
is being set), so a refusal is accepted once it has lasted. A request that was answered before and
is refused now has failed; it is not unsupported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

SETTLE_NS = 10_000_000_000
"""The time after which a refusal stands: the request is skipped until the next recheck."""
RECHECK_NS = 30_000_000_000
"""The time between two tries of a request whose refusal stands."""


class Refusals:
    """The refusals of one device; `key` identifies a request."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._answered: set[Hashable] = set()
        self._since: dict[Hashable, int] = {}
        self._again: dict[Hashable, int] = {}

    def stands(self, key: Hashable) -> bool:
        """Whether the refusal of `key` stands and no recheck is due."""
        return key in self._again and self._clock() < self._again[key]

    def was_answered(self, key: Hashable) -> bool:
        """Whether `key` was ever answered."""
        return key in self._answered

    def answered(self, key: Hashable) -> None:
        """Note that `key` was answered."""
        self._answered.add(key)
        self._since.pop(key, None)
        self._again.pop(key, None)

    def refused(self, key: Hashable) -> bool:
        """Note that `key` was refused; returns whether it failed, as it was answered before."""
        now = self._clock()
        if now - self._since.setdefault(key, now) >= SETTLE_NS and key not in self._answered:
            self._again[key] = now + RECHECK_NS
        return key in self._answered
