"""What an idle GPU waited for: pure arithmetic over what its feeders did meanwhile.

Readings in, nanoseconds out. First, the GPU's busy share is subtracted from the main
thread's samples: while the GPU works, its main may sleep in a synchronize or prepare
the next step, and neither costs anything. Only what is left explains idle time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Counters, Part, Role
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
"""What `STORAGE` is split into, as far as it is known."""

MOSTLY = 0.5
"""More than half of what it is a share of."""
HARDLY = 0.05
"""So little of what it is a share of counts as nothing."""
IDLES = HARDLY
"""Idle share of a tick from which there is something to explain."""
NO_ACCIDENT = 3
"""So many looks, or answers that are alike, tell what a process is or a server does."""
WEIGHT = 0.1
"""Of a later look: what was seen ten looks ago hardly counts."""
_MOST_CARRIED_NS = 1e9
"""So much is wrong at most when a main that does I/O while its GPU works falls asleep, or half of
a tick, if that is more: a single look of a long tick stands for a second of it."""
_BY_CHANCE = 3
"""Standard deviations of a share of few samples: by so much it may miss the true share."""
_BULK_BYTES_PER_SECOND = 20e6
"""At this rate of file data, the kernel's CPU time is spent on copying it."""
_HELPERS = (Role.WORKER, Role.THREAD, Role.RELATED)
_ACTIVE = (Activity.RUN, Activity.DISK, Activity.MEMORY, Activity.NETWORK)
"""What helpers do that holds a main up."""
_HIDES_A_WORKING_GPU = (Activity.SLEEP, Activity.QUEUE, Activity.UNKNOWN)
"""Sleeps that chance moves from tick to tick."""
_AT_MOST = 3
"""Slack, as counters of a control group and of its processes are not read at the same moment."""
_THRASHING_BYTES_PER_SECOND = 256 * 1024
"""Fewer refaults delay nothing: even a disk that seeks for each read-ahead reads far more."""
_OF_ITS_OWN = frozenset(
    {HOST_CODE, WORKER_CPU, CPU_QUEUE, CPU_QUOTA, STORAGE, MEMORY, NETWORK, VIDEO_ENGINE}
)
"""Waits within one rank: while it waits for these, the other ranks of its job wait for it."""


Carry = dict[Activity, float]
"""Nanoseconds of I/O that earlier ticks gave to busy time for want of sleep, by activity."""


def split(
    windows: Sequence[Window],
    holders: int | None,
    did: Bucket | None,
    carry: Carry | None = None,
    engine: float = 0.0,
) -> dict[str, int]:
    """Idle nanoseconds of `windows` by what the GPU waited on; they add up exactly.

    `holders`: how many processes hold the GPU; None if that could not be read. `did`: what its
    feeders did. `carry` is kept from tick to tick of a GPU, and changed. `engine`: the share of the
    time, 0-1, in which a video engine worked. As the driver does not report how it overlaps with
    kernels, the same share of the idle time is taken. It counts like busy time for other waits.
    """
    duration, active = sums(windows)
    video = round((duration - active) * min(engine, 1.0))
    parts = _split(duration, duration - active - video, holders, did, carry)
    return {VIDEO_ENGINE: video, **parts} if video > 0 else parts


def _split(
    duration: int, idle: int, holders: int | None, did: Bucket | None, carry: Carry | None
) -> dict[str, int]:
    if idle <= 0:
        return {}
    busy = 1 - idle / duration
    if holders is None:
        return {UNKNOWN: idle}
    if holders == 0:
        # Busy without a holder: its holder is out of sight, so idle time is unknown, not free.
        return {UNALLOCATED if busy == 0 else UNKNOWN: idle}
    if did is None or not did.of(Role.MAIN).samples:
        return {UNKNOWN: idle}
    # Each tick is charged by itself: a main that sleeps only while its GPU works would be charged
    # for every tick that happens to show more sleep than busy time, and the others would not make
    # up for it.
    seen = _put_right(did.of(Role.MAIN), did.main_runnable, did)
    shares = _with_awaited_reads(seen, did)
    left = _while_idle(busy, shares, {} if carry is None else carry, duration)
    return apportion(idle, _by_wait(left, did))


