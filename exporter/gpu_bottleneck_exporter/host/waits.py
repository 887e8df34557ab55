"""What a thread waits for, from its state letter and its wait channel (/proc/PID/wchan).

And on which descriptors: its system call (/proc/PID/syscall, CONFIG_HAVE_ARCH_TRACEHOOK) and the
arguments of poll(2) and select(2). Channel, call and arguments take the permission to ptrace.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.files import MOST_SOCKETS, understood


class Wait(Enum):
    """What a thread is doing, or what it sleeps in."""

    RUN = "run"
    """Running or runnable; only the scheduler's counters (schedstat) tell them apart."""
    DISK = "disk"
    """A file: uninterruptible sleep, or in one of `_STORAGE`."""
    SOCKET = "socket"
    """Receiving, sending or connecting; also reading from a terminal (`wait_woken`)."""
    POLL = "poll"
    """Several descriptors, whichever is ready first: poll, select, epoll."""
    ACCEPT = "accept"
    """A server's next client."""
    LOCK = "lock"
    """Another thread or process: a futex or a semaphore."""
    PIPE = "pipe"
    """A pipe or a UNIX socket."""
    RING = "ring"
    """Completions of an io_uring ring: of files, sockets or its own timer."""
    AIO = "aio"
    """Completions of kernel AIO (io_getevents)."""
    TIMER = "timer"
    CHILD = "child"
    """The end of a child process."""
    PROGRAM = "program"
    """The program's own memory map (mmap_lock), or a child of vfork until it calls execve."""
    MEMORY = "memory"
    """Room in a control group: throttled above memory.high, or out of memory."""
    DRIVER = "driver"
    """A lock of the GPU's driver."""
    FROZEN = "frozen"
    """Thawing of its control group."""
    STOPPED = "stopped"
    """Stopped by a signal or a debugger."""
    OTHER = "other"
    UNKNOWN = "unknown"
    """Asleep, but we may not read in what."""
    GONE = "gone"

    def __init__(self, name: str) -> None:
        self.asleep = name not in {"run", "disk", "program", "memory", "driver", "gone"}
        """Whether the wait leaves open for what: a deep probe may tell."""
        self.submitted = name in {"ring", "aio"}
        """Whether it ends once the kernel has done what the process submitted."""
        self.for_threads = name in {"lock", "poll", "pipe"}
        """Whether a first thread sleeps so until another one has something for it."""
        self.serves = name in {"accept", "poll", "lock", "socket", "ring"}
        """Whether a server's first thread sleeps so: for a client, or for its serving threads."""
        self.on_any = name in {"socket", "poll", "accept", "ring"}
        """Whether it is on a descriptor: on any of them, if the system call does not name it."""
        self.on_descriptors = self.on_any or name in {"pipe", "unknown"}
        """Whether the system call may name the descriptors."""

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow at each look."""


REMOTE_CHANNELS = (
    "rpc_wait_bit_killable",  # net/sunrpc/sched.c, NFS; from the source
    "nfs",  # fs/nfs; from the source
    "cl_sync_io_wait",  # Lustre, obdclass/cl_io.c; from the source
    "ptlrpc_",  # Lustre; from the source
    "ceph_",  # fs/ceph; from the source
    "netfs_",  # fs/netfs, under NFS, Ceph, 9p and AFS; from the source
    "p9_",  # net/9p; from the source
)
"""Channels in which a thread waits for a remote file system."""
FUSE_CHANNELS = (
    "request_wait_answer",  # fs/fuse/dev.c; tried with and without direct I/O
    "fuse_",  # fs/fuse; from the source
)
_STORAGE = (
    *REMOTE_CHANNELS,
    *FUSE_CHANNELS,
)
"""Channels in which a thread waits for a file though its sleep is interruptible (state S)."""
_BY_CHANNEL: tuple[tuple[Wait, tuple[str, ...]], ...] = (
    (Wait.DISK, _STORAGE),
    (Wait.RING, ("io_cqring_",)),  # io_uring/io_uring.c; tried, with a timeout, too
    (Wait.AIO, ("read_events",)),  # fs/aio.c, io_getevents; tried
    (Wait.ACCEPT, ("inet_csk_accept",)),
    (Wait.SOCKET, ("sk_", "tcp_", "inet_", "udp_", "wait_woken", "__skb_")),
    (Wait.LOCK, ("futex", "__futex", "do_sem", "__do_sem", "msg_")),
    (Wait.PIPE, ("pipe_", "anon_pipe", "fifo_", "unix_")),
    (
        Wait.POLL,
        ("do_epoll_wait", "ep_poll", "do_poll", "do_sys_poll", "poll_schedule", "do_select"),
    ),
    (Wait.TIMER, ("hrtimer_nanosleep", "do_nanosleep")),
    (Wait.CHILD, ("do_wait", "kernel_wait4")),
    # Freezer of cgroup v2, kernel/signal.c; the latter tried.
    (Wait.FROZEN, ("do_freezer_trap", "get_signal")),
)
"""Channels of tasks that sleep interruptibly (state S)."""
_NEEDS_LETTER = frozenset({Wait.DISK, Wait.FROZEN})
"""Waits in whose channels tasks also sleep uninterruptibly, or are stopped."""
_UNINTERRUPTIBLE: tuple[tuple[Wait, tuple[str, ...]], ...] = (
    (
        Wait.PROGRAM,
        (
            *("vm_mmap_pgoff", "__vm_munmap", "vm_munmap"),  # mm/util.c, mm/mmap.c; tried
            *("do_madvise", "do_mprotect_pkey", "__mm_populate", "do_mlock"),  # mm; from the source
            *("__do_sys_brk", "__x64_sys_brk", "__do_sys_mremap", "__x64_sys_mremap"),
            *("lock_mm_and_find_vma", "do_user_addr_fault", "__do_page_fault"),  # page faults
            *("dup_mm", "mmap_read_lock", "mmap_write_lock"),
            *("kernel_clone", "_do_fork"),  # kernel/fork.c; vfork, tried
        ),
    ),
    (
        Wait.MEMORY,
        (
            *("mem_cgroup_handle_over_high", "__mem_cgroup_handle_over_high"),  # from the source
            *("mem_cgroup_oom_", "reclaim_throttle", "throttle_direct_reclaim"),  # first one tried
        ),
    ),
    (Wait.FROZEN, ("__refrigerator",)),  # kernel/freezer.c, cgroup v1; tried
    (
        Wait.DRIVER,
        (
            *("os_acquire_", "uvm_", "rm_", "_nv"),
            *("amdgpu_", "kfd_", "drm_", "ttm_", "dma_fence_", "dma_resv_", "i915_", "xe_"),
        ),
    ),
)
"""Channels of tasks in state D that wait for no file."""
_DRIVERS_TOO = re.compile("nv(?!me|mf|m_|fs|dimm)")
"""Not NVMe, NVM and the driver that reads files into GPUs (GPUDirect Storage): these are storage.
"""
_SEMAPHORE = re.compile("(?:call_)?rwsem_")
"""Kernels that name the lock in place of its user: of a memory map, or of a file."""
DEEP_SLEEP = "DK"
"""State letters of uninterruptible sleep."""
_BY_LETTER = {
    "R": Wait.RUN,
    **dict.fromkeys(DEEP_SLEEP, Wait.DISK),
    **dict.fromkeys("Tt", Wait.STOPPED),
    **dict.fromkeys("ZXx", Wait.GONE),
}


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
_RING_ENTER, _BY_INDEX = 426, 16
"""io_uring_enter, of the same number on every architecture, and the flag with which its first
argument is no descriptor (IORING_ENTER_REGISTERED_RING, Linux 5.18)."""
_WAIT4, _WAITID = {"x86_64": (61, 247), "aarch64": (260, 95)}.get(platform.machine(), (None, None))
_MAX_PID = 2**22
"""PID_MAX_LIMIT; a process group is a negative number."""
_MOST_SELECTED = 1024
"""FD_SETSIZE."""
_ON_MEMORY_MAP = {
    "x86_64": {9, 10, 11, 12, 25, 27, 28, 56, 57, 58, 149, 150, 151, 329, 435},
    "aarch64": {214, 215, 216, 220, 222, 226, 228, 229, 230, 232, 233, 288, 435},
}.get(platform.machine(), set[int]())
"""Numbers of system calls that lock the memory map: mmap, mprotect, munmap, brk, mremap, mincore,
madvise, mlock and its kin, and fork, which copies it."""
_PAGE_FAULT = -1
"""In place of a call's number: the fault may wait for the memory map, or for a file."""
_POLLFD = struct.Struct("=ihh")
_libc = ctypes.CDLL(None, use_errno=True)
_iovec = ctypes.c_size_t * 2
"""struct iovec: an address and a size."""


