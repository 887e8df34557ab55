"""What a feeder does at one moment: the one vocabulary of probes, buckets and the split."""

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
    """What a process, or one of its threads, does at one moment.

    The order is that in which a main thread does these while its GPU works, likeliest first: a
    blocking synchronize sleeps in ioctl or poll; waits that look alike follow (a futex, an unknown
    channel, a server); CUDA spins by default; and only I/O hardly ever hides a working GPU. Busy
    time is subtracted in this order, and what survives is charged: a main that sleeps and
    computes is charged for computing.
    """

    SLEEP = "sleep"
    """Asleep in anything but those below: a timer, a poll, waiting for a child to end."""
    QUEUE = "queue"
    """Asleep in a pipe, a futex or a semaphore: it waits for another thread or process."""
    UNKNOWN = "unknown"
    """Asleep, but we may not read in what."""
    REQUESTS = "requests"
    """A server without a request in flight; only deep probes can find this."""
    PEER = "peer"
    """Waits for a process of another GPU of its job: an answer or a request; only deep probes can
    find this."""
    TIMER = "timer"
    """Asleep on a timer or in a socket, so not for a task, and nothing explains it; only deep
    probes tell it from SLEEP."""
    DRIVER = "driver"
    """Uninterruptible, for a lock of the GPU's driver."""
    RUN = "run"
    """Running or runnable; only the scheduler's counters (schedstat) tell them apart."""
    PROGRAM = "program"
    """Uninterruptible, for a lock of its own memory map or a child of vfork: as good as running.
    """
    NETWORK = "network"
    """Asleep in a socket; found by a deep probe: waiting for an answer."""
    DISK = "disk"
    """Uninterruptible: block devices, NFS, FUSE, page faults."""
    MEMORY = "memory"
    """Uninterruptible, for memory of its control group."""
    GONE = "gone"

    def __init__(self, name: str) -> None:
        self.reads = name in {"network", "disk"}
        """Whether it waits for data from a disk or from another machine."""
        self.active = self.reads or name in {"run", "program", "memory"}
        """Whether it may hold others up."""
        self.rests = not self.active and name not in {"driver", "gone"}
        """Whether it sleeps, and nobody waits for that."""
        self.waits_as = _PUBLISHED_AS.get(name, name)
        """What its time is published as (`gpu_feeder_wait_seconds_total`), if it is a wait."""
        self.runs = name in {"run", "program"}
        self.on_files = name in {"disk", "memory"}
        """Whether larger memory or faster storage would shorten it."""
        self.waits = name not in {"run", "gone"}

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow at each count of an activity."""


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
"""What a first thread does that is in a wait, without a deep probe."""
