"""Where jobs are kept: a file of SQLite, which outlives the exporter, or else its memory."""

from __future__ import annotations

import logging
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.logthrottle import LogThrottle

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 2.0
"""For another process that has the file."""
# Another version, with other columns, is to take another name.
_TABLE = """CREATE TABLE IF NOT EXISTS kept_jobs (
    id TEXT PRIMARY KEY, who TEXT, until REAL, body BLOB)"""
_READ = "SELECT * FROM kept_jobs WHERE until > ? AND id GLOB ? ORDER BY until DESC"
_WRITE = "INSERT OR REPLACE INTO kept_jobs VALUES (?, ?, ?, ?)"
# Everybody's newest is kept first, then everybody's second: whoever has most loses the oldest.
_FORGET = """DELETE FROM kept_jobs WHERE until < ? OR id IN (
    SELECT id FROM (
        SELECT id, until, ROW_NUMBER() OVER (PARTITION BY who ORDER BY until DESC) AS turn
        FROM kept_jobs
    ) ORDER BY turn, until DESC LIMIT -1 OFFSET ?)"""


class Row(NamedTuple):
    """A job as it is kept."""

    id: str
    who: str
    until: float
    """Unix seconds when it ended, or was last seen."""
    body: bytes
    """The compressed document, ASCII."""

    @property
    def text(self) -> str:
        """The document."""
        return zlib.decompress(self.body).decode()


class Store:
    """A table of jobs; all methods may be called from any thread. What fails is logged."""

    def __init__(self, path: str, most: int, seconds: float) -> None:
        """At most so many, for so long."""
        self._path = path or ":memory:"
        self._most, self._seconds = most, seconds
        self._file: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._throttle = LogThrottle(log)
        self.write((), 0.0)

    def write(self, rows: Collection[Row], now: float) -> bool:
        """Keep `rows`, replace those known, forget what is too old; whether that succeeded."""
        with self._guarded("write"), self._opened() as file:
            file.executemany(_WRITE, rows)
            file.execute(_FORGET, (now - self._seconds, self._most))
            return True
        return False

    def read(self, since: float = 0.0, ids: str = "*") -> list[Row]:
        """Jobs that ended after Unix time `since` and have such ids, the last ones first."""
        with self._guarded("read"), self._opened() as file:
            return [Row(*row) for row in file.execute(_READ, (since, ids))]
        return []

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        if self._file:
            self._file.close()
        self._file = None

    def _opened(self) -> sqlite3.Connection:
        self._file = self._file or sqlite3.connect(
            self._path, _PATIENCE_SECONDS, check_same_thread=False
        )
        self._file.execute(_TABLE)
        return self._file

    @contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """One call at a time; a damaged file is set aside, and costs what was in it."""
        trouble = None
        with self._lock:
            try:
                yield
            except sqlite3.DatabaseError as error:
                trouble = f"cannot {what} jobs in {self._path}: {error}"
                if not isinstance(error, sqlite3.OperationalError):  # as a full disk is
                    trouble += self._set_aside()
        over = f"{self._path} can be used again"
        self._throttle.log_change(logging.WARNING, what, trouble, f"{trouble}; trying again", over)

    def _set_aside(self) -> str:
        """Rename the file, so that the next call begins a new one; what to tell."""
        self.close()
        with suppress(OSError):
            Path(f"{self._path}-journal").unlink(missing_ok=True)
            Path(self._path).replace(f"{self._path}.aside")
            return f" (renamed to {self._path}.aside)"
        return ""
