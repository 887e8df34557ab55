"""Storage of jobs: an SQLite file that outlives the exporter, or memory."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.generics import T
from gpu_bottleneck_exporter.logthrottle import LogThrottle

log = logging.getLogger(__name__)

MAX_ROW_BYTES = 512 * 1024
"""Size limit of a document: 112 MIG instances take 300 kB."""
NEWEST = (math.inf, "")
"""Upper bound of the end and id of rows."""
_LAST_ID = chr(0x10FFFF)
"""Upper bound of ids."""
_LOCK_TIMEOUT_SECONDS = 2.0
"""Timeout for another process's file lock, and for a disk that hangs."""


class Row(NamedTuple):
    """A stored job."""

    id: str
    account: str
    """Owner, for eviction."""
    until: float
    """End of the job, or of its last sample, in Unix seconds."""
    body: bytes
    """The document: ASCII, compressed."""

    def pieces(self, before: bytes) -> Iterator[bytes]:
        """`before` and the document, in pieces of at most 32 KiB."""
        unpacking, packed = zlib.decompressobj(), self.body
        while piece := before + unpacking.decompress(packed, 32 * 1024):
            yield piece
            before, packed = b"", unpacking.unconsumed_tail

    @property
    def text(self) -> str:
        """The document. Raises ValueError or zlib.error if it is damaged or too large."""
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(self.body, MAX_ROW_BYTES)
        if not unpacking.eof:
            raise ValueError("the document is truncated or too large")
        return text.decode()


def claim(path: str) -> None:
    """Lock the state file at `path` until this process ends; without a lock if the disk hangs.

    The lock (flock(2)) is on FILE.lock, as SQLite locks the file itself.

    Raises SettingsError if the file cannot be written, and ExporterError, which a restart may
    resolve, if it is in use or its disk is read-only.
    """
    results: list[ExporterError | None] = []
    late = threading.Event()

    def work() -> None:
        results.append(_refusal(path, _lock(path)))
        if late.is_set() and results[0]:
            log.warning("cannot use the file of jobs", {"err": results[0]})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_LOCK_TIMEOUT_SECONDS)
    late.set()
    if results and results[0]:
        raise results[0]


