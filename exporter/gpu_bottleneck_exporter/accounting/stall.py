"""Attributes the idle time of a GPU to causes: pure arithmetic over the samples of its feeders.

The GPU's busy share is subtracted from the main thread's samples first: a main that sleeps in a
synchronize or prepares the next step while the GPU works costs nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Counters, K, Part, Role
from gpu_bottleneck_exporter.accounting.thresholds import STALLS
from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.host.mounts import Place

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
    VIDEO_ENGINE := "video_engine",
    ASLEEP := "asleep",
    UNKNOWN := "unknown",
)
FILE_SYSTEMS = (Place.LOCAL.value, Place.REMOTE.value)
"""Parts of `STORAGE`."""

MAJORITY = 0.5
"""Threshold for the dominant share."""
NEGLIGIBLE = 0.05
"""Shares below this are treated as zero."""
MIN_OBSERVATIONS = 3
"""Observations before a pattern counts."""
EWMA_WEIGHT = 0.1
"""Weight of the newest sample in a moving average; half-life about seven samples."""
_HELPERS = (Role.WORKER, Role.THREAD, Role.RELATED)
_ACTIVE = (Activity.RUN, Activity.DISK, Activity.MEMORY, Activity.NETWORK)
"""Activities of helpers that delay a main."""
_OWN_WAITS = frozenset(
    {HOST_CODE, WORKER_CPU, CPU_QUEUE, CPU_QUOTA, STORAGE, MEMORY, NETWORK, VIDEO_ENGINE}
)
"""Waits within one rank, for which the other ranks of its job wait."""


Carry = dict[Activity, float]
"""Nanoseconds of I/O by activity that earlier ticks counted as busy time."""


def split(
    windows: Sequence[Window],
    holders: int | None,
    bucket: Bucket | None,
    carry: Carry | None = None,
    engine: float = 0.0,
) -> dict[str, int]:
    """Idle nanoseconds of `windows` by `waiting_on`; they add up exactly.

    `holders`: number of processes that hold the GPU; None if unreadable. `carry` is retained from
    tick to tick of a GPU, and changed. `engine`: share of the time, 0-1, in which a video engine
    worked. The driver does not report its overlap with kernels: the same share of the idle time is
    attributed to it; for other waits it counts as busy time.
    """
    duration, active = sums(windows)
    video = round((duration - active) * min(engine, 1.0))
    idle = duration - active - video
    parts: dict[str, int] = {}
    if idle > 0 and holders:
        parts = _split(duration, idle, 1 - idle / duration, bucket, carry)
    elif idle > 0:
        # A busy GPU has a hidden holder: its idle time is unknown.
        unheld = holders == 0 and idle == duration
        parts = {UNALLOCATED if unheld else UNKNOWN: idle}
    return {VIDEO_ENGINE: video, **parts} if video > 0 else parts


def split_part(
    idle: int, window: Window, bucket: Bucket | None, carry: Carry, *, engine: float = 0.0
) -> dict[str, int]:
    """A tenant's part `idle` of the idle nanoseconds, by `waiting_on`; they add up exactly.

    `window`: the whole time, and the busy time of the tenant. Others as for `split`.
    """
    video, parts = round(idle * min(engine, 1.0)), dict[str, int]()
    if idle > video:
        busy = window.active_ns / window.duration_ns
        parts = _split(window.duration_ns, idle - video, busy, bucket, carry)
    return {VIDEO_ENGINE: video, **parts} if video > 0 else parts


def _split(
    duration: int, idle: int, busy: float, bucket: Bucket | None, carry: Carry | None
) -> dict[str, int]:
    if bucket is None or not bucket.of(Role.MAIN).samples:
        return {UNKNOWN: idle}
    sampled = _calibrated(bucket.of(Role.MAIN), bucket.main_runnable, bucket)
    shares = _with_awaited_reads(sampled, bucket)
    left = _subtract_busy(busy, shares, {} if carry is None else carry, duration)
    return apportion(idle, _by_wait(left, bucket), UNKNOWN)


def by_file_system(stalls: Mapping[str, int], bucket: Bucket | None) -> dict[str, int]:
    """Nanoseconds of `stalls` on storage by known file system."""
    storage = stalls.get(STORAGE, 0)
    if bucket is None or not storage:
        return {}
    looks = sum(bucket.places.values())
    return {
        place.value: storage * number // looks
        for place, number in bucket.places.items()
        if place is not Place.UNKNOWN
    }


def apportion(total: int, shares: Mapping[K, float], otherwise: K) -> dict[K, int]:
    """`total` split by `shares` into whole numbers that add up to it; `otherwise` without any."""
    positive = {name: share for name, share in shares.items() if share > 0}
    whole = sum(positive.values())
    if not positive:
        return {otherwise: total}
    parts = {name: int(total * share / whole) for name, share in positive.items()}
    largest = max(parts, key=lambda name: parts[name])
    parts[largest] += total - sum(parts.values())
    return {name: part for name, part in parts.items() if part}


def engaged(active_ns: int, stalls: Mapping[str, int]) -> int:
    """Nanoseconds of a GPU's work and of its waits within its own rank."""
    return active_ns + sum(ns for wait, ns in stalls.items() if wait in _OWN_WAITS)


