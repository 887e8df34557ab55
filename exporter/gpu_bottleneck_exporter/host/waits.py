"""What a thread waits for, from its state letter and its wait channel (/proc/PID/wchan)."""

from __future__ import annotations

from enum import Enum
from functools import cache


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
    TIMER = "timer"
    CHILD = "child"
    """The end of a child process."""
    STOPPED = "stopped"
    """Stopped by a signal or a debugger."""
    OTHER = "other"
    UNKNOWN = "unknown"
    """Asleep, but we may not read in what."""
    GONE = "gone"

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
    "io_cqring_wait",  # io_uring/io_uring.c; tried
    "read_events",  # fs/aio.c, io_getevents; tried
)
"""Channels in which a thread waits for a file though its sleep is interruptible (state S)."""
_BY_CHANNEL: tuple[tuple[Wait, tuple[str, ...]], ...] = (
    (Wait.DISK, _STORAGE),
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
)
_BY_LETTER = {
    "R": Wait.RUN,
    **dict.fromkeys("DK", Wait.DISK),
    **dict.fromkeys("Tt", Wait.STOPPED),
    **dict.fromkeys("ZXx", Wait.GONE),
}


def wait_of(letter: str, channel: str | None) -> Wait:
    """What a thread in state `letter` and in `channel` waits for.

    The channel reads "0" without the permission to ptrace: that means unknown, not running.
    """
    if letter in _BY_LETTER:
        return _BY_LETTER[letter]
    if not channel or channel == "0":
        return Wait.UNKNOWN
    return _in_channel(channel) or Wait.OTHER


@cache
def asleep_in(channel: bytes) -> Wait | None:
    """What a thread in `channel` waits for; None if the state letter is needed too.

    Threads sleep in most channels in state S only: there the channel is enough.
    """
    found = _in_channel(channel.decode())
    return found if found is not Wait.DISK else None


def _in_channel(channel: str) -> Wait | None:
    return next((wait for wait, prefixes in _BY_CHANNEL if channel.startswith(prefixes)), None)
