"""Where jobs are kept: a file of SQLite, which outlives the exporter."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_bottleneck_exporter.jobs.memory import Row
from gpu_bottleneck_exporter.logthrottle import LogThrottle

log = logging.getLogger(__name__)

_VERSION = 1
_PATIENCE_SECONDS = 2.0
"""For another process that has the file."""
_TABLE = """CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, who TEXT, start REAL, until REAL, runs INTEGER, body BLOB
) WITHOUT ROWID"""
# Of whoever has most, so that one user's many short jobs push out no other's.
_GIVE_UP_ONE = """DELETE FROM jobs WHERE id IN (
    SELECT id FROM jobs WHERE who = (
        SELECT who FROM jobs GROUP BY who ORDER BY COUNT(*) DESC LIMIT 1
    ) ORDER BY until LIMIT 1)"""


class Store:
    """A table of jobs; all methods may be called from any thread."""

    def __init__(self, path: str, most: int, seconds: float) -> None:
        """At most so many, for so long. A file that is damaged is set aside."""
        self._path, self._most, self._seconds = path, most, seconds
        self._file: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._throttle = LogThrottle(log)
        self.write((), 0.0)

    def write(self, rows: Iterable[Row], now: float) -> bool:
        """Keep `rows`, replace those known, forget what is too old; whether that succeeded.

        A full disk costs `rows`, a damaged file what was in it.
        """
        trouble: str | None = None
        try:
            with self._opened() as file:
                file.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", rows)
                file.execute("DELETE FROM jobs WHERE until < ?", (now - self._seconds,))
                (count,) = file.execute("SELECT COUNT(*) FROM jobs").fetchone()
                for _ in range(count - self._most):
                    file.execute(_GIVE_UP_ONE)
        except sqlite3.OperationalError as error:
            trouble = f"{error}"
        except sqlite3.DatabaseError as error:
            trouble = f"{error}"
            self._set_aside(trouble)
        said = f"cannot write jobs to {self._path}: {trouble}; trying again"
        over = f"jobs are written to {self._path} again"
        self._throttle.log_change(logging.WARNING, "write", trouble, said, over)
        return trouble is None

    def read(self, since: float = 0.0) -> list[Row]:
        """Jobs that ended after Unix time `since`, the newest first."""
        return self._select("until > ? ORDER BY start DESC", since)

    def find(self, job: str) -> Row | None:
        """The job with this id."""
        return next(iter(self._select("id = ?", job)), None)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._file:
                self._file.close()
            self._file = None

    def _select(self, which: str, value: float | str) -> list[Row]:
        columns = ", ".join(Row._fields)
        try:
            with self._opened() as file:
                found = file.execute(f"SELECT {columns} FROM jobs WHERE {which}", (value,))  # noqa: S608
                return [Row(*row) for row in found]
        except sqlite3.Error as error:
            log.warning("cannot read jobs from %s: %s", self._path, error)
            return []

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """The file, for one transaction. Raises sqlite3.Error."""
        with self._lock:
            self._file = self._file or sqlite3.connect(
                self._path, _PATIENCE_SECONDS, check_same_thread=False
            )
            with self._file as file:
                (version,) = file.execute("PRAGMA user_version").fetchone()
                if version not in (0, _VERSION):
                    raise sqlite3.DatabaseError(f"it is of version {version}, not {_VERSION}")
                if not version:
                    file.execute(_TABLE)
                    file.execute(f"PRAGMA user_version = {_VERSION}")
                yield file

    def _set_aside(self, why: str) -> None:
        """Rename the file: the next write begins a new one."""
        self.close()
        path = Path(self._path)
        aside = path.with_name(f"{path.name}.aside")
        log.error("%s cannot be used (%s): renamed to %s, and a new one begun", path, why, aside)
        with suppress(OSError):
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
            path.replace(aside)