def _calibrated(part: Part, counted: float | None, bucket: Bucket) -> dict[Activity, float]:
    """Sampled shares by activity, with RUN replaced by the scheduler's run time, `counted`.

    A difference beyond sampling error means that something else was counted: then the samples
    stand.
    """
    shares, number = part.shares(), max(part.samples, 1)
    sampled = shares.pop(Activity.RUN, 0.0)
    if counted is None or not shares or bucket.held.throttled_periods:
        counted = sampled  # newer kernels count no run-queue delay while a quota throttles
    chance = STALLS.max_sigma * math.sqrt(counted * (1 - counted) / number) + 1 / number
    run = counted if abs(counted - sampled) <= chance else sampled
    rest = {activity: share * (1 - run) / (1 - sampled) for activity, share in shares.items()}
    return {Activity.RUN: run, **rest}


def _with_awaited_reads(shares: dict[Activity, float], bucket: Bucket) -> Mapping[Activity, float]:
    """`shares` of the mains' time, with waits for reading threads counted as reads.

    A main sleeps in its driver rather than in a lock while its GPU works. Busy time is therefore
    subtracted last from a lock behind which threads read; otherwise code that overlaps with the
    GPU's work would pass for the wait. Reads may be shorter than a sampling interval, so the
    threads' dominant activity is judged over seconds.
    """
    if not bucket.awaited:
        return shares
    threads, active = _active_of(Role.THREAD, bucket), _active(bucket)
    most = max(active, key=lambda activity: active[activity])
    if not most.reads or threads[most] < MAJORITY * active[most]:
        return shares  # threads compute, or workers delay the main
    shares = _with_recent_locks(shares, bucket.locked, bucket.of(Role.MAIN).samples)
    awaited = bucket.awaited * shares[Activity.QUEUE]
    shares[Activity.QUEUE] -= awaited
    shares[most] = shares.get(most, 0.0) + awaited
    return shares


def _with_recent_locks(
    shares: Mapping[Activity, float], locked: float, samples: int
) -> dict[Activity, float]:
    """`shares` with the locks' share of the last seconds, `locked`, if sampling error allows.

    A tick's few samples may miss locks, which would be attributed to code that overlaps with the
    GPU's work. The rest of the sleep makes up for the difference.
    """
    queue = shares.get(Activity.QUEUE, 0.0)
    sleep = sum(share for activity, share in shares.items() if activity.rests)
    chance = STALLS.max_sigma * math.sqrt(locked * (1 - locked) / max(samples, 1))
    if abs(locked - queue) > chance or sleep == queue:
        return {**shares, Activity.QUEUE: queue}
    locked = min(locked, sleep)
    scale = (sleep - locked) / (sleep - queue)
    scaled = {
        activity: share * scale if activity.rests else share for activity, share in shares.items()
    }
    return {**scaled, Activity.QUEUE: locked}


def _subtract_busy(
    busy: float, shares: Mapping[Activity, float], carry: Carry, duration_ns: int
) -> dict[Activity, float]:
    """`shares` of the mains' time, less the GPU's `busy` share, in the order of `Activity`.

    A tick that happens to show less sleep than busy time is made up by another. So busy time
    subtracted from I/O is carried to later ticks, where it replaces sleep. Run time is not carried:
    it would accumulate for a main that spins.
    """
    left = {activity: shares.get(activity, 0.0) for activity in Activity}
    for activity in Activity:
        taken = min(left[activity], busy)
        left[activity] -= taken
        busy -= taken
        if taken and (activity.reads or activity is Activity.MEMORY):
            carried = carry.get(activity, 0.0) + taken * duration_ns
            carry[activity] = min(carried, max(STALLS.max_carry_ns, duration_ns / 2))
    for activity in carry:
        # Chance moves these from tick to tick.
        for sleep in (Activity.SLEEP, Activity.QUEUE, Activity.UNKNOWN):
            moved = min(left[sleep], carry[activity] / duration_ns)
            left[sleep] -= moved
            left[activity] += moved
            carry[activity] = max(carry[activity] - moved * duration_ns, 0.0)
    return left


