"""Which descriptors a sleeping thread waits on: its system call and that call's arguments.

/proc/PID/task/TID/syscall (CONFIG_HAVE_ARCH_TRACEHOOK) takes the permission to ptrace, and so
does reading the arguments of poll(2) and select(2).
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Iterable

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.files import understood

_CALLS = {
    "x86_64": ({0, 19, 45, 47, 299, 43, 288, 42, 1, 44, 46}, {7, 271}, {23, 270}),
    "aarch64": ({63, 65, 207, 212, 243, 202, 242, 203, 64, 206, 211}, {73}, {72}),
}
"""Numbers of system calls by architecture.

First those whose first argument is the descriptor they wait on: read, readv, recvfrom, recvmsg,
recvmmsg, accept, accept4, connect, write, sendto, sendmsg. Then poll and ppoll, with an array of
struct pollfd and its length. Then select and pselect6, with a number of bits and the bit sets of
those to read and to write.
"""
_ON_ONE, _POLL, _SELECT = _CALLS.get(platform.machine(), (set(), set(), set()))
_MOST_POLLED = 64
_MOST_SELECTED = 1024
"""FD_SETSIZE."""
_POLLFD = struct.Struct("=ihh")
_libc = ctypes.CDLL(None, use_errno=True)
_MOST_BYTES = _MOST_POLLED * _POLLFD.size
_iovec = ctypes.c_size_t * 2
"""struct iovec: an address and a size."""


@understood
def waits_on(pid: int, call: bytes | None) -> tuple[int, ...] | None:
    """The descriptors on which a thread of process `pid` waits; None: any, or unknown.

    `call` is the text of its syscall file. Returns at most 64; nothing but their numbers is read
    from the process's memory.
    """
    words = (call or b"").split()
    if len(words) < 4 or not words[0].isdigit():  # noqa: PLR2004 - "running", "-1 SP PC"
        return None
    number, (first, second, third) = int(words[0]), (int(word, 16) for word in words[1:4])
    if number in _ON_ONE:
        return (first,)
    if number in _POLL:
        return _polled(pid, first, second)
    return _selected(pid, first, (second, third)) if number in _SELECT else None


def _polled(pid: int, address: int, count: int) -> tuple[int, ...] | None:
    array = _read(pid, address, min(count, _MOST_POLLED) * _POLLFD.size)
    if array is None:
        return None
    return tuple(fd for fd, _, _ in _POLLFD.iter_unpack(array) if fd >= 0)


def _selected(pid: int, count: int, addresses: Iterable[int]) -> tuple[int, ...] | None:
    if count > _MOST_SELECTED:
        return None
    found: set[int] = set()
    words = -(-count // 64)
    for address in filter(None, addresses):
        raw = _read(pid, address, words * 8)
        if raw is None:
            return None
        bits = int.from_bytes(raw, sys.byteorder)
        found.update(number for number in range(count) if bits >> number & 1)
    return tuple(sorted(found)[:_MOST_POLLED])


def _read(pid: int, address: int, size: int) -> bytes | None:
    """Read `size` bytes of the memory of process `pid`, at most `_MOST_BYTES`; None: no answer."""
    return aside.call(pid, lambda: _read_now(pid, address, min(size, _MOST_BYTES)))


def _read_now(pid: int, address: int, size: int) -> bytes | None:
    # A new buffer for each call: one that hangs may still write to its buffer much later.
    room = ctypes.create_string_buffer(size)
    ours, theirs = _iovec(ctypes.addressof(room), size), _iovec(address, size)
    got = _libc.process_vm_readv(pid, ours, 1, theirs, 1, 0)
    return room.raw if got == size else None
