"""Another process's memory, read as a debugger would, without stopping the process."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_POINTER = struct.Struct("=Q")
_MOST_AT_ONCE = 262_144
"""Bytes: a table of lines of a very long function."""
_libc = ctypes.CDLL(None, use_errno=True)


class UnreadableError(Exception):
    """Nothing readable is there: the process changed it meanwhile, or it is nonsense."""


class NoMemoryError(Exception):
    """The process cannot be read at all: its message says why."""


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Memory:
    """The memory of process `pid` of our own PID namespace."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # Kept: a third of the time. A call that hangs may write to it much later.
        self._room = (ctypes.c_char * _MOST_AT_ONCE)()
        self._ours = _Vector(ctypes.addressof(self._room), 0)
        self._theirs = _Vector(0, 0)
        self._at = (ctypes.byref(self._ours), ctypes.byref(self._theirs))

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`. Raises UnreadableError, NoMemoryError."""
        if not 0 < address < 1 << 64 or not 0 <= size <= _MOST_AT_ONCE:
            raise UnreadableError
        self._ours.size = self._theirs.size = size
        self._theirs.address = address
        ours, theirs = self._at
        if _libc.process_vm_readv(self._pid, ours, 1, theirs, 1, 0) != size:
            raise _error(ctypes.get_errno())
        return self._room[:size]

    def unpack(self, what: struct.Struct, address: int) -> tuple[int, ...]:
        """What is packed at `address`."""
        return what.unpack(self.read(address, what.size))

    def pointer(self, address: int) -> int:
        """The address that is stored at `address`."""
        return _POINTER.unpack(self.read(address, 8))[0]


def _error(number: int) -> Exception:
    if number == errno.ESRCH:
        return NoMemoryError("it has ended")
    if number in (errno.EPERM, errno.ENOSYS):
        return NoMemoryError(f"its memory cannot be read: {os.strerror(number)}")
    return UnreadableError()