def _by_wait(left: Mapping[Activity, float], bucket: Bucket) -> Mapping[str, float]:
    """Shares by `waiting_on` of `left`, the main's time without the busy share."""
    parts = [
        *((wait, left[Activity.RUN] * share) for wait, share in _running_main(bucket).items()),
        (HOST_CODE, left[Activity.PROGRAM]),
        (_disk(bucket), left[Activity.DISK]),
        (MEMORY, left[Activity.MEMORY]),
        (NETWORK, left[Activity.NETWORK]),
        (UNKNOWN, left[Activity.DRIVER]),
        *_waiting_main({a: share for a, share in left.items() if a.rests}, bucket).items(),
    ]
    shares: dict[str, float] = defaultdict(float)
    for wait, share in parts:
        shares[wait] += share
    return shares


def _running_main(bucket: Bucket) -> dict[str, float]:
    """Shares by `waiting_on` of the launching threads' runnable time."""
    main = bucket.of(Role.MAIN)
    used, samples = main.used, main.by_activity
    if used.queue_ns + used.launch_queue_ns > used.leader_cpu_ns + used.launch_cpu_ns:
        return {_queue(bucket): 1.0}
    waits_too = samples.get(Activity.DISK, 0) >= max(MAJORITY * samples.get(Activity.RUN, 0), 1)
    copying = _copying(used, bucket.elapsed_ns, waits_too=waits_too)
    return {HOST_CODE: 1 - copying, _disk(bucket): copying}


def _waiting_main(waiting: Mapping[Activity, float], bucket: Bucket) -> dict[str, float]:
    """Shares, by `waiting_on`, of the time in which a main thread slept."""
    total = sum(waiting.values())
    if total <= 0:
        return {}
    wait, active = _limit_of_helpers(bucket)
    # A rank that does nothing either delays no other.
    direct = waiting[Activity.PEER] / total if bucket.peer > NEGLIGIBLE else 0.0
    for_peer = direct + (1 - direct) * bucket.peer
    if for_peer > MAJORITY and active < MAJORITY * total:
        wait = None  # helpers prepare the next batch meanwhile
    explained = min(active, total) if wait else 0.0
    left = total - explained
    peer = left * for_peer
    requests = (left - peer) * waiting[Activity.REQUESTS] / total
    unseen = (left - peer - requests) * _unseen(waiting, bucket.of(Role.WORKER))
    asleep = left - peer - requests - unseen
    shares = {PEER: peer, REQUESTS: requests, UNKNOWN: unseen, ASLEEP: asleep}
    if wait:
        shares[wait] = explained
    return shares


def _limit_of_helpers(bucket: Bucket) -> tuple[str | None, float]:
    """The wait behind the helpers' dominant activity, and the mean number of active helpers.

    A helper that both reads and decodes is limited by the longer of the two, so the largest share
    decides.
    """
    active = _active(bucket)
    most = max(active, key=lambda activity: active[activity])
    if active[most] <= 0:
        return None, 0.0
    mean = sum(active.values())
    if most is Activity.RUN:
        if _copies_batches(bucket):
            return HOST_CODE, mean
        used = [bucket.of(role).used for role in _HELPERS]
        cpu_ns = _children_ns(bucket) + sum(counters.own_cpu_ns for counters in used)
        crowded = sum(counters.queue_ns for counters in used) > cpu_ns
        return _queue(bucket) if crowded else WORKER_CPU, mean
    waits = {Activity.DISK: _disk(bucket), Activity.MEMORY: MEMORY, Activity.NETWORK: NETWORK}
    return waits[most], mean


def _copies_batches(bucket: Bucket) -> bool:
    """Whether threads of the main run most of the time while its workers are idle.

    They collate batches or copy them to pinned memory, often with more threads (OpenMP) than that
    is worth.
    """
    workers, threads = bucket.of(Role.WORKER), bucket.of(Role.THREAD)
    if workers.processes < MAJORITY or not workers.samples:
        return False
    at_work = sum(share for activity, share in workers.shares().items() if activity.active)
    return threads.mean(Activity.RUN) > MAJORITY and at_work < MAJORITY


def _active(bucket: Bucket) -> dict[Activity, float]:
    """Mean number of helpers that ran, read files, lacked memory, or waited for a response."""
    elapsed = max(bucket.elapsed_ns, 1)
    by_role = [_active_of(role, bucket) for role in _HELPERS]
    active = {activity: sum(mean[activity] for mean in by_role) for activity in _ACTIVE}
    active[Activity.RUN] += _children_ns(bucket) / elapsed
    if not bucket.of(Role.THREAD).rounds and not bucket.of(Role.WORKER).samples:
        main = bucket.of(Role.MAIN).used
        other_threads_ns = main.own_cpu_ns - main.leader_cpu_ns - main.launch_cpu_ns
        active[Activity.RUN] += max(other_threads_ns, 0) / elapsed
    return active