def by_file_system(stalls: Mapping[str, int], did: Bucket | None) -> dict[str, int]:
    """Nanoseconds of `stalls` on storage by file system; those of an unknown one are left out."""
    storage = stalls.get(STORAGE, 0)
    if did is None or not storage:
        return {}
    looks = sum(did.places.values())
    known = {place.value: n for place, n in did.places.items() if place is not Place.UNKNOWN}
    return {place: storage * number // looks for place, number in known.items()}


def apportion(total: int, shares: Mapping[str, float]) -> dict[str, int]:
    """`total` split by `shares` into whole numbers that add up to it."""
    known = {name: share for name, share in shares.items() if share > 0}
    whole = sum(known.values())
    if not known:
        return {UNKNOWN: total}
    parts = {name: int(total * share / whole) for name, share in known.items()}
    largest = max(parts, key=lambda name: parts[name])
    parts[largest] += total - sum(parts.values())
    return {name: part for name, part in parts.items() if part}


def engaged(active_ns: int, stalls: Mapping[str, int]) -> int:
    """Nanoseconds in which a GPU worked or waited within its own rank."""
    return active_ns + sum(ns for wait, ns in stalls.items() if wait in _OF_ITS_OWN)


def _put_right(part: Part, counted: float | None, did: Bucket) -> dict[Activity, float]:
    """Shares of its time by activity: samples, put right by the run time that was `counted`.

    Ten samples miss the true shares by tens of percent. Where they differ from what was counted by
    more than chance can explain, what was counted is something else.
    """
    shares, number = part.shares(), max(part.samples, 1)
    sampled = shares.pop(Activity.RUN, 0.0)
    if counted is None or not shares or did.held.throttled_periods:
        counted = sampled  # newer kernels count no run queue delay while a quota throttles
    chance = _BY_CHANCE * math.sqrt(counted * (1 - counted) / number) + 1 / number
    run = counted if abs(counted - sampled) <= chance else sampled
    rest = {activity: share * (1 - run) / (1 - sampled) for activity, share in shares.items()}
    return {Activity.RUN: run, **rest}


def _with_awaited_reads(shares: dict[Activity, float], did: Bucket) -> Mapping[Activity, float]:
    """`shares` of the mains' time, where waits for threads that mostly read are reads.

    A main sleeps in its driver rather than in a lock while its GPU works: from a lock behind which
    threads read, busy time is subtracted last, as from a read of its own. Else code that overlaps
    with the GPU's work would pass for what it waits for. What threads mostly do is judged over
    seconds: their reads may be shorter than the time between two looks.
    """
    if not did.awaited:
        return shares
    threads, active = _active_of(Role.THREAD, did), _active(did)
    most = max(active, key=lambda activity: active[activity])
    if not most.reads or threads[most] < MOSTLY * active[most]:
        return shares  # they compute, or workers hold it up
    shares = _with_locked(shares, did.locked, did.of(Role.MAIN).samples)
    awaited = did.awaited * shares[Activity.QUEUE]
    shares[Activity.QUEUE] -= awaited
    shares[most] = shares.get(most, 0.0) + awaited
    return shares


def _with_locked(
    shares: Mapping[Activity, float], locked: float, samples: int
) -> dict[Activity, float]:
    """`shares` with that of locks as over the last seconds, `locked`, if chance explains the rest.

    A tick has few samples: what these miss of the locks would be charged to the code that overlaps
    with the GPU's work. The other sleep makes up for the difference.
    """
    queue = shares.get(Activity.QUEUE, 0.0)
    sleep = sum(share for activity, share in shares.items() if activity.rests)
    chance = _BY_CHANCE * math.sqrt(locked * (1 - locked) / max(samples, 1))
    if abs(locked - queue) > chance or sleep == queue:
        return {**shares, Activity.QUEUE: queue}
    locked = min(locked, sleep)
    scale = (sleep - locked) / (sleep - queue)
    rests = {one: share * scale if one.rests else share for one, share in shares.items()}
    return {**rests, Activity.QUEUE: locked}


def _while_idle(
    busy: float, shares: Mapping[Activity, float], carry: Carry, duration_ns: int
) -> dict[Activity, float]:
    """`shares` of the mains' time, less the GPU's `busy` share, in the order of `Activity`.

    Where one tick shows less sleep than busy time, by chance, another shows more, and that is no
    wait. So what is subtracted from I/O for want of sleep is carried to later ticks, where it
    replaces sleep. Run time is not carried: a main that spins while its GPU works would be owed
    all the time.
    """
    left = {activity: shares.get(activity, 0.0) for activity in Activity}
    for activity in Activity:
        taken = min(left[activity], busy)
        left[activity] -= taken
        busy -= taken
        if taken and (activity.reads or activity is Activity.MEMORY):
            carried = carry.get(activity, 0.0) + taken * duration_ns
            carry[activity] = min(carried, max(_MOST_CARRIED_NS, duration_ns / 2))
    for activity in carry:
        for sleep in _HIDES_A_WORKING_GPU:
            paid = min(left[sleep], carry[activity] / duration_ns)
            left[sleep] -= paid
            left[activity] += paid
            carry[activity] = max(carry[activity] - paid * duration_ns, 0.0)
    return left


def _by_wait(left: Mapping[Activity, float], did: Bucket) -> Mapping[str, float]:
    """Shares by `waiting_on` of the main's time that is `left` without the busy share."""
    parts = [
        *((wait, left[Activity.RUN] * share) for wait, share in _running_main(did).items()),
        (HOST_CODE, left[Activity.PROGRAM]),
        (_disk(did), left[Activity.DISK]),
        (MEMORY, left[Activity.MEMORY]),
        (NETWORK, left[Activity.NETWORK]),
        (UNKNOWN, left[Activity.DRIVER]),
        *_waiting_main({one: share for one, share in left.items() if one.rests}, did).items(),
    ]
    shares: dict[str, float] = defaultdict(float)
    for wait, share in parts:
        shares[wait] += share
    return shares


def _running_main(did: Bucket) -> dict[str, float]:
    """What runnable threads of a main that launch kernels were delayed by."""
    main = did.of(Role.MAIN)
    used, seen = main.used, main.seen
    if used.queue_ns + used.launch_queue_ns > used.leader_cpu_ns + used.launch_cpu_ns:
        return {_queue(did): 1.0}
    waits_too = seen.get(Activity.DISK, 0) >= max(MOSTLY * seen.get(Activity.RUN, 0), 1)
    copying = _copying(used, did.elapsed_ns, waits_too=waits_too)
    return {HOST_CODE: 1 - copying, _disk(did): copying}


def _waiting_main(waiting: Mapping[Activity, float], did: Bucket) -> dict[str, float]:
    """What a main thread slept for, over the share of time that it slept."""
    total = sum(waiting.values())
    if total <= 0:
        return {}
    wait, active = _held_up_by(did)
    # Where the other rank does nothing either, it is none that is waited for.
    direct = waiting[Activity.PEER] / total if did.peer > HARDLY else 0.0
    for_peer = direct + (1 - direct) * did.peer
    if for_peer > MOSTLY and active < MOSTLY * total:
        wait = None  # its helpers only prepare the next batch while it waits for the other rank
    explained = min(active, total) if wait else 0.0
    left = total - explained
    peer = left * for_peer
    requests = (left - peer) * waiting[Activity.REQUESTS] / total
    unseen = (left - peer - requests) * _unseen(waiting, did.of(Role.WORKER))
    asleep = left - peer - requests - unseen
    shares = {PEER: peer, REQUESTS: requests, UNKNOWN: unseen, ASLEEP: asleep}
    if wait:
        shares[wait] = explained
    return shares


def _held_up_by(did: Bucket) -> tuple[str | None, float]:
    """What takes most of the helpers' time, and how many of them are active on average.

    Helpers are workers, loading threads, related processes, and short-lived children. A helper
    that both reads and decodes is limited by whichever takes longer, so the largest share
    decides.
    """
    active = _active(did)
    most = max(active, key=lambda activity: active[activity])
    if active[most] <= 0:
        return None, 0.0
    mean = sum(active.values())
    if most is Activity.RUN:
        if _copies_batches(did):
            return HOST_CODE, mean
        used = [did.of(role).used for role in _HELPERS]
        cpu_ns = _children_ns(did) + sum(one.own_cpu_ns for one in used)
        crowded = sum(one.queue_ns for one in used) > cpu_ns
        return _queue(did) if crowded else WORKER_CPU, mean
    waits = {Activity.DISK: _disk(did), Activity.MEMORY: MEMORY, Activity.NETWORK: NETWORK}
    return waits[most], mean


def _copies_batches(did: Bucket) -> bool:
    """Whether threads of the main run most of the time while its workers rest.

    Beside workers they load nothing: they collate what these hand over, or copy it to pinned
    memory, often with more threads (OpenMP) than that is worth.
    """
    workers, threads = did.of(Role.WORKER), did.of(Role.THREAD)
    if workers.processes < MOSTLY or not workers.samples:
        return False
    at_work = sum(share for activity, share in workers.shares().items() if activity.active)
    return threads.mean(Activity.RUN) > MOSTLY and at_work < MOSTLY


def _active(did: Bucket) -> dict[Activity, float]:
    """Mean number of helpers that ran, read files, lacked memory, or waited for an answer."""
    elapsed = max(did.elapsed_ns, 1)
    by_role = [_active_of(role, did) for role in _HELPERS]
    active = {activity: sum(mean[activity] for mean in by_role) for activity in _ACTIVE}
    active[Activity.RUN] += _children_ns(did) / elapsed
    if not did.of(Role.THREAD).looks and not did.of(Role.WORKER).samples:
        main = did.of(Role.MAIN).used
        other_threads_ns = main.own_cpu_ns - main.leader_cpu_ns - main.launch_cpu_ns
        active[Activity.RUN] += max(other_threads_ns, 0) / elapsed
    return active


def _active_of(role: str, did: Bucket) -> dict[Activity, float]:
    """The same of the helpers of one role."""
    part, elapsed = did.of(role), max(did.elapsed_ns, 1)
    used = _of_threads(did) if role is Role.THREAD else part.used
    # Related processes count while they do enough: their counters and samples differ.
    counted = _counted(part, elapsed) if role is Role.WORKER else None
    shares = _put_right(part, counted, did)
    mean = {one: shares.get(one, 0.0) * part.processes for one in _ACTIVE}
    # Counted where the kernel does so: reads may be shorter than looks are exact. Not of NFS.
    mean[Activity.DISK] = max(mean[Activity.DISK], part.used.disk_ns / elapsed)
    run, disk = mean[Activity.RUN], mean[Activity.DISK]
    copying = run * _copying(used, elapsed, waits_too=disk >= max(MOSTLY * run, HARDLY))
    program = shares.get(Activity.PROGRAM, 0.0) * part.processes
    return {**mean, Activity.RUN: run - copying + program, Activity.DISK: disk + copying}


def _of_threads(did: Bucket) -> Counters:
    """What loading threads of the mains used, with the file data of the mains.

    File data is counted by process. CPU time is the threads' own, where it is known: the kernel's
    share of that of a main that computes while its threads read says nothing of these.
    """
    main, threads = did.of(Role.MAIN).used, did.of(Role.THREAD).used
    if not threads.cpu_ns:
        return main
    system_ns = min(threads.system_ns, threads.cpu_ns)
    return Counters(
        threads.cpu_ns, system_ns, read_bytes=main.read_bytes, written_bytes=main.written_bytes
    )


def run_is_counted(role: str, did: Bucket) -> bool:
    """Whether the kernel counted for how long those of `role` were runnable."""
    if role == Role.MAIN:
        return did.main_runnable is not None and not did.held.throttled_periods
    part = did.of(role)
    return role == Role.WORKER and _counted(part, did.elapsed_ns) is not None


def _counted(part: Part, elapsed_ns: int) -> float | None:
    """Share of their time in which processes were runnable; None if other threads ran, too.

    Of these nobody counts how they overlap.
    """
    used, of_ns = part.used, elapsed_ns * part.processes
    if used.own_cpu_ns - used.leader_cpu_ns > HARDLY * of_ns:
        return None
    return min((used.leader_cpu_ns + used.queue_ns) / of_ns, 1.0) if of_ns else None


def _children_ns(did: Bucket) -> int:
    """CPU time of children that came and went."""
    return sum(part.used.children_ns for part in did.parts.values())


def _queue(did: Bucket) -> str:
    """Quota or contention? Tasks that a quota throttles look runnable too, so the quota wins.

    Call it only for tasks that wait longer than they run: most periods are throttled long
    before a quota costs anything.
    """
    return CPU_QUOTA if did.held.throttled_periods > MOSTLY * did.held.periods else CPU_QUEUE


def _disk(did: Bucket) -> str:
    """Memory, if most of the bytes read had been evicted from the page cache; else storage.

    Refaults far above what the feeders read belong to other processes of their control group.
    """
    moved = sum(part.used.io_bytes for part in did.parts.values())
    refaults = did.held.refault_bytes
    own = MOSTLY * moved < refaults <= _AT_MOST * moved
    many = refaults * 1e9 >= _THRASHING_BYTES_PER_SECOND * did.elapsed_ns
    return MEMORY if own and many else STORAGE


def _copying(used: Counters, elapsed_ns: int, *, waits_too: bool) -> float:
    """Share of the CPU time that the kernel spent on copying and writing back file data.

    Counted where much data moves, or where the task also waits for the disk at least half as
    long as it runs: a journal with fsync moves little data.
    """
    rate = used.io_bytes / max(elapsed_ns / 1e9, 1e-9)
    for_files = rate > _BULK_BYTES_PER_SECOND or waits_too
    return used.own_system_ns / used.own_cpu_ns if used.own_cpu_ns and for_files else 0.0


def _unseen(waiting: Mapping[Activity, float], workers: Part) -> float:
    """Share of the sleep whose reason the kernel does not disclose."""
    if workers.samples:
        return workers.seen.get(Activity.UNKNOWN, 0) / workers.samples
    asleep = sum(waiting.values()) - waiting[Activity.REQUESTS]
    return waiting[Activity.UNKNOWN] / asleep if asleep > 0 else 0.0
