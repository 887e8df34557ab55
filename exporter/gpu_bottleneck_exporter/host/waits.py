"""Waits of a thread by state letter, wait channel and system call (/proc/PID/wchan, syscall).

The last two take the permission to ptrace; syscall also CONFIG_HAVE_ARCH_TRACEHOOK.
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
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.files import MAX_QUERIED_SOCKETS, none_if_malformed


class Wait(Enum):
    """The activity of a thread, or the object that it sleeps on."""

    RUN = "run"
    """Running or runnable, which only schedstat distinguishes."""
    DISK = "disk"
    """A file: state D, or a channel of a remote file system or FUSE."""
    SOCKET = "socket"
    """Receiving, sending, connecting, or reading from a terminal (`wait_woken`)."""
    POLL = "poll"
    """Any of several descriptors: poll, select, epoll."""
    ACCEPT = "accept"
    """A client."""
    LOCK = "lock"
    """A futex or a semaphore."""
    PIPE = "pipe"
    """A pipe or a UNIX socket."""
    RING = "ring"
    """Completions of an io_uring ring: files, sockets, its timer."""
    AIO = "aio"
    """Completions of kernel AIO."""
    TIMER = "timer"
    CHILD = "child"
    """End of a child process."""
    PROGRAM = "program"
    """The memory map (mmap_lock), or a vfork child before execve."""
    MEMORY = "memory"
    """Throttling above memory.high, or out of memory."""
    DRIVER = "driver"
    """A lock of the GPU's driver."""
    FROZEN = "frozen"
    """Thawing of its control group."""
    STOPPED = "stopped"
    """A signal or a debugger."""
    OTHER = "other"
    UNKNOWN = "unknown"
    """Asleep, in a hidden channel."""
    GONE = "gone"

    def __init__(self, name: str) -> None:
        self.asleep = name not in {"run", "disk", "program", "memory", "driver", "gone"}
        """Whether only a deep probe can find the cause."""
        self.submitted = name in {"ring", "aio"}
        """Whether it ends with a request submitted to the kernel."""
        self.for_threads = name in {"lock", "poll", "pipe"}
        """Whether a first thread sleeps so until it has work."""
        self.serves = name in {"accept", "poll", "lock", "socket", "ring"}
        """Whether a server's first thread sleeps so, for a client or its threads."""
        self.on_any = name in {"socket", "poll", "accept", "ring"}
        """Whether it is on any descriptor if the system call names none."""
        self.on_descriptors = self.on_any or name in {"pipe", "unknown"}
        """Whether the system call may name the descriptors."""

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow."""


REMOTE_CHANNELS = (
    "rpc_wait_bit_killable",  # net/sunrpc/sched.c, NFS; from the source
    "nfs",  # fs/nfs; from the source
    "cl_sync_io_wait",  # Lustre, obdclass/cl_io.c; from the source
    "ptlrpc_",  # Lustre; from the source
    "ceph_",  # fs/ceph; from the source
    "netfs_",  # fs/netfs, under NFS, Ceph, 9p and AFS; from the source
    "p9_",  # net/9p; from the source
)
"""Channels of remote file systems, as prefixes."""
FUSE_CHANNELS = (
    "request_wait_answer",  # fs/fuse/dev.c; tried with and without direct I/O
    "fuse_",  # fs/fuse; from the source
)
_INTERRUPTIBLE: tuple[tuple[Wait, tuple[str, ...]], ...] = (
    (Wait.DISK, (*REMOTE_CHANNELS, *FUSE_CHANNELS)),
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
"""Channel prefixes in state S."""
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
"""Channel prefixes in state D, other than files."""
UNINTERRUPTIBLE_STATES = "DK"
"""State letters of uninterruptible sleep."""
_BY_LETTER = {
    "R": Wait.RUN,
    **dict.fromkeys(UNINTERRUPTIBLE_STATES, Wait.DISK),
    **dict.fromkeys("Tt", Wait.STOPPED),
    **dict.fromkeys("ZXx", Wait.GONE),
}


class _SystemCalls(NamedTuple):
    on_descriptor: frozenset[int] = frozenset()
    """Calls on the descriptor in their first argument: read, readv, recvfrom, recvmsg, recvmmsg,
    accept, accept4, connect, write, sendto, sendmsg."""
    poll: frozenset[int] = frozenset()
    """Calls on an array of struct pollfd: poll, ppoll."""
    select: frozenset[int] = frozenset()
    """Calls on bit sets: select, pselect6."""
    wait4: int | None = None
    waitid: int | None = None
    memory_map: frozenset[int] = frozenset()
    """Calls that lock the memory map: mmap, mprotect, munmap, brk, mremap, mincore, madvise, mlock,
    fork."""
    io_uring_enter: int = 426
    """The same on every architecture."""


_CALLS = {
    "x86_64": _SystemCalls(
        on_descriptor=frozenset({0, 19, 45, 47, 299, 43, 288, 42, 1, 44, 46}),
        poll=frozenset({7, 271}),
        select=frozenset({23, 270}),
        wait4=61,
        waitid=247,
        memory_map=frozenset({9, 10, 11, 12, 25, 27, 28, 56, 57, 58, 149, 150, 151, 329, 435}),
    ),
    "aarch64": _SystemCalls(
        on_descriptor=frozenset({63, 65, 207, 212, 243, 202, 242, 203, 64, 206, 211}),
        poll=frozenset({73}),
        select=frozenset({72}),
        wait4=260,
        waitid=95,
        memory_map=frozenset({214, 215, 216, 220, 222, 226, 228, 229, 230, 232, 233, 288, 435}),
    ),
}.get(platform.machine(), _SystemCalls())
_libc = ctypes.CDLL(None, use_errno=True)
_iovec = ctypes.c_size_t * 2
"""Address and size."""


def wait_of(
    letter: str, channel: bytes | None, call: Callable[[], bytes | None] = lambda: None
) -> Wait:
    """Wait of a thread; channel "0" means unknown.

    `call` reads its syscall file, which few channels need.
    """
    if letter in UNINTERRUPTIBLE_STATES and channel:
        return _uninterruptible(channel, call) or Wait.DISK
    if letter in _BY_LETTER:
        return _BY_LETTER[letter]
    if not channel or channel == b"0":
        return Wait.UNKNOWN
    return _in_channel(channel) or Wait.OTHER


@cache
def asleep_in(channel: bytes) -> Wait | None:
    """Wait in a `channel` of sleep in state S only; else None."""
    wait = _in_channel(channel)
    # Tasks here may also sleep uninterruptibly, or be stopped.
    return None if wait in (Wait.DISK, Wait.FROZEN) else wait


def _uninterruptible(channel: bytes, call: Callable[[], bytes | None]) -> Wait | None:
    name = channel.decode(errors="replace")
    # Not NVMe, NVM and GPUDirect Storage: these are storage.
    if re.match("nv(?!me|mf|m_|fs|dimm)", name):
        return Wait.DRIVER
    # Some kernels name the lock: of a memory map, or of a file.
    if name.startswith(("rwsem_", "call_rwsem_")):
        # -1: a page fault, for the memory map or a file.
        return Wait.PROGRAM if _number(call()) in {*_CALLS.memory_map, -1} else None
    if name == "0":  # hidden, or on a crowded CPU's run queue
        return Wait.PROGRAM if _number(call()) in _CALLS.memory_map else None
    waits = (wait for wait, names in _UNINTERRUPTIBLE if name.startswith(names))
    # The freezer of cgroup v1 leaves tasks in their channels, in state D.
    return next(waits, None) or _in_channel(channel)


@none_if_malformed
def _number(call: bytes | None) -> int:
    return int((call or b"").split()[0])


def _in_channel(channel: bytes) -> Wait | None:
    name = channel.decode(errors="replace")
    return next((wait for wait, prefixes in _INTERRUPTIBLE if name.startswith(prefixes)), None)


@none_if_malformed
def waits_on(pid: int, call: bytes | None) -> tuple[int, ...] | None:
    """Descriptors that a thread waits on, at most `MAX_QUERIED_SOCKETS`; None: any, or unknown.

    Of the process's memory, only numbers are read.
    """
    # Fails for `running` and `-1 SP PC`.
    number, first, second, third, fourth = (int(word, 0) for word in (call or b"").split()[:5])
    if number == _CALLS.io_uring_enter:
        # With IORING_ENTER_REGISTERED_RING (Linux 5.18) `first` is not a descriptor.
        return None if fourth & 16 else (first,)
    if number in _CALLS.on_descriptor:
        return (first,)
    if number in _CALLS.poll:
        return _polled(pid, first, second)
    return _selected(pid, first, (second, third)) if number in _CALLS.select else None


@none_if_malformed
def awaited_child(call: bytes | None) -> int:
    """Pid of the awaited child; 0: any, or unknown."""
    number, first, second = (int(word, 0) for word in (call or b"").split()[:3])
    if number == _CALLS.waitid:
        return second if first == os.P_PID else 0
    # Below PID_MAX_LIMIT; a process group is negative.
    return first if number == _CALLS.wait4 and first < 2**22 else 0


def _polled(pid: int, address: int, count: int) -> tuple[int, ...] | None:
    array = _read_memory(pid, address, min(count, MAX_QUERIED_SOCKETS) * struct.calcsize("=ihh"))
    if array is None:
        return None
    return tuple(fd for fd, _, _ in struct.iter_unpack("=ihh", array) if fd >= 0)


def _selected(pid: int, count: int, addresses: Iterable[int]) -> tuple[int, ...] | None:
    if count > 2**10:  # FD_SETSIZE
        return None
    selected: set[int] = set()
    words = -(-count // 64)
    for address in filter(None, addresses):
        raw = _read_memory(pid, address, words * 8)
        if raw is None:
            return None
        bits = int.from_bytes(raw, sys.byteorder)
        selected.update(number for number in range(count) if bits >> number & 1)
    return tuple(sorted(selected)[:MAX_QUERIED_SOCKETS])


def _read_memory(pid: int, address: int, size: int) -> bytes | None:
    return memory_reads.call(pid, lambda: _read_memory_now(pid, address, size))


def _read_memory_now(pid: int, address: int, size: int) -> bytes | None:
    # A new buffer, as a hung call may write much later.
    buffer = ctypes.create_string_buffer(size)
    ours, theirs = _iovec(ctypes.addressof(buffer), size), _iovec(address, size)
    count = _libc.process_vm_readv(pid, ours, 1, theirs, 1, 0)
    return buffer.raw if count == size else None
