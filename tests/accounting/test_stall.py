"""The stall split: exact sums whatever the readings, and the right cause for clear ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import (
    Bucket,
    CgroupCounters,
    Counters,
    History,
    Part,
    Role,
)
from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    CPU_QUEUE,
    CPU_QUOTA,
    HOST_CODE,
    MEMORY,
    NETWORK,
    PEER,
    REQUESTS,
    STORAGE,
    UNALLOCATED,
    UNKNOWN,
    WAITING_ON,
    WORKER_CPU,
    Carry,
    by_file_system,
    engaged,
    split,
)
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.host.mounts import Place
from support.rows import rows

SECOND = 1_000_000_000
HELD = 1
ROLES = (Role.MAIN, Role.WORKER, Role.THREAD, Role.RELATED)
NOTHING, NOT_HELD = Counters(), CgroupCounters()
WAITS: Mapping[Activity, int] = {Activity.QUEUE: 10}
RUNS = {Activity.RUN: 20}
CPU = Counters(cpu_ns=SECOND, leader_cpu_ns=SECOND)
STARVED = Counters(cpu_ns=SECOND // 4, leader_cpu_ns=SECOND // 4, queue_ns=SECOND)


def windows(busy: float) -> list[Window]:
    active = round(SECOND * busy)
    return [Window(SECOND, SECOND, active)]


def shares(did: Bucket | None, busy: float = 0.1, holders: int | None = HELD) -> dict[str, float]:
    idle, parts = SECOND - round(SECOND * busy), split(windows(busy), holders, did)
    return {cause: round(ns / idle, 2) for cause, ns in parts.items()}


def part(
    seen: Mapping[Activity, int] | None = None, number: float = 1.0, used: Counters = NOTHING
) -> Part:
    """Of so many processes, on average, at 100 looks."""
    return Part(dict(seen or {}), round(number * 100), 100, used)


def threads(number: int, looks: int, seen: Activity = Activity.RUN) -> Part:
    """Samples of threads, of which only those that are active are counted."""
    return Part({seen: number}, number, looks)


def bucket(  # noqa: PLR0913 - what a test is about
    main: Mapping[Activity, int] = WAITS,
    used: Counters = NOTHING,
    *,
    held: CgroupCounters = NOT_HELD,
    runnable: float | None = None,
    peer: float = 0.0,
    places: Mapping[Place, int] | None = None,
    **helpers: Part,
) -> Bucket:
    """A second of a main, which waits if nothing else is said, and its helpers by role."""
    return Bucket(
        elapsed_ns=SECOND,
        parts={Role.MAIN: part(main, used=used), **helpers},
        held=held,
        runnable_ns=round((runnable or 0.0) * SECOND),
        counted_ns=0 if runnable is None else SECOND,
        peer=peer,
        places=dict(places or {}),
    )


def loader(
    workers: Mapping[Activity, int] | None = None,
    used: Counters = NOTHING,
    *,
    main: Mapping[Activity, int] = WAITS,
    used_by_main: Counters = NOTHING,
    **described: Any,  # noqa: ANN401 - see `bucket`
) -> Bucket:
    """A main that waits for two workers."""
    return bucket(main, used_by_main, worker=part(workers, 2.0, used), **described)


def spent(user_ns: int, system_ns: int, io_bytes: int) -> Counters:
    """By a process with one thread."""
    return Counters(user_ns + system_ns, system_ns, user_ns + system_ns, read_bytes=io_bytes)


@rows(
    "found, did, busy, holders",
    {
        "nobody holds it": (UNALLOCATED, None, 0.0, 0),
        "it works for nobody": (UNKNOWN, None, 0.3, 0),
        "holders that cannot be read": (UNKNOWN, loader(), 0.0, None),
        "feeders that are not known": (UNKNOWN, None, 0.1, 1),
        "feeders that were not looked at": (UNKNOWN, Bucket(elapsed_ns=SECOND), 0.1, 1),
    },
)
def test_whose_it_is(found: str, did: Bucket | None, busy: float, holders: int | None) -> None:
    assert shares(did, busy, holders) == {found: 1.0}


DISK, NET, QUEUE, RUN = Activity.DISK, Activity.NETWORK, Activity.QUEUE, Activity.RUN
SLEEP, REQUEST = Activity.SLEEP, Activity.REQUESTS
EVICTED, FEW_EVICTED = CgroupCounters(refault_bytes=9 * 10**6), CgroupCounters(refault_bytes=10**6)
THROTTLED = CgroupCounters(periods=10, throttled_periods=9)
SELDOM_THROTTLED = CgroupCounters(periods=10, throttled_periods=2)
READS, READS_LITTLE = Counters(read_bytes=10**7), Counters(read_bytes=10**5)
JOURNAL = spent(SECOND // 100, SECOND // 4, 10**7)
KERNEL = spent(SECOND // 100, SECOND // 2, 10**7)
SEVERAL_THREADS = Counters(2 * SECOND, leader_cpu_ns=SECOND // 10)
HALF: dict[str, Any] = {"main": {QUEUE: 5, RUN: 5}, "used_by_main": CPU}
HALF_SEEN = {REQUEST: 5, Activity.UNKNOWN: 5}
SYSTEM = spent(SECOND // 50, 17 * SECOND // 10, 10**7)


def reads(held: CgroupCounters, used: Counters = READS) -> Bucket:
    """Workers that wait for the disk."""
    return loader({DISK: 20}, used, held=held)


def mixed(run: int, **other: int) -> Bucket:
    """Workers that run for `run` of 100 looks, and do something else at the others."""
    cpu_ns = 2 * SECOND * run // 100
    ((name, number),) = other.items()
    return loader({Activity[name]: number, RUN: run}, Counters(cpu_ns, leader_cpu_ns=cpu_ns))


def kin(states: Mapping[Activity, int]) -> Bucket:
    """A waiting main with two of them."""
    return bucket(related=part(states, 2.0))


def helpers(states: Mapping[Activity, int], used: Counters = CPU) -> Bucket:
    """A waiting main whose threads load."""
    return bucket(thread=Part(dict(states), sum(states.values()), 10, used))


@rows(
    "cause, did",
    {
        "workers compute": (WORKER_CPU, loader(RUNS, CPU)),
        "workers wait for a CPU": (CPU_QUEUE, loader(RUNS, STARVED)),
        "workers read": (STORAGE, loader({DISK: 20}, CPU)),
        "workers fetch": (NETWORK, loader({NET: 20}, CPU)),
        "workers wait": (ASLEEP, loader({QUEUE: 20}, CPU)),
        "workers sleep": (ASLEEP, loader({SLEEP: 20}, CPU)),
        "workers cannot be seen": (UNKNOWN, loader({Activity.UNKNOWN: 20}, CPU)),
        "mostly compute": (WORKER_CPU, mixed(84, DISK=16)),
        "mostly read": (STORAGE, mixed(38, DISK=62)),
        "mostly fetch": (NETWORK, mixed(40, NETWORK=60)),
        "two that a look missed": (WORKER_CPU, bucket(worker=part({QUEUE: 6, RUN: 4}, 2.0, CPU))),
        "threads compute": (WORKER_CPU, helpers(RUNS)),
        "threads wait for a CPU": (CPU_QUEUE, helpers(RUNS, STARVED)),
        "threads read": (STORAGE, helpers({DISK: 20})),
        "threads fetch": (NETWORK, helpers({NET: 20})),
        "threads do nothing": (ASLEEP, helpers({})),
        "threads that load in the main": (WORKER_CPU, bucket(used=Counters(cpu_ns=2 * SECOND))),
        "kin compute": (WORKER_CPU, kin(RUNS)),
        "kin read": (STORAGE, kin({DISK: 20})),
        "kin fetch": (NETWORK, kin({NET: 20})),
        "kin wait": (ASLEEP, kin({QUEUE: 20})),
        "kin wait for requests": (ASLEEP, kin({REQUEST: 20})),
        "kin are gone": (ASLEEP, kin({Activity.GONE: 20})),
        "kin compute, and most are gone": (WORKER_CPU, kin({RUN: 10, Activity.GONE: 90})),
        "one of many kin": (WORKER_CPU, bucket(related=part({RUN: 10, QUEUE: 90}, 10.0))),
        "children that come and go": (WORKER_CPU, bucket(used=Counters(children_ns=SECOND))),
        "quota wins over queue": (CPU_QUOTA, loader(RUNS, STARVED, held=THROTTLED)),
        "a little throttling": (CPU_QUEUE, loader(RUNS, STARVED, held=SELDOM_THROTTLED)),
        "reads again what was evicted": (MEMORY, reads(EVICTED)),
        "reads some of it again": (STORAGE, reads(FEW_EVICTED)),
        "a few refaults": (STORAGE, reads(CgroupCounters(refault_bytes=10**5), READS_LITTLE)),
        "a neighbour's refaults": (STORAGE, reads(EVICTED, Counters(read_bytes=10**6))),
        "a neighbour's, and nothing read": (STORAGE, reads(EVICTED, Counters(read_bytes=0))),
        "a main that computes": (HOST_CODE, loader(main=RUNS, used_by_main=CPU)),
        "a main that fetches, whatever workers do": (NETWORK, loader(RUNS, CPU, main={NET: 10})),
        "a journal, and workers": (STORAGE, loader({RUN: 5, DISK: 6}, JOURNAL)),
        "the kernel's time of workers": (WORKER_CPU, loader({RUN: 6, DISK: 1}, SYSTEM)),
    },
)
def test_what_a_waiting_main_is_held_up_by(cause: str, did: Bucket) -> None:
    assert shares(did) == {cause: 1.0}


@rows(
    "found, busy, did",
    {
        "waits while the GPU works": ({HOST_CODE: 1.0}, 0.5, loader(RUNS, CPU, **HALF)),
        "sleeps while the GPU works": ({HOST_CODE: 1.0}, 0.3, bucket({SLEEP: 3, RUN: 7}, CPU)),
        "never seen asleep": ({HOST_CODE: 1.0}, 0.0, bucket({RUN: 10}, runnable=0.8)),
        "threads, whose overlap samples tell": (
            {WORKER_CPU: 0.56, ASLEEP: 0.44},
            0.1,
            bucket(worker=part({QUEUE: 15, RUN: 5}, 2.0, SEVERAL_THREADS)),
        ),
        "a peer": ({PEER: 0.9, ASLEEP: 0.1}, 0.0, bucket({SLEEP: 10}, peer=0.9)),
        "a server": ({REQUESTS: 1.0}, 0.0, bucket({REQUEST: 10})),
        "its kin work": ({WORKER_CPU: 1.0}, 0.0, bucket({REQUEST: 10}, related=part({RUN: 10}))),
        "a server, half unseen": ({REQUESTS: 0.5, UNKNOWN: 0.5}, 0.0, bucket(HALF_SEEN)),
        "a busy GPU": ({}, 1.0, loader()),
        "a journal": ({STORAGE: 0.98, HOST_CODE: 0.02}, 0.0, bucket({RUN: 5, DISK: 6}, JOURNAL)),
        "the kernel's": ({HOST_CODE: 0.86, STORAGE: 0.14}, 0.0, bucket({RUN: 6, DISK: 1}, KERNEL)),
        "the largest of all helpers": (
            {NETWORK: 0.8, ASLEEP: 0.2},
            0.0,
            loader({QUEUE: 20}, thread=threads(6, 10, NET), related=part({RUN: 20}, 0.2)),
        ),
    },
)
def test_what_idle_time_is_split_into(found: dict[str, float], busy: float, did: Bucket) -> None:
    assert shares(did, busy) == found


def test_counters_read_soon_after_a_window_belong_to_it() -> None:
    history = History()
    history.add_pass(Bucket(at_ns=SECOND, parts={Role.MAIN: part(RUNS)}))
    for at_ns, used in ((2 * SECOND, CPU), (3 * SECOND, STARVED)):
        second = Bucket(at_ns, SECOND, {Role.MAIN: Part(used=used)})
        history.add_second(second)
    found = history.explaining(0, SECOND)
    assert found is not None
    assert (found.of(Role.MAIN).used, found.elapsed_ns) == (CPU, SECOND)


def test_time_of_threads_is_not_counted_twice() -> None:
    did = bucket(used=Counters(cpu_ns=SECOND), thread=threads(6, 10, NET))
    assert WORKER_CPU not in shares(did)
    spins_while_the_gpu_works = loader(RUNS, CPU, main={RUN: 3, QUEUE: 7}, used_by_main=CPU)
    assert WORKER_CPU in shares(spins_while_the_gpu_works, 0.3)


@pytest.mark.parametrize(("throttled", "working"), [(0, 0.02), (1, 0.44)])
def test_while_a_quota_throttles_only_samples_tell_how_long_workers_were_runnable(
    throttled: int, working: float
) -> None:
    used = Counters(leader_cpu_ns=SECOND // 50, queue_ns=SECOND // 500)
    held = CgroupCounters(periods=10, throttled_periods=throttled)
    did = bucket(worker=part({QUEUE: 19, RUN: 1}, 8.0, used), held=held)
    assert shares(did)[ASLEEP] == pytest.approx(1 - working, abs=0.01)


@rows(
    "described, host_code",
    {
        "as counted": ({"runnable": 0.5}, 0.5),
        "not counted": ({}, 0.4),
        "the samples rule it out": ({"runnable": 1.0}, 0.4),
        "under a quota": ({"runnable": 0.5, "held": CgroupCounters(throttled_periods=1)}, 0.4),
    },
)
def test_how_long_a_main_ran_is_as_counted_unless_that_cannot_be(
    described: dict[str, Any], host_code: float
) -> None:
    states = {Activity.RUN: 4, Activity.DISK: 3, Activity.SLEEP: 3}
    feeders = bucket(states, **described)
    found = shares(feeders, 0.0)
    assert found[HOST_CODE] == host_code
    assert found[STORAGE] == found[ASLEEP] == (1 - host_code) / 2


@pytest.mark.parametrize("state", Activity)
def test_what_a_main_does_while_its_gpu_works_hardly_changes_what_it_is_charged_for_later(
    state: Activity,
) -> None:
    carry: Carry = {}
    for _ in range(60):
        split(windows(0.9), HELD, bucket({state: 10}), carry)
    parts = Counter[str]()
    for _ in range(10):
        parts.update(split(windows(0.0), HELD, bucket({Activity.SLEEP: 10}), carry))
    assert parts[ASLEEP] >= 9 * SECOND
    assert state in (Activity.NETWORK, Activity.DISK) or parts[ASLEEP] == 10 * SECOND


@rows(
    "active, stalls, share",
    {
        "works": (SECOND, {}, 1.0),
        "is starved": (0, {WORKER_CPU: SECOND}, 1.0),
        "waits for remote data": (0, {NETWORK: SECOND}, 1.0),
        "in part": (0, {HOST_CODE: SECOND // 2, ASLEEP: SECOND // 2}, 0.5),
        "waits for another: nobody waits in a circle": (0, {PEER: SECOND}, 0.0),
        "sleeps": (0, {ASLEEP: SECOND}, 0.0),
        "waits for requests": (0, {REQUESTS: SECOND}, 0.0),
        "unknown": (0, {UNKNOWN: SECOND}, 0.0),
        "nobody's": (0, {UNALLOCATED: SECOND}, 0.0),
        "all of it": (SECOND // 4, {STORAGE: SECOND // 4, PEER: SECOND // 2}, 0.5),
    },
)
def test_peers_wait_for_one_that_works_or_is_held_up_itself(
    active: int, stalls: dict[str, int], share: float
) -> None:
    assert engaged(active, stalls) / SECOND == share


STATES = st.dictionaries(st.sampled_from(list(Activity)), st.integers(0, 50))
NANOSECONDS = st.integers(0, 10 * SECOND)
COUNTERS = st.builds(Counters, *[NANOSECONDS] * 5, *[st.none() | NANOSECONDS] * 2, NANOSECONDS)
PARTS = st.builds(Part, STATES, st.integers(0, 6400), st.integers(1, 100), COUNTERS)
BUCKETS = st.builds(
    Bucket,
    elapsed_ns=NANOSECONDS,
    parts=st.fixed_dictionaries({}, optional=dict.fromkeys(ROLES, PARTS)),
    held=st.builds(
        CgroupCounters,
        refault_bytes=st.integers(0, 10**10),
        periods=st.integers(0, 100),
        throttled_periods=st.integers(0, 100),
    ),
    runnable_ns=NANOSECONDS,
    counted_ns=NANOSECONDS,
    peer=st.floats(0, 1),
)
PAIRS = st.tuples(st.integers(1, SECOND), st.floats(0, 1))
WINDOW = PAIRS.map(lambda pair: Window(0, pair[0], int(pair[0] * pair[1])))
WINDOWS = st.lists(WINDOW, min_size=1, max_size=10)


TICKS = st.tuples(WINDOWS, st.none() | st.integers(0, 4), st.none() | BUCKETS)


@given(st.lists(TICKS, min_size=1, max_size=5))
def test_idle_time_is_split_exactly(
    ticks: list[tuple[list[Window], int | None, Bucket | None]],
) -> None:
    carry: Carry = {}
    for of_tick, holders, feeders in ticks:
        parts = split(of_tick, holders, feeders, carry)
        idle = sum(window.duration_ns - window.active_ns for window in of_tick)
        assert sum(parts.values()) == idle
        assert all(part > 0 for part in parts.values())
        assert set(parts) <= set(WAITING_ON)
        active = sum(window.active_ns for window in of_tick)
        assert active <= engaged(active, parts) <= active + idle
        assert all(0 <= ns <= SECOND for ns in carry.values())


@given(st.integers(0, 10 * SECOND), st.dictionaries(st.sampled_from(Place), st.integers(1, 40)))
def test_storage_is_split_as_it_was_seen(storage: int, places: dict[Place, int]) -> None:
    parts = by_file_system({STORAGE: storage, HOST_CODE: SECOND}, loader(places=places))
    known = {place.value for place in places} - {Place.UNKNOWN.value} if storage else set()
    assert parts.keys() == known
    for place, number in places.items():
        share = storage * number / sum(places.values())
        assert place is Place.UNKNOWN or share - 1 <= parts.get(place.value, 0) <= share


def test_of_storage_that_nobody_was_seen_to_wait_for_no_file_system_is_known() -> None:
    assert by_file_system({STORAGE: SECOND}, loader()) == {}
    assert by_file_system({STORAGE: SECOND}, None) == {}