def wait_of(
    letter: str, channel: bytes | None, call: Callable[[], bytes | None] = lambda: None
) -> Wait:
    """What a thread in state `letter` and in `channel` waits for.

    The channel reads "0" without the permission to ptrace: that means unknown, not running.
    `call` reads its syscall file, which few channels take.
    """
    if letter in DEEP_SLEEP and channel:
        return _uninterruptible(channel, call) or Wait.DISK
    if letter in _BY_LETTER:
        return _BY_LETTER[letter]
    if not channel or channel == b"0":
        return Wait.UNKNOWN
    return _in_channel(channel) or Wait.OTHER


@cache
def asleep_in(channel: bytes) -> Wait | None:
    """What a thread in `channel` waits for; None if the state letter is needed too.

    Threads sleep in most channels in state S only: there the channel is enough.
    """
    found = _in_channel(channel)
    return None if found in _NEEDS_LETTER else found


def _uninterruptible(channel: bytes, call: Callable[[], bytes | None]) -> Wait | None:
    name = channel.decode(errors="replace")
    if _DRIVERS_TOO.match(name):
        return Wait.DRIVER
    if _SEMAPHORE.match(name):
        return Wait.PROGRAM if _number(call()) in {*_ON_MEMORY_MAP, _PAGE_FAULT} else None
    if name == "0":  # still on the run queue of a crowded CPU (since Linux 6.12), or not told
        return Wait.PROGRAM if _number(call()) in _ON_MEMORY_MAP else None
    found = next((wait for wait, names in _UNINTERRUPTIBLE if name.startswith(names)), None)
    # The freezer of cgroup v1 leaves tasks in their channels since Linux 6.1, in state D.
    return found or _in_channel(channel)


