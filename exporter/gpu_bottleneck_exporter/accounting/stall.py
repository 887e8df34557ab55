"""What an idle GPU waited for: pure arithmetic over what its feeders did meanwhile.

Readings in, nanoseconds out. First, the GPU's busy share is subtracted from the main
thread's samples: while the GPU works, its main may sleep in a synchronize or prepare
the next step, and neither costs anything. Only what is left explains idle time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_bottleneck_exporter.accounting.state import State
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.host.places import Place

WAITING_ON = (
    UNALLOCATED := "unallocated",
    HOST_CODE := "host_code",
    WORKER_CPU := "worker_cpu",
    CPU_QUEUE := "cpu_queue",
    CPU_QUOTA := "cpu_quota",
    STORAGE := "storage",
    MEMORY := "memory",
    NETWORK := "network",
    REQUESTS := "requests",
    PEER := "peer",
    ASLEEP := "asleep",
    UNKNOWN := "unknown",
)
FILE_SYSTEMS = (Place.LOCAL.value, Place.REMOTE.value)
"""What `STORAGE` is split into, as far as it is known."""

_WAITING = (State.QUEUE, State.SLEEP, State.UNKNOWN, State.REQUESTS)
_BUSY_IS_EXPLAINED_BY = (
    State.SLEEP,
    State.QUEUE,
    State.UNKNOWN,
    State.REQUESTS,
    State.RUN,
    State.NETWORK,
    State.DISK,
)
"""What a main thread looks like while its GPU works, likeliest first.

The busy share is subtracted in this order: first from sleep (a blocking synchronize waits in
ioctl or poll), then from waits that look alike (a futex, an unknown channel, a server), then
from run time (CUDA spins by default), and only then from network and disk, which hardly ever
hide a working GPU. What survives is charged, so the order decides which cause a mixed sample
gets: a main that sleeps and computes is charged for computing.
"""
_PAID_BACK = (State.NETWORK, State.DISK)
_PAYS = (State.SLEEP, State.QUEUE, State.UNKNOWN)
"""Between these, chance moves time from tick to tick: see `_pay_back`."""
_MOST_OWED_NS = 1e9
"""So much is wrong at most when a main that does I/O while its GPU works falls asleep."""
_BY_CHANCE = 3
"""Standard deviations of a share of few samples: by so much it may miss the true share."""
_BULK_BYTES_PER_SECOND = 20e6
"""At this rate of file data, the kernel's CPU time is spent on copying it."""
_MOSTLY = 0.5
_HARDLY = 0.05
_AT_MOST = 3
"""Slack, as counters of a control group and of its processes are not read at the same moment."""
_THRASHING_BYTES_PER_SECOND = 256 * 1024
"""Fewer refaults delay nothing: even a disk that seeks for each read-ahead reads far more."""
_OF_ITS_OWN = frozenset({HOST_CODE, WORKER_CPU, CPU_QUEUE, CPU_QUOTA, STORAGE, MEMORY, NETWORK})
"""Causes within one rank: while it waits for these, the other ranks of its job wait for it."""


Owed = dict[State, float]
"""Nanoseconds of busy time that earlier ticks subtracted from I/O for want of sleep, by state."""


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
        """A task that is runnable longer than it runs is starved of CPU."""
        return self.queue_ns > self.cpu_ns


@dataclass(frozen=True, slots=True)
class Feeders:
    """What the feeders of one GPU did over a stretch of time.

    `main` and `workers` count samples by state. `worker_count` is the mean number of workers,
    of which only some are sampled at a time.
    """

    elapsed_ns: int
    main: Mapping[State, int] = field(default_factory=dict)
    workers: Mapping[State, int] = field(default_factory=dict)
    worker_count: float = 0.0
    main_runnable: float | None = None
    """Share of the time, 0-1, in which first threads were runnable, as the kernel counted it.
    None if it did not, or if other threads launch kernels, too."""
    threads: Mapping[State, int] = field(default_factory=dict)
    """Samples of the mains' loading threads that were active, from closer looks."""
    thread_looks: int = 0
    """How many closer looks there were."""
    kin: Mapping[State, int] = field(default_factory=dict)
    """Samples of processes of the job that descend from no main."""
    kin_count: float = 0.0
    """How many there are on average."""
    main_usage: Usage = Usage()
    """Of first threads, and of those that launch kernels."""
    worker_usage: Usage = Usage()
    kin_usage: Usage = Usage()
    thread_usage: Usage = Usage()
    """Of the mains' loading threads."""
    children_cpu_ns: int = 0
    """CPU time of children that came and went."""
    other_threads_cpu_ns: int = 0
    """CPU time of the mains' threads but those of `main_usage`."""
    periods: int = 0
    """CPU quota periods of their control groups."""
    throttled_periods: int = 0
    """Those in which the quota ran out."""
    refault_bytes: int = 0
    """Evicted from the page cache and read again."""
    peer: float = 0.0
    """Share of the time, 0-1, in which another GPU of the job worked or waited by itself."""
    places: Mapping[Place, int] = field(default_factory=dict)
    """How often somebody was seen to wait for a file, by where it is."""


