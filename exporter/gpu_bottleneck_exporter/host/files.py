"""Bounded reads of kernel files (/proc, /sys), whose sizes a job controls."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

_FIRST_READ_BYTES = 2048
"""Size of the first read: half a page or more (seq_file) may be incomplete."""
MAX_TEXT_BYTES = 65_536
"""Bytes of a command line, an environment or a status."""
MAX_TABLE_BYTES = 1_048_576
"""Bytes of a table of mounts or interfaces: nodes have thousands."""
MAX_LISTED = 4_096
"""Threads or open files listed per process, lowest numbers first."""
MAX_QUERIED_SOCKETS = 64
"""Sockets queried per sample of a process."""
MAX_CACHE_ENTRIES = 256
"""Entries per cache of connections, addresses or mounts."""


class FileLimitError(Exception):
    """The limit of open files is reached. Not an OSError: the file may be fine."""


P = ParamSpec("P")
T = TypeVar("T")


def none_if_malformed(parse: Callable[P, T]) -> Callable[P, T | None]:
    """`parse`, with None in place of ValueError and LookupError."""

    @wraps(parse)
    def parsed(*arguments: P.args, **options: P.kwargs) -> T | None:
        try:
            return parse(*arguments, **options)
        except (ValueError, LookupError):
            return None

    return parsed


@none_if_malformed
def parse_numbers(text: str | bytes) -> list[int]:
    """The decimal numbers in `text`."""
    return [int(word) for word in text.split()]


class FileText(NamedTuple):
    """The beginning of a file."""

    text: str
    whole: bool
    """Whether it is complete."""


def read(path: Path | str, most: int = MAX_TEXT_BYTES) -> str | None:
    """The text of `path`, cut after `most` bytes at a separator; None if unreadable.

    Failures are normal: processes end. Raises FileLimitError.
    """
    part = read_bounded(path, most)
    return None if part is None else part.text


def read_bounded(path: Path | str, most: int = MAX_TEXT_BYTES) -> FileText | None:
    """Like `read`, with completeness."""
    try:
        descriptor = _open(path)
    except OSError:
        return None
    return _read_and_close(descriptor, most)


def read_owned(path: Path | str, most: int) -> str | None:
    """The text of a regular file that only root or we can write; else None.

    Also None for a link or more than `most` bytes. Raises FileLimitError.
    """
    try:
        descriptor = _open(path, os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    status = os.fstat(descriptor)
    others_write = status.st_uid not in (0, os.geteuid()) or status.st_mode & stat.S_IWOTH
    if others_write or not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        return None
    part = _read_and_close(descriptor, most)
    return part.text if part and part.whole else None


def _read_and_close(descriptor: int, most: int) -> FileText | None:
    try:
        text, whole = _content(descriptor, most)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return FileText(text.decode(errors="replace"), whole)


def _content(descriptor: int, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of an open file, and whether these are all. Raises OSError."""
    text = os.pread(descriptor, _FIRST_READ_BYTES, 0)
    size = len(text)
    if size < _FIRST_READ_BYTES and size <= most:
        return text, True
    parts = [text]
    while size <= most and (part := os.pread(descriptor, most + 1 - size, size)):
        parts.append(part)
        size += len(part)
    text = b"".join(parts)
    if size <= most:
        return text, True
    # Half a number is a wrong number.
    return text[: max(text.rfind(end, 0, most) for end in (b"\n", b"\0", b" ")) + 1], False


def list_names(folder: Path | str, most: int) -> tuple[list[str], bool]:
    """The first `most` names, and whether these are all. Raises OSError, FileLimitError."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, most + 1)]
    except OSError as error:
        raise_if_file_limit(error)
        raise
    return names[:most], len(names) <= most


def list_numbers(folder: Path | str, most: int) -> list[int]:
    """The first `most` numbers; none if unreadable. Raises FileLimitError."""
    try:
        names, _ = list_names(folder, most)
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def _open(path: Path | str, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError as error:
        raise_if_file_limit(error)
        raise


def raise_if_file_limit(error: OSError) -> None:
    """Convert EMFILE and ENFILE."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        raise FileLimitError(os.strerror(error.errno or 0)) from error


def _max_kept_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # never infinite: fs.nr_open bounds it
    # 640 are for 128 clients, the driver and short reads; of a small limit, three quarters are.
    # 4 096 are enough to watch 800 processes.
    return min(max(soft - 640, soft // 4), 4_096)


def allow_many_files() -> None:
    """Raise the soft limit of open files; the hard one costs kernel memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        raised = max(soft, min(hard, 16_384))
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))


class KeptFile:
    """A file kept open, at a tenth of the cost; closed again if many are open."""

    __slots__ = ("_descriptor", "_path", "reopened", "whole")

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.whole = True
        """Whether the last `read` was complete."""
        self.reopened = True
        """Whether the last `read` opened the file, maybe another one than before."""

    def __del__(self) -> None:
        self.close()

    def read(self) -> bytes | None:
        """The content, cut as by `read`; None if unreadable. Raises FileLimitError."""
        self.reopened = self._descriptor is None
        text = None
        try:
            if self._descriptor is None:
                self._descriptor = _open(self._path)
            # Enough for 32 000 children or 1 500 disks.
            text, self.whole = _content(self._descriptor, 262_144)
        except OSError:
            self.close()
        # The lowest free number shows how many are open.
        if self.reopened and self._descriptor is not None and self._descriptor >= _max_kept_files():
            self.close()
        return text

    def close(self) -> None:
        """Close it until the next `read`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class KeptFiles(dict[Path | str, KeptFile]):
    """The kept files by path."""

    def __missing__(self, path: Path | str) -> KeptFile:
        self[path] = KeptFile(path)
        return self[path]

    def text(self, path: Path | str) -> str:
        """The content of `path`; empty if unreadable. Raises FileLimitError."""
        return (self[path].read() or b"").decode()
