"""Reading small kernel files, once or again and again: never more of one than is stated here.

A job can make its command line and environment as large as its memory, have children, open files
and network interfaces by the thousand, and mount what it likes: what it shapes is cut, and read
as far as that. All that is read below /proc and /sys is read by these.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.room import room

_FEW_BYTES = 1024
_MORE = 8
_MOST_AT_ONCE = 2048
"""The kernel hands out lists (seq_file) by the page: what is half a page or longer may go on."""
MOST_BYTES = 65_536
"""Sixteen pages: of a command line, an environment, a status."""
MANY_BYTES = 1_048_576
"""Of lists with a line for each mount or interface, of which large nodes have thousands."""
_KEPT_BYTES = 262_144
"""Of a file that is kept open: a list of 32 000 children, of 1 500 disks."""
_ENDS = (b"\n", b"\0", b" ")
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE})


class NoRoomError(Exception):
    """No more files can be opened. No OSError: it says nothing of the file that was wanted."""


class Part(NamedTuple):
    """The beginning of a file."""

    text: str
    whole: bool
    """Whether it is all of it."""


def read(path: Path | str, most: int = MOST_BYTES) -> str | None:
    """The text of `path`, or None where it cannot be read now; of a longer one the first part.

    At most `most` bytes, up to the last line, word or entry that is whole. A file that belongs
    to a process may vanish at any moment, a pressure file may be there and refuse (EOPNOTSUPP):
    both are no news. Raises NoRoomError.
    """
    part = read_part(path, most)
    return None if part is None else part.text


def read_part(path: Path | str, most: int = MOST_BYTES) -> Part | None:
    """As `read`, and whether that is all: what is left of a list is not the list."""
    try:
        descriptor = _open(path)
    except OSError:
        return None
    try:
        # Not read_bytes: that takes twice as long, and thousands are read this way.
        text = b""
        while len(text) <= most and (part := os.read(descriptor, most + 1 - len(text))):
            text += part
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return Part(_whole(text, most).decode(errors="replace"), len(text) <= most)


def listed(folder: Path | str, most: int) -> tuple[list[str], bool]:
    """Up to `most` names in `folder`, the first ones, and whether these are all.

    Raises OSError, and NoRoomError.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, most + 1)]
    except OSError as error:
        check_room(error)
        raise
    return names[:most], len(names) <= most


def _open(path: Path | str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        check_room(error)
        raise


def check_room(error: OSError) -> None:
    """Raise NoRoomError where `error` says so, and keep fewer files open from now on."""
    if error.errno in _NO_ROOM:
        room.shrink()
        raise NoRoomError(os.strerror(error.errno or 0)) from error


def _whole(text: bytes, most: int) -> bytes:
    """`text`, or what is whole of its first `most` bytes: half a number would be another one."""
    if len(text) <= most:
        return text
    return text[: max(text.rfind(end, 0, most) for end in _ENDS) + 1]


class KeptFile:
    """A file read every tick through one descriptor: a tenth of the cost of opening it anew.

    Where there is no room for one more, it is opened and closed each time.
    """

    __slots__ = ("_descriptor", "_long", "_path", "_size", "whole")

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._size = self._long = _FEW_BYTES
        self.whole = True
        """Whether the last `read` gave all that it says."""

    def read(self) -> bytes | None:
        """What it says now, None where it cannot be read. Raises NoRoomError."""
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
        return text

    def _read_anew(self) -> bytes | None:
        self.close()
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
        # Little room at first: room for more than is there costs more than a second read.
        while len(text := os.pread(descriptor, self._size, 0)) == self._size:
            if self._size > _KEPT_BYTES:
                break
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
        """Give the descriptor back; the next `read` opens the file again."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
            room.give()
