"""Sums of counters whose sources come and go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Sums(Generic[K]):
    """By key, what its sources have counted while they were watched; never falls.

    A source is a cgroup, a network namespace: whatever has counters of its own.
    """

    def __init__(self) -> None:
        self._totals: dict[K, int] = {}
        self._last: Mapping[tuple[Hashable, K], int] = {}

    def advance(self, readings: Mapping[tuple[Hashable, K], int]) -> None:
        """Take the counters by source and key; a source that is new counts from now on."""
        for (source, key), value in readings.items():
            before = self._last.get((source, key), value)
            self._totals[key] = self._totals.get(key, 0) + max(value - before, 0)
        self._last = dict(readings)

    def known(self, *, sources: bool) -> dict[K, int]:
        """The sums that may be told; `sources`: whether there are any to be read.

        One that the present sources do not give is unknown; without sources all stand.
        """
        if not sources:
            return dict(self._totals)
        given = {key for _, key in self._last}
        return {key: total for key, total in self._totals.items() if key in given}
