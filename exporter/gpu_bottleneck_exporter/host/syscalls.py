"""Which descriptors a sleeping thread waits on: its system call and that call's arguments.

/proc/PID/task/TID/syscall (CONFIG_HAVE_ARCH_TRACEHOOK) takes the right to ptrace, and so does
reading the array that poll(2) was given.
"""

from __future__ import annotations

import ctypes
import platform
import struct

_ON_ONE = {
    # read, readv, recvfrom, recvmsg, recvmmsg, accept, accept4, connect, write, sendto, sendmsg
    "x86_64": frozenset({0, 19, 45, 47, 299, 43, 288, 42, 1, 44, 46}),
    "aarch64": frozenset({63, 65, 207, 212, 243, 202, 242, 203, 64, 206, 211}),
}
"""Calls whose first argument is the descriptor that they wait on, by architecture."""
_POLL = {"x86_64": frozenset({7, 271}), "aarch64": frozenset({73})}
"""poll and ppoll: an array of descriptors, and how many."""
_MOST_POLLED = 64
_POLLFD = struct.Struct("=ihh")
_MACHINE = platform.machine()


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_buffer = ctypes.create_string_buffer(_MOST_POLLED * _POLLFD.size)


def waits_on(pid: int, call: bytes | None) -> tuple[int, ...] | None:
    """Descriptors on which a thread of process `pid` waits; None: any, or unknown.

    `call` is its syscall file. At most 64 are told; of what the process polls nothing is read
    but the numbers.
    """
    words = (call or b"").split()
    if len(words) < 3 or not words[0].isdigit():  # noqa: PLR2004 - "running", "-1 SP PC"
        return None
    number = int(words[0])
    if number in _ON_ONE.get(_MACHINE, ()):
        return (int(words[1], 16),)
    if number in _POLL.get(_MACHINE, ()):
        return _polled(pid, int(words[1], 16), int(words[2], 16))
    return None


def _polled(pid: int, address: int, count: int) -> tuple[int, ...] | None:
    size = min(count, _MOST_POLLED) * _POLLFD.size
    ours = _Span(ctypes.addressof(_buffer), size)
    theirs = _Span(address, size)
    got = _libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
    if got != size:
        return None
    return tuple(fd for fd, _, _ in _POLLFD.iter_unpack(_buffer.raw[:size]) if fd >= 0)
