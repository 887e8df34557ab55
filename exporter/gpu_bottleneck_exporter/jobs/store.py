"""Where jobs are kept: a file of SQLite, which outlives the exporter, or else its memory."""

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
from typing import NamedTuple, TypeVar

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.logthrottle import LogThrottle

log = logging.getLogger(__name__)
T = TypeVar("T")

MOST_ROW_BYTES = 512 * 1024
"""Size limit of one document, packed or not: a job on 112 MIG instances is 300 kB."""
NEWEST = (math.inf, "")
"""Sorts above the end and id of every row."""
_LAST = chr(0x10FFFF)
"""Sorts above every id."""
_PIECE_BYTES = 32 * 1024
"""Size limit of what a slow client holds of a document beside its packed form."""
_PATIENCE_SECONDS = 2.0
"""Timeout for the file lock of another process, and for a thread that waits for the disk."""
_DAMAGE = frozenset({11, 26})
"""SQLITE_CORRUPT and SQLITE_NOTADB. A full, locked or read-only file has other codes."""
_MOST_ASIDE = 8
"""Damaged files that are kept; the last one is replaced."""
_EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNUSABLE = frozenset(
    {
        *(errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ENXIO),
        *(errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG),
    }
)
"""Errors that do not pass by themselves, as those of a full disk may."""
# Another version, with other columns, is to take another name.
_TABLE = """CREATE TABLE IF NOT EXISTS kept_jobs (
    id TEXT PRIMARY KEY, who TEXT, until REAL, body BLOB)"""
_INDEX = "CREATE INDEX IF NOT EXISTS kept_jobs_by_end ON kept_jobs (until, id)"
# Rows that the exporter cannot have written are passed over unread.
_FROM = f"""FROM kept_jobs WHERE until > ? AND typeof(until) = 'real' AND typeof(id) = 'text'
    AND length(id) <= 128 AND length(who) <= 1024
    AND typeof(body) = 'blob' AND length(body) <= {MOST_ROW_BYTES}"""
_ORDER = "ORDER BY until DESC, id DESC"
_READ = f"SELECT * {_FROM} AND id BETWEEN ? AND ? {_ORDER}"
_BEFORE = f"SELECT * {_FROM} AND (until, id) < (?, ?) {_ORDER} LIMIT 1"
_NAMES = f"SELECT id {_FROM} AND (until, id) <= (?, ?) AND id BETWEEN ? AND ? {_ORDER}"
_WRITE = "INSERT OR REPLACE INTO kept_jobs VALUES (?, ?, ?, ?)"
# A gap of twice the retention time tells a wrong clock: what ended before it has no known age.
# What ends in the future was written by a wrong clock, and is no end of such a gap.
_EXPIRE = """DELETE FROM kept_jobs WHERE until < :now - :seconds AND until > (
    SELECT ifnull(max(until), -9e999) FROM (
        SELECT until, lead(until, 1, :now) OVER (ORDER BY until) - until AS gap FROM kept_jobs
        WHERE until <= :now
    ) WHERE gap > 2 * :seconds)"""
