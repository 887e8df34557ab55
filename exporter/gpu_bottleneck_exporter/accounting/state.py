"""What a feeder does at one moment, as the accounting counts it."""

from __future__ import annotations

from enum import Enum

from gpu_bottleneck_exporter.host.waits import Wait


class State(Enum):
    """What a thread is doing at one moment."""

    RUN = "run"
    """Running or runnable; only the scheduler's counters (schedstat) tell them apart."""
    DISK = "disk"
    """Uninterruptible: block devices, NFS, FUSE, page faults."""
    NETWORK = "network"
    """Asleep in a socket."""
    QUEUE = "queue"
    """Asleep in a pipe, a futex or a semaphore: it waits for another thread or process."""
    REQUESTS = "requests"
    """A server without a request in flight; only closer looks can find this."""
    SLEEP = "sleep"
    """Asleep in anything else: a timer, a poll, waiting for a child to end."""
    TIMER = "timer"
    """Asleep on a timer or in a socket, so not for a task, and nothing explains it; only of
    workers, and only closer looks tell it from SLEEP."""
    UNKNOWN = "unknown"
    """Asleep, but we may not read in what."""
    GONE = "gone"

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow at each count of a state."""


STATE_OF = {
    Wait.RUN: State.RUN,
    Wait.DISK: State.DISK,
    Wait.SOCKET: State.NETWORK,
    Wait.LOCK: State.QUEUE,
    Wait.PIPE: State.QUEUE,
    Wait.UNKNOWN: State.UNKNOWN,
    Wait.GONE: State.GONE,
    **dict.fromkeys(
        (Wait.POLL, Wait.ACCEPT, Wait.TIMER, Wait.CHILD, Wait.STOPPED, Wait.OTHER), State.SLEEP
    ),
}
"""The state that a wait stands for, without a closer look."""
