"""Reading kernel files, once or every tick, within fixed limits.

A job can make its command line and environment as large as its memory, have thousands of
children, open files and network interfaces, and mount what it likes. So everything below /proc
and /sys is read through these functions, which cut what is too long.
"""

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

_AT_ONCE = 2048
"""The kernel returns lists (seq_file) by the page: after half a page or more, there may be more."""
MOST_BYTES = 65_536
"""Sixteen pages: for a command line, an environment, a status."""
MANY_BYTES = 1_048_576
"""For lists with a line per mount or interface: large nodes have thousands."""
_KEPT_BYTES = 262_144
"""For a file that stays open: enough to list 32 000 children or 1 500 disks."""
_ENDS = (b"\n", b"\0", b" ")
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE})
_WANTED_FILES = 16_384
"""Soft limit of open files that we set if the hard limit allows; more would cost kernel memory."""
_MOST_KEPT = 4_096
"""Files kept open at most: enough to watch 800 processes at a tenth of the cost."""
_RESERVE = 640
"""For clients, 128 at most, the driver, and files that are opened, read and closed."""
MOST_LISTED = 4_096
"""Threads, or open files, of a process that are listed: those with the lowest numbers."""
MOST_SOCKETS = 64
"""Sockets of a process that are queried per look."""
MOST_REMEMBERED = 256
"""Connections, their ends, remote addresses, and processes with their mounts, that are remembered:
a job may have as many as it likes."""


class NoRoomError(Exception):
    """No more files can be opened. Not an OSError, as it says nothing about the file itself."""


P = ParamSpec("P")
T = TypeVar("T")


def understood(parse: Callable[P, T]) -> Callable[P, T | None]:
    """`parse`, which returns None for a text that is not what the kernel writes."""

    @wraps(parse)
    def parsed(*arguments: P.args, **named: P.kwargs) -> T | None:
        try:
            return parse(*arguments, **named)
        except (ValueError, LookupError):
            return None

    return parsed


@understood
def numbers(text: str | bytes) -> list[int]:
    """The decimal numbers of which `text` consists."""
    return [int(word) for word in text.split()]


class Part(NamedTuple):
    """The beginning of a file."""

    text: str
    whole: bool
    """Whether this is the entire file."""


def read(path: Path | str, most: int = MOST_BYTES) -> str | None:
    """The text of `path`, cut after `most` bytes; None if it cannot be read now.

    A text that is too long ends with its last complete line, word or entry. Failures are normal:
    a process's files vanish with it, and a pressure file may exist but refuse to be read
    (EOPNOTSUPP). Raises NoRoomError.
    """
    part = read_part(path, most)
    return None if part is None else part.text


def read_part(path: Path | str, most: int = MOST_BYTES) -> Part | None:
    """Like `read`, for callers that must know whether the text is complete."""
    try:
        descriptor = _open(path)
    except OSError:
        return None
    return _part(descriptor, most)


def read_owned(path: Path | str, most: int) -> str | None:
    """The text of a regular file that only root or we can have written; None if it is none.

    None also for a link, for a file of more than `most` bytes, and if it cannot be read. Raises
    NoRoomError.
    """
    try:
        descriptor = _open(path, os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    found = os.fstat(descriptor)
    others_write = found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH
    if others_write or not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        return None
    part = _part(descriptor, most)
    return part.text if part and part.whole else None


def _part(descriptor: int, most: int) -> Part | None:
    """What `descriptor`, which is closed, holds."""
    try:
        text, whole = _content(descriptor, most)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return Part(text.decode(errors="replace"), whole)


def _content(descriptor: int, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of an open file, and whether these are all. Raises OSError."""
    text = os.pread(descriptor, _AT_ONCE, 0)
    size = len(text)
    if size < _AT_ONCE and size <= most:
        return text, True
    parts = [text]
    while size <= most and (part := os.pread(descriptor, most + 1 - size, size)):
        parts.append(part)
        size += len(part)
    text = b"".join(parts)
    if size <= most:
        return text, True
    # After the last separator: half a number is a wrong number.
    return text[: max(text.rfind(end, 0, most) for end in _ENDS) + 1], False


def listed(folder: Path | str, most: int) -> tuple[list[str], bool]:
    """At most `most` names in `folder`, and whether these are all. Raises OSError, NoRoomError."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, most + 1)]
    except OSError as error:
        check_room(error)
        raise
    return names[:most], len(names) <= most


def numbered(folder: Path | str, most: int) -> list[int]:
    """At most `most` numbers in `folder`; none if it cannot be listed. Raises NoRoomError."""
    try:
        names, _ = listed(folder, most)
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit()]


def _open(path: Path | str, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError as error:
        check_room(error)
        raise


def check_room(error: OSError) -> None:
    """Raise NoRoomError if `error` is EMFILE or ENFILE."""
    if error.errno in _NO_ROOM:
        raise NoRoomError(os.strerror(error.errno or 0)) from error


def _most_kept() -> int:
    """Number of files that may stay open: a part of what RLIMIT_NOFILE allows.

    A job has as many processes as it likes.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # never infinite: fs.nr_open bounds it
    # A limit too small for the reserve still leaves a quarter.
    return min(max(soft - _RESERVE, soft // 4), _MOST_KEPT)


def allow_many_files() -> None:
    """Raise the soft limit of open files to `_WANTED_FILES`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        wanted = max(soft, min(hard, _WANTED_FILES))
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class KeptFile:
    """A file read every tick through one open descriptor, at a tenth of the cost of reopening it.

    Once too many are open, it is opened and closed at each read. Whoever drops one need not close
    it, as where another file of the same process could not be opened.
    """

    __slots__ = ("_descriptor", "_path", "anew", "whole")

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.whole = True
        """Whether the last `read` returned the entire file."""
        self.anew = True
        """Whether the last `read` opened the file: the path may lead to another one than before."""

    def __del__(self) -> None:
        self.close()

    def read(self) -> bytes | None:
        """The content now, cut as by `read`; None if it cannot be read. Raises NoRoomError."""
        self.anew = self._descriptor is None
        text = None
        try:
            if self._descriptor is None:
                self._descriptor = _open(self._path)
            text, self.whole = _content(self._descriptor, _KEPT_BYTES)
        except OSError:
            self.close()
        # The kernel gives the lowest free number, so a new one tells how many are open.
        if self.anew and self._descriptor is not None and self._descriptor >= _most_kept():
            self.close()
        return text

    def close(self) -> None:
        """Close the descriptor; the next `read` opens the file again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class KeptFiles(dict[Path | str, KeptFile]):
    """Such files by path, made as they are asked for."""

    def __missing__(self, path: Path | str) -> KeptFile:
        self[path] = KeptFile(path)
        return self[path]

    def text(self, path: Path | str) -> str:
        """The content of `path` now; empty if it cannot be read. Raises NoRoomError."""
        return (self[path].read() or b"").decode()
