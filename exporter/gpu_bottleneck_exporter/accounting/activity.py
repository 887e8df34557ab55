"""Activities of feeders: the vocabulary of probes, buckets and the attribution of idle time."""

from __future__ import annotations

from enum import Enum

from gpu_bottleneck_exporter.host.waits import Wait

_PUBLISHED_AS = {
    **dict.fromkeys(("requests", "peer", "timer"), "sleep"),
    "driver": "unknown",
    "program": "queue",
    "memory": "disk",
}


class Activity(Enum):
    """The state of a process, or of one of its threads, at the time of sampling.

    Busy time is subtracted in this order: the likelihood of each in a main thread while its GPU
    works. A blocking synchronize sleeps in ioctl or poll; waits that look alike follow; CUDA spins
    by default; I/O seldom hides a working GPU.
    """

    SLEEP = "sleep"
    """Asleep in anything but those below: a timer, a poll, a wait for a child."""
    QUEUE = "queue"
    """Asleep in a pipe, a futex or a semaphore: waits for a thread or process."""
    UNKNOWN = "unknown"
    """Asleep in an unknown call, for lack of permission."""
    REQUESTS = "requests"
    """A server without a request in flight; by deep probes only."""
    PEER = "peer"
    """Waiting for a process of another GPU of its job; by deep probes only."""
    TIMER = "timer"
    """Asleep on a timer or in a socket, unexplained; by deep probes only, else SLEEP."""
    DRIVER = "driver"
    """Uninterruptible sleep, for a lock of the GPU's driver."""
    RUN = "run"
    """Running or runnable; only schedstat distinguishes the two."""
    PROGRAM = "program"
    """Uninterruptible sleep for a lock of its memory map or a vfork child."""
    NETWORK = "network"
    """Asleep in a socket; in a deep probe, waiting for a response."""
    DISK = "disk"
    """Uninterruptible sleep: block devices, NFS, FUSE, page faults."""
    MEMORY = "memory"
    """Uninterruptible sleep, for memory of its control group."""
    GONE = "gone"

    def __init__(self, name: str) -> None:
        self.reads = name in {"network", "disk"}
        """Whether it waits for data from a disk or from another machine."""
        self.active = self.reads or name in {"run", "program", "memory"}
        """Whether it may delay others."""
        self.rests = not self.active and name not in {"driver", "gone"}
        """Whether it sleeps and delays no other process."""
        self.waits_as = _PUBLISHED_AS.get(name, name)
        """Label in `gpu_feeder_wait_seconds_total`, if it is a wait."""
        self.runs = name in {"run", "program"}
        self.on_files = name in {"disk", "memory"}
        """Whether larger memory or faster storage would shorten it."""
        self.waits = name not in {"run", "gone"}

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow."""


ACTIVITY_OF = {
    Wait.RUN: Activity.RUN,
    Wait.DISK: Activity.DISK,
    Wait.SOCKET: Activity.NETWORK,
    Wait.LOCK: Activity.QUEUE,
    Wait.PIPE: Activity.QUEUE,
    **dict.fromkeys((Wait.UNKNOWN, Wait.RING, Wait.AIO), Activity.UNKNOWN),
    Wait.DRIVER: Activity.DRIVER,
    Wait.PROGRAM: Activity.PROGRAM,
    Wait.MEMORY: Activity.MEMORY,
    Wait.GONE: Activity.GONE,
    **dict.fromkeys(
        (Wait.POLL, Wait.ACCEPT, Wait.TIMER, Wait.CHILD, Wait.STOPPED, Wait.FROZEN, Wait.OTHER),
        Activity.SLEEP,
    ),
}
"""Activities of a first thread by wait."""