def split(
    windows: Sequence[Window],
    holders: int | None,
    feeders: Feeders | None,
    owed: Owed | None = None,
) -> dict[str, int]:
    """Idle nanoseconds of `windows` by what the GPU waited on; they add up exactly.

    `holders`: how many processes hold the GPU; None if that could not be read. `owed` is kept
    from tick to tick of a GPU, and changed.
    """
    duration = sum(window.duration_ns for window in windows)
    idle = duration - sum(window.active_ns for window in windows)
    if idle <= 0:
        return {}
    busy = 1 - idle / duration
    if holders is None:
        return {UNKNOWN: idle}
    if holders == 0:
        # Busy without a holder: its holder is out of sight, so idle time is unknown, not free.
        return {UNALLOCATED if busy == 0 else UNKNOWN: idle}
    if feeders is None or not sum(feeders.main.values()):
        return {UNKNOWN: idle}
    left = _idle_states(busy, _main_states(feeders), {} if owed is None else owed, duration)
    return apportion(idle, _shares(left, feeders))


def by_file_system(stalls: Mapping[str, int], feeders: Feeders | None) -> dict[str, int]:
    """Nanoseconds of `stalls` on storage by file system; those of an unknown one are left out."""
    storage = stalls.get(STORAGE, 0)
    if feeders is None or not storage:
        return {}
    looks = sum(feeders.places.values())
    known = {place.value: n for place, n in feeders.places.items() if place is not Place.UNKNOWN}
    return {place: storage * number // looks for place, number in known.items()}


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


def engaged(active_ns: int, stalls: Mapping[str, int]) -> int:
    """Nanoseconds in which a GPU worked or waited for a cause within its own rank."""
    return active_ns + sum(ns for cause, ns in stalls.items() if cause in _OF_ITS_OWN)


def _shares(left: Mapping[State, float], feeders: Feeders) -> Mapping[str, float]:
    """Shares by cause of what is `left` of the main's time once the busy share is subtracted."""
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


def _main_states(feeders: Feeders) -> dict[State, float]:
    """Shares of the mains' time by state: samples, put right by the run time that was counted.

    Ten samples of a tick miss the true shares by tens of percent. Each tick is charged by itself,
    so a main that sleeps only while its GPU works would be charged for every tick that happens to
    show more sleep than busy time, and the others would not make up for it.
    """
    total = sum(feeders.main.values())
    shares = {state: count / total for state, count in feeders.main.items() if count}
    sampled, counted = shares.pop(State.RUN, 0.0), feeders.main_runnable
    if counted is None or not shares or feeders.throttled_periods:
        counted = sampled  # newer kernels count no run queue delay while a quota throttles
    chance = _BY_CHANCE * math.sqrt(counted * (1 - counted) / total) + 1 / total
    run = counted if abs(counted - sampled) <= chance else sampled
    rest = {state: share * (1 - run) / (1 - sampled) for state, share in shares.items()}
    return {State.RUN: run, **rest}


def _idle_states(
    busy: float, states: Mapping[State, float], owed: Owed, duration_ns: int
) -> dict[State, float]:
    """`states` of the main, less the GPU's busy share (see the order above)."""
    left = dict(states)
    unexplained = busy
    for state in _BUSY_IS_EXPLAINED_BY:
        taken = min(left.get(state, 0.0), unexplained)
        if taken:
            left[state] -= taken
            unexplained -= taken
            if state in _PAID_BACK:
                owed[state] = min(owed.get(state, 0.0) + taken * duration_ns, _MOST_OWED_NS)
    _pay_back(left, owed, duration_ns)
    return left


def _pay_back(left: dict[State, float], owed: Owed, duration_ns: int) -> None:
    """Give I/O back what chance subtracted from it in earlier ticks.

    Where one tick shows less sleep than busy time, another shows more, and that is no wait. Run
    time gets nothing back: a main that spins while its GPU works would be owed all the time.
    """
    for state in [*owed]:
        for waits in _PAYS:
            paid = min(left.get(waits, 0.0), owed[state] / duration_ns)
            if paid > 0:
                left[waits] -= paid
                left[state] = left.get(state, 0.0) + paid
                owed[state] = max(owed[state] - paid * duration_ns, 0.0)


def _running_main(feeders: Feeders) -> dict[str, float]:
    """What a runnable main thread was delayed by."""
    usage = feeders.main_usage
    if usage.waits_longer_than_it_runs:
        return {_queue(feeders): 1.0}
    states = feeders.main
    waits_too = states.get(State.DISK, 0) >= max(_MOSTLY * states.get(State.RUN, 0), 1)
    copying = _copying(usage, feeders.elapsed_ns, waits_too=waits_too)
    return {HOST_CODE: 1 - copying, _disk(feeders): copying}


def _waiting_main(waiting: Mapping[State, float], feeders: Feeders) -> dict[str, float]:
    """What a main thread slept for, over the share of time that it slept."""
    total = sum(waiting.values())
    if total <= 0:
        return {}
    cause, active = _held_up_by(feeders)
    if feeders.peer > _MOSTLY and active < _MOSTLY * total:
        cause = None  # its helpers only prepare the next batch while it waits for the other rank
    explained = min(active, total) if cause else 0.0
    left = total - explained
    peer = left * feeders.peer
    requests = (left - peer) * waiting.get(State.REQUESTS, 0.0) / total
    unseen = (left - peer - requests) * _unseen(waiting, feeders.workers)
    asleep = left - peer - requests - unseen
    shares = {PEER: peer, REQUESTS: requests, UNKNOWN: unseen, ASLEEP: asleep}
    if cause:
        shares[cause] = explained
    return shares


def _held_up_by(feeders: Feeders) -> tuple[str | None, float]:
    """What takes most of the helpers' time, and how many of them are active on average.

    Helpers are workers, loading threads, kin, and short-lived children. A helper that both
    reads and decodes is limited by whichever takes longer, so the largest share is the cause.
    """
    active = _active(feeders)
    most = max(active, key=lambda state: active[state])
    if active[most] <= 0:
        return None, 0.0
    mean = sum(active.values())
    if most is State.RUN:
        usage = feeders.worker_usage, feeders.thread_usage, feeders.kin_usage
        cpu_ns = feeders.children_cpu_ns + sum(u.cpu_ns for u in usage)
        crowded = sum(u.queue_ns for u in usage) > cpu_ns
        return _queue(feeders) if crowded else WORKER_CPU, mean
    return (_disk(feeders) if most is State.DISK else NETWORK), mean


def _active(feeders: Feeders) -> dict[State, float]:
    """How many helpers ran, were in D state, or waited for an answer, on average."""
    crowds = (
        (feeders.workers, feeders.worker_count / _seen(feeders.workers), feeders.worker_usage),
        (feeders.threads, 1 / max(feeders.thread_looks, 1), feeders.thread_usage),
        (feeders.kin, feeders.kin_count / _seen(feeders.kin), feeders.kin_usage),
    )
    elapsed = max(feeders.elapsed_ns, 1)
    active = dict.fromkeys((State.RUN, State.DISK, State.NETWORK), 0.0)
    for states, weight, usage in crowds:
        run, disk = (states.get(state, 0) * weight for state in (State.RUN, State.DISK))
        waits_too = disk >= max(_MOSTLY * run, _HARDLY)
        copying = run * _copying(usage, elapsed, waits_too=waits_too)
        active[State.RUN] += run - copying
        active[State.DISK] += disk + copying
        active[State.NETWORK] += states.get(State.NETWORK, 0) * weight
    active[State.RUN] += feeders.children_cpu_ns / elapsed
    if not feeders.thread_looks and not sum(feeders.workers.values()):
        active[State.RUN] += feeders.other_threads_cpu_ns / elapsed
    return active


def _seen(states: Mapping[State, int]) -> int:
    return max(sum(states.values()) - states.get(State.GONE, 0), 1)


def _queue(feeders: Feeders) -> str:
    """Quota or contention? Tasks that a quota throttles look runnable too, so the quota wins.

    Call it only for tasks that wait longer than they run: most periods are throttled long
    before a quota costs anything.
    """
    return CPU_QUOTA if feeders.throttled_periods > _MOSTLY * feeders.periods else CPU_QUEUE


def _disk(feeders: Feeders) -> str:
    """Memory, if most of the bytes read had been evicted from the page cache; else storage.

    Refaults far above what the feeders read belong to other processes of their control group.
    """
    usages = feeders.main_usage, feeders.worker_usage, feeders.kin_usage
    moved = sum(usage.io_bytes for usage in usages)
    own = _MOSTLY * moved < feeders.refault_bytes <= _AT_MOST * moved
    many = feeders.refault_bytes * 1e9 >= _THRASHING_BYTES_PER_SECOND * feeders.elapsed_ns
    return MEMORY if own and many else STORAGE


def _copying(usage: Usage, elapsed_ns: int, *, waits_too: bool) -> float:
    """Share of the CPU time that the kernel spent on copying and writing back file data.

    Counted where much data moves, or where the task also waits for the disk at least half as
    long as it runs: a journal with fsync moves little data.
    """
    cpu = usage.cpu_ns
    rate = usage.io_bytes / max(elapsed_ns / 1e9, 1e-9)
    for_files = rate > _BULK_BYTES_PER_SECOND or waits_too
    return usage.system_ns / cpu if cpu and for_files else 0.0


def _unseen(waiting: Mapping[State, float], workers: Mapping[State, int]) -> float:
    """Share of the sleep whose reason the kernel does not disclose."""
    samples = sum(workers.values())
    if samples:
        return workers.get(State.UNKNOWN, 0) / samples
    asleep = sum(waiting.values()) - waiting.get(State.REQUESTS, 0.0)
    return waiting.get(State.UNKNOWN, 0.0) / asleep if asleep > 0 else 0.0
