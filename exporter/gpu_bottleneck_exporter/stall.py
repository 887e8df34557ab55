"""What an idle GPU waited for: pure arithmetic over what its feeders did meanwhile.

Readings in, nanoseconds out. The busy time of a GPU is explained first: while it
works, its main thread may sleep or spin as it likes. Only the idle rest is split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_bottleneck_exporter.accounting import Window
from gpu_bottleneck_exporter.host.process import State

UNALLOCATED = "unallocated"
HOST_CODE = "host_code"
WORKER_CPU = "worker_cpu"
CPU_QUEUE = "cpu_queue"
CPU_QUOTA = "cpu_quota"
STORAGE = "storage"
MEMORY = "memory"
NETWORK = "network"
PEER = "peer"
ASLEEP = "asleep"
UNKNOWN = "unknown"

WAITING_ON = (
    UNALLOCATED,
    HOST_CODE,
    WORKER_CPU,
    CPU_QUEUE,
    CPU_QUOTA,
    STORAGE,
    MEMORY,
    NETWORK,
    PEER,
    ASLEEP,
    UNKNOWN,
)

_WAITING = (State.QUEUE, State.SLEEP, State.UNKNOWN)
_BUSY_IS_EXPLAINED_BY = (
    State.SLEEP,
    State.QUEUE,
    State.UNKNOWN,
    State.RUN,
    State.NETWORK,
    State.DISK,
)
"""What a main thread that waits for its GPU may look like, likeliest first."""
_BULK_BYTES_PER_SECOND = 20e6
"""File data at this rate: the kernel's CPU time then is the copying of it."""
_MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU counters of one role over a stretch of time, in ns; bytes of file data moved."""

    user_ns: int = 0
    system_ns: int = 0
    queue_ns: int = 0
    """Runnable, without a CPU."""
    io_bytes: int = 0

    @property
    def cpu_ns(self) -> int:
        """Time on a CPU."""
        return self.user_ns + self.system_ns

    @property
    def waits_longer_than_it_runs(self) -> bool:
        """Whether the CPU is what it lacks."""
        return self.queue_ns > self.cpu_ns


@dataclass(frozen=True, slots=True)
class Feeders:
    """What the feeders of one GPU did over a stretch of time.

    `main` and `workers` count samples by state; `worker_count` is how many there are
    on average, which may be more than were sampled at a time.
    """

    elapsed_ns: int
    main: Mapping[State, int] = field(default_factory=dict)
    workers: Mapping[State, int] = field(default_factory=dict)
    worker_count: float = 0.0
    main_usage: Usage = Usage()
    worker_usage: Usage = Usage()
    other_threads_cpu_ns: int = 0
    """CPU time of the main processes' threads but the first (tf.data loads in such)."""
    periods: int = 0
    """CPU quota periods of their control groups."""
    throttled_periods: int = 0
    """Those in which the quota ran out."""
    refault_bytes: int = 0
    """Evicted from the page cache and read again."""
    peer_busy: float = 0.0
    """Busy share of the busiest other GPU of the same job, 0-1."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Whether processes hold the GPU; None: it could not be read."""

    processes: int | None


def split(windows: Sequence[Window], holders: Holders, feeders: Feeders | None) -> dict[str, int]:
    """Idle nanoseconds of `windows` by what they waited on; they add up exactly."""
    duration = sum(window.duration_ns for window in windows)
    idle = duration - sum(window.active_ns for window in windows)
    if idle <= 0:
        return {}
    return apportion(idle, _shares(1 - idle / duration, holders, feeders))


