"""Reading kernel files, once or every tick, within fixed limits.

A job can make its command line and environment as large as its memory, have thousands of
children, open files and network interfaces, and mount what it likes. So everything below /proc
and /sys is read through these functions, which cut what is too long.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from gpu_bottleneck_exporter.host.room import room

_FEW_BYTES = 1024
_MORE = 8
_MOST_AT_ONCE = 2048
"""The kernel returns lists (seq_file) by the page: after half a page or more, there may be more."""
MOST_BYTES = 65_536
"""Sixteen pages: for a command line, an environment, a status."""
MANY_BYTES = 1_048_576
"""For lists with a line per mount or interface: large nodes have thousands."""
_KEPT_BYTES = 262_144
"""For a file that stays open: enough to list 32 000 children or 1 500 disks."""
_ENDS = (b"\n", b"\0", b" ")
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE})


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
        except (ValueError, IndexError):
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
        # Not Path.read_bytes, which takes twice as long: thousands of files are read this way.
        text = b""
        while len(text) <= most and (part := os.read(descriptor, most + 1 - len(text))):
            text += part
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return Part(_whole(text, most).decode(errors="replace"), len(text) <= most)


def listed(folder: Path | str, most: int) -> tuple[list[str], bool]:
    """At most `most` names in `folder`, and whether these are all. Raises OSError, NoRoomError."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, most + 1)]
    except OSError as error:
        check_room(error)
        raise
    return names[:most], len(names) <= most


def _open(path: Path | str, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    except OSError as error:
        check_room(error)
        raise


def check_room(error: OSError) -> None:
    """Raise NoRoomError if `error` is EMFILE or ENFILE; then fewer files are kept open."""
    if error.errno in _NO_ROOM:
        room.shrink()
        raise NoRoomError(os.strerror(error.errno or 0)) from error


def _whole(text: bytes, most: int) -> bytes:
    """`text` cut to `most` bytes, after the last separator: half a number is a wrong number."""
    if len(text) <= most:
        return text
    return text[: max(text.rfind(end, 0, most) for end in _ENDS) + 1]


class KeptFile:
    """A file read every tick through one open descriptor, at a tenth of the cost of reopening it.

    Without room for one more open file, it is opened and closed at each read. Whoever drops one
    need not close it, as where another file of the same process could not be opened.
    """

    __slots__ = ("_descriptor", "_long", "_path", "_size", "anew", "whole")

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor: int | None = None
        # The size of a read, and the length from which on it may not be everything.
        self._size = self._long = _FEW_BYTES
        self.whole = True
        """Whether the last `read` returned the entire file."""
        self.anew = True
        """Whether the last `read` opened the file: the path may lead to another one than before."""

    def __del__(self) -> None:
        self.close()

    def read(self) -> bytes | None:
        """Its content now, cut as by `read`; None if it cannot be read. Raises NoRoomError."""
        descriptor = self._descriptor
        if descriptor is None or room.crowded:
            return self._read_anew()
        try:
            text = os.pread(descriptor, self._size, 0)
            if len(text) >= self._long:
                return self._read(descriptor)
        except OSError:
            self.close()
            return None
        self.whole = True
        self.anew = False
        return text

    def _read_anew(self) -> bytes | None:
        self.close()
        self.anew = True
        try:
            descriptor = _open(self._path)
        except OSError:
            return None
        kept = room.take()
        try:
            text = self._read(descriptor)
        except OSError:
            text = None
        if kept:
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        if text is None:
            self.close()
        return text

    def _read(self, descriptor: int) -> bytes:
        # Start with a small buffer: allocating one that is too large costs more than a second read.
        while len(text := os.pread(descriptor, self._size, 0)) == self._size:
            if self._size > _KEPT_BYTES:
                break
            # A full buffer may hide more; it stays larger for the next reads.
            self._size *= _MORE
            self._long = min(self._size, _MOST_AT_ONCE)
        if len(text) >= _MOST_AT_ONCE:
            text = self._rest(descriptor, text)
        self.whole = len(text) <= _KEPT_BYTES
        return _whole(text, _KEPT_BYTES)

    def _rest(self, descriptor: int, text: bytes) -> bytes:
        parts, size = [text], len(text)
        while size <= _KEPT_BYTES and (part := os.pread(descriptor, self._size, size)):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the descriptor; the next `read` opens the file again."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
            room.give()
