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
        self._refused: dict[Hashable, tuple[int, int]] = {}
        """Since when, and until when the refusal stands."""

    def stands(self, key: Hashable) -> bool:
        """Whether the refusal of `key` stands and no recheck is due."""
        return key in self._refused and self._clock() < self._refused[key][1]

    def was_answered(self, key: Hashable) -> bool:
        """Whether `key` was ever answered."""
        return key in self._answered

    def is_unknown(self, key: Hashable) -> bool:
        """Whether `key` was refused at its last try, and never answered."""
        return key in self._refused and key not in self._answered

    def answered(self, key: Hashable) -> None:
        """Note that `key` was answered."""
        self._answered.add(key)
        self._refused.pop(key, None)

    def clear(self, key: Hashable) -> None:
        """Drop what is recorded of `key`: its answer does not say whether it is supported."""
        self._answered.discard(key)
        self._refused.pop(key, None)

    def refused(self, key: Hashable) -> bool:
        """Note that `key` was refused; returns whether it failed, as it was answered before."""
        now, failed = self._clock(), key in self._answered
        since, _ = self._refused.get(key, (now, now))
        stands = now - since >= SETTLE_NS and not failed
        self._refused[key] = since, now + RECHECK_NS if stands else now
        return failed
