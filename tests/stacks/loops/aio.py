"""Linux's asynchronous reads without a library: io_submit and io_uring, by system call."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path

_SETUP, _GETEVENTS, _SUBMIT = 206, 208, 209
_URING_SETUP, _URING_ENTER = 425, 426
"""Numbers of system calls; the first three are x86_64's."""
_PREAD = 0
_IORING_OP_READ = 22
_GET_EVENTS = 1
_DEPTH = 32
_EVENT_BYTES, _ENTRY_BYTES, _COMPLETION_BYTES = 32, 64, 16
_SQ_RING, _CQ_RING, _ENTRIES = 0, 0x8000000, 0x10000000
BLOCK = 2**20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Aio:
    """Reads blocks of a file, past the page cache, through io_submit."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._memory = mmap.mmap(-1, _DEPTH * BLOCK)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._context = ctypes.c_ulong(0)
        _call(_SETUP, _DEPTH, ctypes.byref(self._context))

    def read(self, offsets: Sequence[int]) -> None:
        """Submit them all, and wait for all."""
        blocks = []
        for index, offset in enumerate(offsets):
            address = self._address + index * BLOCK
            fields = (index, 0, 0, _PREAD, 0, self._file, address, BLOCK, offset, 0, 0, 0)
            blocks.append(ctypes.create_string_buffer(struct.pack("<QIIHhIQQqQII", *fields), 64))
        pointers = (ctypes.c_void_p * len(blocks))(*(ctypes.addressof(b) for b in blocks))
        _call(_SUBMIT, self._context, len(blocks), pointers)
        events = ctypes.create_string_buffer(_EVENT_BYTES * _DEPTH)
        _call(_GETEVENTS, self._context, len(blocks), _DEPTH, events, None)
        for index in range(len(blocks)):
            _, _, result, _ = struct.unpack_from("<QQqq", events, index * _EVENT_BYTES)
            if result != BLOCK:
                raise OSError(-result, "io_submit")


class Uring:
    """Reads blocks of a file, past the page cache, through io_uring."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        self._memory = mmap.mmap(-1, _DEPTH * BLOCK)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        parameters = ctypes.create_string_buffer(120)
        self._ring = _call(_URING_SETUP, _DEPTH, parameters)
        numbers = struct.unpack_from("<30I", parameters.raw)
        self._entries, self._completions = numbers[0], numbers[1]
        self._sq, self._cq = numbers[10:20], numbers[20:30]
        size = self._sq[6] + 4 * self._entries
        self._requests = mmap.mmap(self._ring, size, offset=_SQ_RING)
        size = self._cq[5] + _COMPLETION_BYTES * self._completions
        self._answers = mmap.mmap(self._ring, size, offset=_CQ_RING)
        self._slots = mmap.mmap(self._ring, _ENTRY_BYTES * self._entries, offset=_ENTRIES)

    def read(self, offsets: Sequence[int]) -> None:
        """Submit them all, and wait for all."""
        tail = _number(self._requests, self._sq[1])
        for index, offset in enumerate(offsets):
            slot = (tail + index) % self._entries
            address = self._address + index * BLOCK
            entry = struct.pack(
                "<BBHiQQIIQ", _IORING_OP_READ, 0, 0, self._file, offset, address, BLOCK, 0, index
            )
            start = slot * _ENTRY_BYTES
            self._slots[start : start + _ENTRY_BYTES] = entry.ljust(_ENTRY_BYTES, b"\0")
            struct.pack_into("<I", self._requests, self._sq[6] + 4 * slot, slot)
        struct.pack_into("<I", self._requests, self._sq[1], (tail + len(offsets)) & 0xFFFFFFFF)
        count = len(offsets)
        _call(_URING_ENTER, self._ring, count, count, _GET_EVENTS, None, 0)
        head, end = (_number(self._answers, self._cq[part]) for part in (0, 1))
        while head != end:
            place = self._cq[5] + (head % self._completions) * _COMPLETION_BYTES
            _, result, _ = struct.unpack_from("<QiI", self._answers, place)
            if result != BLOCK:
                raise OSError(-result, "io_uring")
            head = (head + 1) & 0xFFFFFFFF
        struct.pack_into("<I", self._answers, self._cq[0], end)


def _number(memory: mmap.mmap, offset: int) -> int:
    number: int = struct.unpack_from("<I", memory, offset)[0]
    return number


def _call(number: int, *arguments: object) -> int:
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}")
    return result
