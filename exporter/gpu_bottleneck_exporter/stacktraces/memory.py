"""Another process's memory, read as a debugger would, without stopping the process."""

from __future__ import annotations

import ctypes
import errno
import os
import time

_ROOM = 4096
MOST_AT_ONCE = 262_144
"""Bytes: the table of lines of a very long function."""
_libc = ctypes.CDLL(None, use_errno=True)


class UnreadableError(Exception):
    """What should be there is not: the process changed it meanwhile, or it is nonsense."""


class NoMemoryError(Exception):
    """The process cannot be read at all: the message, a clause about it, says why."""


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Memory:
    """The memory of process `pid`, which is of our own PID namespace."""

    def __init__(self, pid: int) -> None:
        self.until = 0.0
        """When to stop (`time.monotonic`), whatever is asked for next."""
        self._pid = pid
        # Kept, as that takes a third off each read. One that hangs may write to it much later.
        self._room = (ctypes.c_char * _ROOM)()
        self._ours, self._theirs = _Vector(), _Vector()
        self._at = ctypes.byref(self._ours), ctypes.byref(self._theirs)

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`. Raises UnreadableError, NoMemoryError."""
        makes_sense = 0 < address < 1 << 63 and 0 <= size <= MOST_AT_ONCE
        if not makes_sense or time.monotonic() > self.until:
            raise UnreadableError
        room = self._room if size <= _ROOM else (ctypes.c_char * size)()
        self._ours.address, self._theirs.address = ctypes.addressof(room), address
        self._ours.size = self._theirs.size = size
        ours, theirs = self._at
        if _libc.process_vm_readv(self._pid, ours, 1, theirs, 1, 0) == size:
            return ctypes.string_at(room, size)
        number = ctypes.get_errno()
        if number == errno.ESRCH:
            raise NoMemoryError("it has ended")
        if number in (errno.EPERM, errno.ENOSYS):
            raise NoMemoryError(f"its memory cannot be read: {os.strerror(number)}")
        raise UnreadableError

    def pointer(self, address: int) -> int:
        """The address that is stored at `address`."""
        return word(self.read(address, 8), 0)


def word(raw: bytes, at: int, size: int = 8) -> int:
    """The number of `size` bytes that begins at `at`."""
    return int.from_bytes(raw[at : at + size], "little")