def _active_of(role: str, bucket: Bucket) -> dict[Activity, float]:
    part, elapsed = bucket.of(role), max(bucket.elapsed_ns, 1)
    used = _of_threads(bucket) if role is Role.THREAD else part.used
    # Related processes are sampled only while active.
    counted = _counted(part, elapsed) if role is Role.WORKER else None
    shares = _calibrated(part, counted, bucket)
    mean = {activity: shares.get(activity, 0.0) * part.processes for activity in _ACTIVE}
    # Exact where the kernel counts it: not for NFS.
    mean[Activity.DISK] = max(mean[Activity.DISK], part.used.disk_ns / elapsed)
    program = shares.get(Activity.PROGRAM, 0.0) * part.processes
    present = max(part.processes, float(role is Role.THREAD))
    idle = present - program - sum(mean.values())
    mean[Activity.RUN] += max(min(part.used.missed_ns / elapsed, idle), 0.0)
    run, disk = mean[Activity.RUN], mean[Activity.DISK]
    copying = run * _copying(used, elapsed, waits_too=disk >= max(MAJORITY * run, NEGLIGIBLE))
    return {**mean, Activity.RUN: run - copying + program, Activity.DISK: disk + copying}


def _of_threads(bucket: Bucket) -> Counters:
    """Counters of the mains' loading threads, with the file data of the mains.

    CPU time is the threads' own where known: a computing main's says nothing about them.
    """
    main, threads = bucket.of(Role.MAIN).used, bucket.of(Role.THREAD).used
    if not threads.cpu_ns:
        return main
    system_ns = min(threads.system_ns, threads.cpu_ns)
    return Counters(
        threads.cpu_ns, system_ns, read_bytes=main.read_bytes, written_bytes=main.written_bytes
    )


def run_is_counted(role: str, bucket: Bucket) -> bool:
    """Whether the kernel counted the runnable time of processes of `role`."""
    if role == Role.MAIN:
        return bucket.main_runnable is not None and not bucket.held.throttled_periods
    part = bucket.of(role)
    return role == Role.WORKER and _counted(part, bucket.elapsed_ns) is not None


def _counted(part: Part, elapsed_ns: int) -> float | None:
    """Share of the time in which processes were runnable; None if other threads ran, too."""
    used, of_ns = part.used, elapsed_ns * part.processes
    if used.own_cpu_ns - used.leader_cpu_ns > NEGLIGIBLE * of_ns:
        return None
    return min((used.leader_cpu_ns + used.queue_ns) / of_ns, 1.0) if of_ns else None


def _children_ns(bucket: Bucket) -> int:
    """CPU time of children that have exited, in nanoseconds."""
    return sum(part.used.children_ns for part in bucket.parts.values())


def _queue(bucket: Bucket) -> str:
    """The quota if it throttles most periods, else contention.

    Only for tasks that wait longer than they run: most periods are throttled long before a quota
    costs anything.
    """
    return (
        CPU_QUOTA if bucket.held.throttled_periods > MAJORITY * bucket.held.periods else CPU_QUEUE
    )


def _disk(bucket: Bucket) -> str:
    """Memory, if most bytes read had been evicted from the page cache; else storage."""
    moved = sum(part.used.io_bytes for part in bucket.parts.values())
    refaults = bucket.held.refault_bytes
    own = MAJORITY * moved < refaults <= STALLS.max_refault_ratio * moved
    many = refaults * 1e9 >= STALLS.thrashing_bytes_per_second * bucket.elapsed_ns
    return MEMORY if own and many else STORAGE


def _copying(used: Counters, elapsed_ns: int, *, waits_too: bool) -> float:
    """Share of the CPU time that the kernel spent on copying and writing back file data.

    Zero unless much data moves, or the task waits for the disk at least half as long as it runs, as
    for a journal with fsync.
    """
    rate = used.io_bytes / max(elapsed_ns / 1e9, 1e-9)
    for_files = rate > STALLS.bulk_bytes_per_second or waits_too
    return used.own_system_ns / used.own_cpu_ns if used.own_cpu_ns and for_files else 0.0


def _unseen(waiting: Mapping[Activity, float], workers: Part) -> float:
    """Share of the sleep without a known reason."""
    if workers.samples:
        return workers.by_activity.get(Activity.UNKNOWN, 0) / workers.samples
    asleep = sum(waiting.values()) - waiting[Activity.REQUESTS]
    return waiting[Activity.UNKNOWN] / asleep if asleep > 0 else 0.0