@understood
def _number(call: bytes | None) -> int:
    return int((call or b"").split()[0])


def _in_channel(channel: bytes) -> Wait | None:
    name = channel.decode(errors="replace")
    return next((wait for wait, prefixes in _BY_CHANNEL if name.startswith(prefixes)), None)


@understood
def waits_on(pid: int, call: bytes | None) -> tuple[int, ...] | None:
    """The descriptors on which a thread of process `pid` waits; None: any, or unknown.

    `call` is the text of its syscall file. Returns at most `MOST_SOCKETS`, as more are not asked;
    nothing but their numbers is read from the process's memory.
    """
    # Fails for `running`, and for `-1 SP PC` of a thread that is in no call.
    number, first, second, third, fourth = (int(word, 0) for word in (call or b"").split()[:5])
    if number == _RING_ENTER:
        return None if fourth & _BY_INDEX else (first,)
    if number in _ON_ONE:
        return (first,)
    if number in _POLL:
        return _polled(pid, first, second)
    return _selected(pid, first, (second, third)) if number in _SELECT else None


@understood
def awaited_child(call: bytes | None) -> int:
    """The pid of the child for whose end a thread waits; 0: any, or unknown."""
    number, first, second = (int(word, 0) for word in (call or b"").split()[:3])
    if number == _WAITID:
        return second if first == os.P_PID else 0
    return first if number == _WAIT4 and first < _MAX_PID else 0


def _polled(pid: int, address: int, count: int) -> tuple[int, ...] | None:
    array = _read(pid, address, min(count, MOST_SOCKETS) * _POLLFD.size)
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
    return tuple(sorted(found)[:MOST_SOCKETS])


def _read(pid: int, address: int, size: int) -> bytes | None:
    """Read `size` bytes of the memory of process `pid`; None: no answer."""
    return aside.call(pid, lambda: _read_now(pid, address, size))


def _read_now(pid: int, address: int, size: int) -> bytes | None:
    # A new buffer for each call: one that hangs may still write to its buffer much later.
    room = ctypes.create_string_buffer(size)
    ours, theirs = _iovec(ctypes.addressof(room), size), _iovec(address, size)
    got = _libc.process_vm_readv(pid, ours, 1, theirs, 1, 0)
    return room.raw if got == size else None
