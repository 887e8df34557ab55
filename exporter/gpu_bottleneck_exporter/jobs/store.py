"""Where finished jobs are kept: in memory, or in a file that outlives the exporter."""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gpu_bottleneck_exporter.logthrottle import LogThrottle

log = logging.getLogger(__name__)

_VERSION = 1
_MEMORY_BYTES = 8 * 2**20
"""Of compressed jobs without a file: a thousand of eight GPUs each."""
_PATIENCE_SECONDS = 2.0
"""For another process that has the file."""
_TABLE = """CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, who TEXT, start REAL, until REAL, holders TEXT, body BLOB
) WITHOUT ROWID"""
# Of whoever has most, so that one user's many short jobs push out no other's.
_TOO_MANY = """DELETE FROM jobs WHERE id IN (
    SELECT id FROM jobs WHERE who = (
        SELECT who FROM jobs GROUP BY who ORDER BY COUNT(*) DESC LIMIT 1
    ) ORDER BY until LIMIT 1)"""


class Row(NamedTuple):
    """A job as it is kept."""

    id: str
    who: str
    """Whose it is: of whoever has most, the oldest is given up first."""
    start: float
    until: float
    """Unix seconds when it ended, or was saved."""
    holders: str | None
    """JSON of what an exporter needs to go on with it; None once it is over."""
    body: bytes
    """The compressed document, ASCII."""

    @property
    def text(self) -> str:
        """The document."""
        return zlib.decompress(self.body).decode()


class Memory:
    """Keeps jobs until the exporter ends; all methods may be called from any thread."""

    def __init__(self, most: int, seconds: float) -> None:
        """At most so many, for so long."""
        self._most, self._seconds = most, seconds
        self._rows: dict[str, Row] = {}
        self._lock = threading.Lock()

    def write(self, rows: Iterable[Row], now: float) -> bool:
        """Keep `rows`, replace those known, forget what is too old; whether that succeeded."""
        with self._lock:
            self._rows.update({row.id: row for row in rows})
            old = [r.id for r in self._rows.values() if r.until < now - self._seconds]
            for name in old:
                del self._rows[name]
            while len(self._rows) > self._most or self._bytes() > _MEMORY_BYTES:
                self._give_up_one()
        return True

    def read(self, since: float = 0.0) -> list[Row]:
        """Jobs that ended after Unix time `since`, the newest first."""
        with self._lock:
            found = [row for row in self._rows.values() if row.until > since]
        return sorted(found, key=lambda row: row.start, reverse=True)

    def find(self, job: str) -> Row | None:
        """The job with this id."""
        return self._rows.get(job)

    def _bytes(self) -> int:
        return sum(len(row.body) for row in self._rows.values())

    def _give_up_one(self) -> None:
        counts: dict[str, int] = {}
        for row in self._rows.values():
            counts[row.who] = counts.get(row.who, 0) + 1
        most = max(counts, key=counts.__getitem__)
        theirs = (row for row in self._rows.values() if row.who == most)
        del self._rows[min(theirs, key=lambda row: row.until).id]


class File:
    """As `Memory`, but in a file of SQLite, which writes whole transactions or nothing."""

    def __init__(self, path: Path, most: int, seconds: float) -> None:
        """At most so many, for so long. A file that is damaged is set aside."""
        import sqlite3  # noqa: PLC0415 - most exporters have no file, and need not load it

        self._sqlite = sqlite3
        self._path, self._most, self._seconds = path, most, seconds
        self._throttle = LogThrottle(log)
        self._ready = False
        self.write((), 0.0)

    def write(self, rows: Iterable[Row], now: float) -> bool:
        """Keep `rows`; a full disk costs them, a damaged file what was in it."""
        trouble: str | None = None
        try:
            self._prepare()
            with self._open() as file:
                file.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", rows)
                file.execute("DELETE FROM jobs WHERE until < ?", (now - self._seconds,))
                (count,) = file.execute("SELECT COUNT(*) FROM jobs").fetchone()
                for _ in range(count - self._most):
                    file.execute(_TOO_MANY)
        except (self._sqlite.OperationalError, OSError) as error:
            trouble = f"{error}"
        except self._sqlite.DatabaseError as error:
            trouble = f"it is damaged: {error}"
            self._set_aside(f"is damaged ({error})")
        said = f"cannot write jobs to {self._path}: {trouble}; trying again"
        over = f"jobs are written to {self._path} again"
        self._throttle.log_change(logging.WARNING, "write", trouble, said, over)
        return trouble is None

    def read(self, since: float = 0.0) -> list[Row]:
        """Jobs since then."""
        return self._select("until > ? ORDER BY start DESC", since)

    def find(self, job: str) -> Row | None:
        """The job."""
        return next(iter(self._select("id = ?", job)), None)

    def _select(self, which: str, value: float | str) -> list[Row]:
        columns = ", ".join(Row._fields)
        try:
            with self._open() as file:
                found = file.execute(f"SELECT {columns} FROM jobs WHERE {which}", (value,))  # noqa: S608
                return [Row(*row) for row in found]
        except self._sqlite.Error as error:
            log.warning("cannot read jobs from %s: %s", self._path, error)
            return []

    def _prepare(self) -> None:
        if self._ready:
            return
        with self._open() as file:
            (version,) = file.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            self._set_aside(f"is of version {version}, not {_VERSION}")
        with self._open() as file:
            file.execute(_TABLE)
            file.execute(f"PRAGMA user_version = {_VERSION}")
        self._ready = True

    def _set_aside(self, why: str) -> None:
        """Rename the file: the next write begins a new one."""
        self._ready = False
        aside = self._path.with_name(f"{self._path.name}.aside")
        log.error("%s %s: renamed to %s, and a new one begun", self._path, why, aside)
        with suppress(OSError):
            self._path.with_name(f"{self._path.name}-journal").unlink(missing_ok=True)
            self._path.replace(aside)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """A connection for one transaction: SQLite's may not be shared by threads."""
        with closing(self._sqlite.connect(self._path, _PATIENCE_SECONDS)) as file, file:
            yield file


Store: TypeAlias = Memory | File


def row_of(document: Mapping[str, Any], text: str, until: float, holders: str | None) -> Row:
    """A job to be kept: its document, which `text` is, too."""
    owner = document["owner"]
    who = owner.get("namespace") or owner.get("user") or ""
    body = zlib.compress(text.encode(), 1)
    return Row(document["id"], who, document["start_seconds"], until, holders, body)


def holders_in(row: Row) -> dict[str, Any]:
    """What is needed to go on with a job; empty if it is over."""
    return dict(json.loads(row.holders)) if row.holders else {}