def apportion(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`total` split by `shares` into whole numbers that add up to it."""
    known = {name: share for name, share in shares.items() if share > 0}
    whole = sum(known.values())
    if not known or whole <= 0:
        return {UNKNOWN: total}
    parts = {name: int(total * share / whole) for name, share in known.items()}
    largest = max(parts, key=lambda name: parts[name])
    parts[largest] += total - sum(parts.values())
    return {name: part for name, part in parts.items() if part}


def _shares(busy: float, holders: Holders, feeders: Feeders | None) -> Mapping[str, float]:
    if holders.processes is None:
        return {UNKNOWN: 1.0}
    if holders.processes == 0:
        # A GPU that works for nobody works for somebody we cannot see.
        return {UNALLOCATED if busy == 0 else UNKNOWN: 1.0}
    if feeders is None or not sum(feeders.main.values()):
        return {UNKNOWN: 1.0}
    left = _idle_states(busy, feeders.main)
    running = left.get(State.RUN, 0.0)
    waiting = {state: left[state] for state in _WAITING if state in left}
    parts = [
        *((cause, running * share) for cause, share in _running_main(feeders).items()),
        (_disk(feeders), left.get(State.DISK, 0.0)),
        (NETWORK, left.get(State.NETWORK, 0.0)),
        *_waiting_main(waiting, feeders).items(),
    ]
    shares: dict[str, float] = defaultdict(float)
    for cause, share in parts:
        shares[cause] += share
    return shares


def _idle_states(busy: float, samples: Mapping[State, int]) -> dict[State, float]:
    """Shares of the main thread's time by state, less what the GPU's busy time explains."""
    total = sum(samples.values())
    left = {state: count / total for state, count in samples.items() if count}
    unexplained = busy
    for state in _BUSY_IS_EXPLAINED_BY:
        taken = min(left.get(state, 0.0), unexplained)
        if taken:
            left[state] -= taken
            unexplained -= taken
    return left


def _running_main(feeders: Feeders) -> dict[str, float]:
    """What a runnable main thread was held up by."""
    usage = feeders.main_usage
    if usage.waits_longer_than_it_runs:
        return {_queue(feeders): 1.0}
    copying = _copying(usage, feeders.elapsed_ns)
    return {HOST_CODE: 1 - copying, _disk(feeders): copying}


def _waiting_main(waiting: Mapping[State, float], feeders: Feeders) -> dict[str, float]:
    """What a main thread slept for, for the share of time it did."""
    total = sum(waiting.values())
    if total <= 0:
        return {}
    cause, active = _held_up_by(feeders)
    explained = min(active, total) if cause else 0.0
    left = total - explained
    peer = left * feeders.peer_busy
    unseen = (left - peer) * _unseen(waiting, feeders.workers)
    shares = {PEER: peer, UNKNOWN: unseen, ASLEEP: left - peer - unseen}
    if cause:
        shares[cause] = explained
    return shares


def _held_up_by(feeders: Feeders) -> tuple[str | None, float]:
    """What takes most of the active workers' time, and how many are active on average.

    A worker that reads and decodes is held up by the larger of the two; so the largest
    share names the cause.
    """
    samples = sum(feeders.workers.values()) - feeders.workers.get(State.GONE, 0)
    if not samples:
        threads = feeders.other_threads_cpu_ns / max(feeders.elapsed_ns, 1)
        return (WORKER_CPU, threads) if threads else (None, 0.0)
    active: dict[State, float] = {
        state: feeders.workers.get(state, 0) for state in (State.RUN, State.DISK, State.NETWORK)
    }
    copying = active[State.RUN] * _copying(feeders.worker_usage, feeders.elapsed_ns)
    active[State.RUN] -= copying
    active[State.DISK] += copying
    most = max(active, key=lambda state: active[state])
    if not active[most]:
        return None, 0.0
    mean = sum(active.values()) / samples * feeders.worker_count
    if most is State.RUN:
        crowded = feeders.worker_usage.waits_longer_than_it_runs
        return _queue(feeders) if crowded else WORKER_CPU, mean
    return (_disk(feeders) if most is State.DISK else NETWORK), mean


def _queue(feeders: Feeders) -> str:
    """Quota or contention: tasks that a quota holds back look runnable too, so it wins.

    Asked only once tasks wait longer than they run: the share of periods in which a
    quota ran out is near one long before it costs anything.
    """
    return CPU_QUOTA if feeders.throttled_periods > _MOSTLY * feeders.periods else CPU_QUEUE


def _disk(feeders: Feeders) -> str:
    """Memory, when most of what moves to and from disk had been in memory before."""
    moved = feeders.main_usage.io_bytes + feeders.worker_usage.io_bytes
    return MEMORY if feeders.refault_bytes > _MOSTLY * moved > 0 else STORAGE


def _copying(usage: Usage, elapsed_ns: int) -> float:
    """Share of the CPU time that is the kernel's copying of file data."""
    cpu = usage.cpu_ns
    rate = usage.io_bytes / max(elapsed_ns / 1e9, 1e-9)
    return usage.system_ns / cpu if cpu and rate > _BULK_BYTES_PER_SECOND else 0.0


def _unseen(waiting: Mapping[State, float], workers: Mapping[State, int]) -> float:
    """Share of the sleeping whose reason the kernel would not tell."""
    samples = sum(workers.values())
    if samples:
        return workers.get(State.UNKNOWN, 0) / samples
    return waiting.get(State.UNKNOWN, 0.0) / sum(waiting.values())