def _refusal(path: str, error: OSError | None) -> ExporterError | None:
    """The exception for an `error` of locking, if permanent."""
    flag = "--jobs.state-file:"
    if error is None:
        return None
    if error.errno == errno.EWOULDBLOCK:
        return ExporterError(f"{flag} {path} is in use by another exporter")
    message = f"{flag} cannot write {error.filename}: {error.strerror}"
    if error.errno == errno.EROFS:
        return ExporterError(message)
    permanent = {
        *(errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ENXIO),
        *(errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    }
    return SettingsError(message) if error.errno in permanent else None


def _lock(path: str) -> OSError | None:
    """Lock the lock file of `path`. Returns the error, if any."""
    try:
        with suppress(OSError):  # another user owns it
            if Path(path).is_file():
                Path(path).chmod(0o600)
        os.close(_opened(path))
        fcntl.flock(_opened(f"{os.path.realpath(path)}.lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    return None


def _opened(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class Store:
    """A table of jobs. Logs failures. Thread-safe."""

    def __init__(self, path: str, max_jobs: int, max_age_seconds: float) -> None:
        """A store in memory without `path`. The first call opens the file."""
        self._path = path or ":memory:"
        self._max_jobs, self._max_age_seconds = max_jobs, max_age_seconds
        self._file: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        """Device and inode."""
        self._lock = threading.Lock()
        self._throttle = LogThrottle(log)

    def write(self, rows: Collection[Row], now: float) -> bool:
        """Insert or replace `rows`, and evict expired and excess jobs; False if that fails."""

        def write(file: sqlite3.Connection) -> bool:
            file.execute("CREATE INDEX IF NOT EXISTS kept_jobs_by_end ON kept_jobs (until, id)")
            file.executemany("INSERT OR REPLACE INTO kept_jobs VALUES (?, ?, ?, ?)", rows)
            # A gap of twice the retention time indicates a wrong clock: the age of earlier jobs is
            # unknown. Jobs with an end in the future do not end such a gap.
            file.execute(
                """DELETE FROM kept_jobs WHERE until < :now - :seconds AND until > (
                SELECT ifnull(max(until), -9e999) FROM (
                    SELECT until, lead(until, 1, :now) OVER (ORDER BY until) - until AS gap
                    FROM kept_jobs WHERE until <= :now
                ) WHERE gap > 2 * :seconds)""",
                {"now": now, "seconds": self._max_age_seconds},
            )
            # Evicts the oldest job of the owner with the most jobs.
            file.execute(
                """DELETE FROM kept_jobs WHERE id IN (
                SELECT id FROM (
                    SELECT id, until, ROW_NUMBER() OVER (PARTITION BY who ORDER BY until DESC)
                    AS turn FROM kept_jobs
                ) ORDER BY turn, until DESC LIMIT -1 OFFSET ?)""",
                (self._max_jobs,),
            )
            return True

        return self._call("write", write) or False

    def read(self, since: float = 0.0, ids: str = "", last: str = _LAST_ID) -> list[Row] | None:
        """Jobs with ids from `ids` to `last` that ended after `since`; None on failure."""
        query, values = _select("*", "id BETWEEN ? AND ?"), (since, ids, last)
        return self._call("read", lambda file: [Row(*row) for row in file.execute(query, values)])

    def before(self, end: tuple[float, str], since: float) -> Row | None:
        """The last job below `end` that ended after `since`."""
        query = _select("*", "(until, id) < (?, ?)") + " LIMIT 1"
        row = self._call("read", lambda file: file.execute(query, (since, *end)).fetchone())
        return Row(*row) if row else None

    def names(
        self,
        ids: str = "",
        last: str = _LAST_ID,
        since: float = 0.0,
        end: tuple[float, str] = NEWEST,
    ) -> list[str] | None:
        """Ids of jobs as in `read`, up to `end`."""
        query = _select("id", "(until, id) <= (?, ?) AND id BETWEEN ? AND ?")
        values = since, *end, ids, last
        return self._call("read", lambda file: [name for (name,) in file.execute(query, values)])

    def close(self) -> None:
        """Close the file; the next call reopens it."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file:
            self._file.close()
        self._file = None

    def _call(self, verb: str, do: Callable[[sqlite3.Connection], T]) -> T | None:
        """Result of `do`; None on failure. Sets a damaged file aside."""
        if not self._lock.acquire(timeout=2 * _LOCK_TIMEOUT_SECONDS):
            return None
        trouble = result = None
        try:
            with self._opened() as file:
                result = do(file)
        except sqlite3.Error as error:
            trouble = f"{error}"
            # Python 3.10 has no codes, but a type for these.
            code = getattr(error, "sqlite_errorcode", 11 * (type(error) is sqlite3.DatabaseError))
            if code & 0xFF in (11, 26):  # SQLITE_CORRUPT, SQLITE_NOTADB
                trouble += self._set_aside()
        finally:
            self._lock.release()
        texts = f"cannot {verb} jobs; trying again", f"can {verb} jobs again"
        self._throttle.log_change(
            logging.WARNING, verb, trouble, texts, file=self._path, err=trouble
        )
        return result

    def _opened(self) -> sqlite3.Connection:
        """The file, reopened if replaced or removed."""
        if self._file is None or (self._place and self._place != _place(self._path)):
            self._close()
            if self._path != ":memory:":
                with suppress(OSError):  # SQLite reports the error
                    Path(self._path).touch(0o600)
                    Path(self._path).chmod(0o600)  # SQLite's journals take its mode
                self._place = _place(self._path)
            self._file = sqlite3.connect(self._path, _LOCK_TIMEOUT_SECONDS, check_same_thread=False)
            # Sorts need no temporary file, which may be impossible.
            self._file.execute("PRAGMA temp_store = MEMORY")
            self._file.text_factory = partial(str, encoding="utf-8", errors="replace")
        # A version with other columns must take another table name.
        self._file.execute(
            "CREATE TABLE IF NOT EXISTS kept_jobs "
            "(id TEXT PRIMARY KEY, who TEXT, until REAL, body BLOB)"
        )
        return self._file

    def _set_aside(self) -> str:
        """Rename the file. Returns a note for the log."""
        self._close()
        copies = [f"{self._path}.aside{n}" for n in ("", *range(2, 9))]
        aside = next((copy for copy in copies if not os.path.lexists(copy)), copies[-1])
        # Journals first, lest SQLite apply one to the new file.
        for suffix in ("-journal", "-wal", "-shm", ""):
            with suppress(OSError):
                Path(f"{self._path}{suffix}").replace(f"{aside}{suffix}")
        return f" (renamed to {aside})" if not os.path.lexists(self._path) else ""


def _select(columns: str, condition: str) -> str:
    """A query for jobs, last first, without rows of other origin."""
    return f"""SELECT {columns} FROM kept_jobs WHERE until > ? AND {condition}
        AND typeof(until) = 'real' AND typeof(id) = 'text'
        AND length(id) <= 128 AND length(who) <= 1024
        AND typeof(body) = 'blob' AND length(body) <= {MAX_ROW_BYTES}
        ORDER BY until DESC, id DESC"""  # noqa: S608 - literals only


def _place(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        stat = Path(path).stat()
        return stat.st_dev, stat.st_ino
    return None