# Everybody's newest is kept first, then everybody's second: whoever has most loses the oldest.
_EVICT = """DELETE FROM kept_jobs WHERE id IN (
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

    def pieces(self, before: bytes) -> Iterator[bytes]:
        """The document after `before`, unpacked while it is taken."""
        unpacking, packed = zlib.decompressobj(), self.body
        while piece := before + unpacking.decompress(packed, _PIECE_BYTES):
            yield piece
            before, packed = b"", unpacking.unconsumed_tail

    @property
    def text(self) -> str:
        """The document. Raises ValueError or zlib.error if it is damaged or too large."""
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(self.body, MOST_ROW_BYTES)
        if not unpacking.eof:
            raise ValueError("it is cut, or too large")
        return text.decode()


def claim(path: str) -> None:
    """Lock the state file at `path` for this process, until it ends.

    Two exporters with one file would replace each other's jobs. The lock is on FILE.lock, as
    SQLite has locks of its own on the file (flock(2); where a file system has none, nothing is
    locked). A disk that hangs is no reason to wait: jobs are kept once it answers.

    Raises SettingsError if the file cannot be written, and ExporterError if another exporter has
    it, or its disk is read-only: a restart may find that otherwise.
    """
    found: list[ExporterError | None] = []
    late = threading.Event()

    def work() -> None:
        found.append(_refusal(path, _lock(path)))
        if late.is_set() and found[0]:
            log.warning("cannot use the file of jobs", {"err": found[0]})

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    late.set()
    if found and found[0]:
        raise found[0]


def _refusal(path: str, error: OSError | None) -> ExporterError | None:
    """The sentence about an `error` of locking that does not pass by itself."""
    flag = "--jobs.state-file:"
    if error is None:
        return None
    if error.errno == errno.EWOULDBLOCK:
        return ExporterError(f"{flag} {path} is in use by another exporter")
    told = f"{flag} cannot write {error.filename}: {error.strerror}"
    if error.errno == errno.EROFS:
        return ExporterError(told)
    return SettingsError(told) if error.errno in _UNUSABLE else None


def _lock(path: str) -> OSError | None:
    """The error of opening `path` and locking its lock file, which stays open; None: locked."""
    try:
        with suppress(OSError):  # as the store does, where the file is ours
            if Path(path).is_file():
                Path(path).chmod(0o600)
        os.close(_opened(path))
        fcntl.flock(_opened(f"{os.path.realpath(path)}.lock"), _EXCLUSIVE)
    except OSError as error:
        return error
    return None


def _opened(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class Store:
    """A table of jobs; all methods may be called from any thread. What fails is logged."""

    def __init__(self, path: str, most: int, seconds: float) -> None:
        """At most so many, for so long. The file is opened by the first call: that may hang."""
        self._path = path or ":memory:"
        self._most, self._seconds = most, seconds
        self._file: sqlite3.Connection | None = None
        self._place: tuple[int, int] | None = None
        """Device and inode of the open file."""
        self._lock = threading.Lock()
        self._throttle = LogThrottle(log)

    def write(self, rows: Collection[Row], now: float) -> bool:
        """Keep `rows`, replace those known, forget what is too old; whether that succeeded."""

        def write(file: sqlite3.Connection) -> bool:
            file.execute(_INDEX)
            file.executemany(_WRITE, rows)
            file.execute(_EXPIRE, {"now": now, "seconds": self._seconds})
            file.execute(_EVICT, (self._most,))
            return True

        return self._call("write", write) or False

    def read(self, since: float = 0.0, ids: str = "", last: str = _LAST) -> list[Row] | None:
        """Jobs that ended after Unix time `since`, the last ones first; None if reading fails.

        All of them, or those with ids from `ids` to `last`.
        """
        span = since, ids, last
        return self._call("read", lambda file: [Row(*row) for row in file.execute(_READ, span)])

    def before(self, end: tuple[float, str], since: float) -> Row | None:
        """The last job whose end and id sort before `end`, if it ended after `since`."""
        row = self._call("read", lambda file: file.execute(_BEFORE, (since, *end)).fetchone())
        return Row(*row) if row else None

    def names(
        self, ids: str = "", last: str = _LAST, since: float = 0.0, end: tuple[float, str] = NEWEST
    ) -> list[str] | None:
        """Ids from `ids` to `last` of jobs as in `read`, up to `end`, an end and an id."""
        span = since, *end, ids, last
        return self._call("read", lambda file: [name for (name,) in file.execute(_NAMES, span)])

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file:
            self._file.close()
        self._file = None

    def _call(self, what: str, do: Callable[[sqlite3.Connection], T]) -> T | None:
        """Result of `do`, one call at a time; None if it fails, or the disk hangs.

        A damaged file is set aside, and costs what was in it.
        """
        if not self._lock.acquire(timeout=2 * _PATIENCE_SECONDS):
            return None
        trouble = result = None
        try:
            with self._opened() as file:
                result = do(file)
        except sqlite3.Error as error:
            trouble = f"{error}"
            # Python 3.10 knows no codes, but has a type for these two and rare others.
            code = getattr(error, "sqlite_errorcode", 11 * (type(error) is sqlite3.DatabaseError))
            if code & 0xFF in _DAMAGE:
                trouble += self._set_aside()
        finally:
            self._lock.release()
        texts = f"cannot {what} jobs; trying again", f"can {what} jobs again"
        self._throttle.log_change(
            logging.WARNING, what, trouble, texts, file=self._path, err=trouble
        )
        return result

    def _opened(self) -> sqlite3.Connection:
        """The file, opened anew if another one, or none, is at its path now."""
        if self._file is None or (self._place and self._place != _place(self._path)):
            self._close()
            if self._path != ":memory:":
                with suppress(OSError):  # SQLite says what is wrong
                    Path(self._path).touch(0o600)
                    Path(self._path).chmod(0o600)  # the mode of what SQLite adds to it, too
                self._place = _place(self._path)
            self._file = sqlite3.connect(self._path, _PATIENCE_SECONDS, check_same_thread=False)
            # A sort of many rows otherwise fails where no temporary file can be created.
            self._file.execute("PRAGMA temp_store = MEMORY")
            self._file.text_factory = partial(str, encoding="utf-8", errors="replace")
        self._file.execute(_TABLE)
        return self._file

    def _set_aside(self) -> str:
        """Rename the file, so that the next call begins a new one; what to tell."""
        self._close()
        copies = [f"{self._path}.aside{n}" for n in ("", *range(2, _MOST_ASIDE + 1))]
        aside = next((copy for copy in copies if not os.path.lexists(copy)), copies[-1])
        # Journals first: one that is left behind would be applied to the new file.
        for suffix in ("-journal", "-wal", "-shm", ""):
            with suppress(OSError):
                Path(f"{self._path}{suffix}").replace(f"{aside}{suffix}")
        return f" (renamed to {aside})" if not os.path.lexists(self._path) else ""


def _place(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at `path`; None if there is none."""
    with suppress(OSError):
        found = Path(path).stat()
        return found.st_dev, found.st_ino
    return None
