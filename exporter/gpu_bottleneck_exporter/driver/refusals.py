"""What was refused, and when it is worth asking for again.

Drivers refuse in passing what they give a second later (a GPU that wakes, a permission that is
changed, a MIG mode being set), so a refusal is believed once it has lasted. What was given
before and is refused now is missing, not unsupported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

SETTLE_NS = 10_000_000_000
"""What is refused for so long is refused for good, that is, until it is asked for again."""
RECHECK_NS = 30_000_000_000
"""Between two requests for what is refused for good."""


class Refusals:
    """Of one device; `key` is whatever names a request."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._given: set[Hashable] = set()
        self._since: dict[Hashable, int] = {}
        self._again: dict[Hashable, int] = {}

    def stands(self, key: Hashable) -> bool:
        """Whether `key` is refused for good and not yet to be asked for again."""
        return key in self._again and self._clock() < self._again[key]

    def gave(self, key: Hashable) -> bool:
        """Whether `key` was ever answered."""
        return key in self._given

    def given(self, key: Hashable) -> None:
        """`key` was answered."""
        self._given.add(key)
        self._since.pop(key, None)
        self._again.pop(key, None)

    def refused(self, key: Hashable) -> bool:
        """`key` was refused; whether that is a failure, as it was given before."""
        now = self._clock()
        if now - self._since.setdefault(key, now) >= SETTLE_NS and key not in self._given:
            self._again[key] = now + RECHECK_NS
        return key in self._given
