"""Jobs as they are kept, and where there is no file for them: in memory."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

MOST_BYTES = 8 * 2**20
"""Of compressed jobs: a thousand of eight GPUs each."""


class Row(NamedTuple):
    """A job as it is kept."""

    id: str
    who: str
    """Whose it is: of whoever has most, the oldest is given up first."""
    start: float
    until: float
    """Unix seconds when it ended, or was last seen."""
    runs: bool
    """Whether it had not ended."""
    body: bytes
    """The compressed document, ASCII."""

    @property
    def text(self) -> str:
        """The document."""
        return zlib.decompress(self.body).decode()


class InMemory:
    """As `store.Store`, but until the exporter ends; one thread at a time may write."""

    def __init__(self, most: int, seconds: float) -> None:
        """At most so many, for so long."""
        self._most, self._seconds = most, seconds
        self._rows: dict[str, Row] = {}

    def write(self, rows: Iterable[Row], now: float) -> bool:
        """Keep `rows`, replace those known, forget what is too old."""
        every = self._rows | {row.id: row for row in rows}
        kept = {name: row for name, row in every.items() if row.until >= now - self._seconds}
        while len(kept) > self._most or sum(len(r.body) for r in kept.values()) > MOST_BYTES:
            ((who, _),) = Counter(row.who for row in kept.values()).most_common(1)
            theirs = (row for row in kept.values() if row.who == who)
            del kept[min(theirs, key=lambda row: row.until).id]
        self._rows = kept
        return True

    def read(self, since: float = 0.0) -> list[Row]:
        """Jobs that ended after Unix time `since`, the newest first."""
        found = [row for row in self._rows.values() if row.until > since]
        return sorted(found, key=lambda row: row.start, reverse=True)

    def find(self, job: str) -> Row | None:
        """The job with this id."""
        return self._rows.get(job)

    def close(self) -> None:
        """Nothing is open."""
