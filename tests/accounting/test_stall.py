"""The stall split: exact sums whatever the readings, and the right cause for clear ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, CgroupCounters, Counters, Part, Role
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
    apportion,
    by_file_system,
    engaged,
    split,
)
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.host.mounts import Place

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
    idle = SECOND - round(SECOND * busy)
    return {
        cause: round(part / idle, 2) for cause, part in split(windows(busy), holders, did).items()
    }


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
    workers: Part | None = None,
    threads: Part | None = None,
    related: Part | None = None,
    held: CgroupCounters = NOT_HELD,
    runnable: float | None = None,
    peer: float = 0.0,
    places: Mapping[Place, int] | None = None,
) -> Bucket:
    """A second of a main, which waits if nothing else is said, and its helpers."""
    parts = {
        Role.MAIN: part(main, used=used),
        Role.WORKER: workers,
        Role.THREAD: threads,
        Role.RELATED: related,
    }
    return Bucket(
        elapsed_ns=SECOND,
        parts={role: one for role, one in parts.items() if one is not None},
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
    return bucket(main, used_by_main, workers=part(workers, 2.0, used), **described)


def spent(user_ns: int, system_ns: int, io_bytes: int) -> Counters:
    """By a process with one thread."""
    return Counters(user_ns + system_ns, system_ns, user_ns + system_ns, read_bytes=io_bytes)


def test_a_busy_gpu_waits_for_nothing() -> None:
    assert split(windows(1.0), HELD, loader()) == {}


def test_nobody_holds_it() -> None:
    assert shares(None, 0.0, 0) == {UNALLOCATED: 1.0}


def test_a_gpu_that_works_for_nobody_is_not_unallocated() -> None:
    assert shares(None, 0.3, 0) == {UNKNOWN: 1.0}


def test_holders_that_cannot_be_read_are_unknown() -> None:
    assert shares(loader(), 0.0, None) == {UNKNOWN: 1.0}


@pytest.mark.parametrize("did", [None, Bucket(elapsed_ns=SECOND)])
def test_feeders_that_were_not_looked_at_are_unknown(did: Bucket | None) -> None:
    assert shares(did) == {UNKNOWN: 1.0}


@pytest.mark.parametrize(
    ("workers", "usage", "cause"),
    [
        (RUNS, CPU, WORKER_CPU),
        (RUNS, STARVED, CPU_QUEUE),
        ({Activity.DISK: 20}, CPU, STORAGE),
        ({Activity.NETWORK: 20}, CPU, NETWORK),
        ({Activity.QUEUE: 20}, CPU, ASLEEP),
        ({Activity.SLEEP: 20}, CPU, ASLEEP),
        ({Activity.UNKNOWN: 20}, CPU, UNKNOWN),
    ],
)
def test_a_waiting_main_is_held_up_by_what_its_workers_do(
    workers: dict[Activity, int], usage: Counters, cause: str
) -> None:
    assert shares(loader(workers, usage)) == {cause: 1.0}


@pytest.mark.parametrize(
    ("workers", "cause"),
    [
        ({Activity.DISK: 16, Activity.RUN: 84}, WORKER_CPU),
        ({Activity.DISK: 62, Activity.RUN: 38}, STORAGE),
        ({Activity.NETWORK: 60, Activity.RUN: 40}, NETWORK),
    ],
)
def test_the_larger_share_of_a_workers_time_names_the_cause(
    workers: dict[Activity, int], cause: str
) -> None:
    cpu_ns = 2 * SECOND * workers[Activity.RUN] // 100
    used = Counters(cpu_ns, leader_cpu_ns=cpu_ns)
    assert shares(loader(workers, used)) == {cause: 1.0}


def test_workers_that_hardly_work_do_not_explain_a_long_wait() -> None:
    workers = {Activity.RUN: 1, Activity.QUEUE: 99}
    assert shares(loader(workers, CPU))[ASLEEP] >= 0.95


@pytest.mark.parametrize("seen", [Activity.RUN, Activity.QUEUE])
def test_one_look_by_chance_does_not_make_eight_workers_run(seen: Activity) -> None:
    """Each wakes now and then and does little: of ten looks at one of them, one may see it run."""
    used = Counters(leader_cpu_ns=SECOND // 50, queue_ns=SECOND // 50)
    workers = part({Activity.QUEUE: 9, seen: 1}, 8.0, used)
    assert shares(bucket(workers=workers)) == {ASLEEP: 0.96, CPU_QUEUE: 0.04}


def test_two_workers_that_a_look_by_chance_missed_are_counted() -> None:
    used = Counters(SECOND, leader_cpu_ns=SECOND)
    workers = part({Activity.QUEUE: 6, Activity.RUN: 4}, 2.0, used)
    assert shares(bucket(workers=workers)) == {WORKER_CPU: 1.0}


@pytest.mark.parametrize(("throttled", "working"), [(0, 0.02), (1, 0.44)])
def test_while_a_quota_throttles_only_samples_tell_how_long_workers_were_runnable(
    throttled: int, working: float
) -> None:
    used = Counters(leader_cpu_ns=SECOND // 50, queue_ns=SECOND // 500)
    workers = part({Activity.QUEUE: 19, Activity.RUN: 1}, 8.0, used)
    held = CgroupCounters(periods=10, throttled_periods=throttled)
    assert shares(bucket(workers=workers, held=held))[ASLEEP] == pytest.approx(
        1 - working, abs=0.01
    )


def test_of_workers_with_several_threads_only_samples_tell_how_they_overlap() -> None:
    used = Counters(2 * SECOND, leader_cpu_ns=SECOND // 10)
    workers = part({Activity.QUEUE: 15, Activity.RUN: 5}, 2.0, used)
    assert shares(bucket(workers=workers)) == {WORKER_CPU: 0.56, ASLEEP: 0.44}


def test_a_main_that_waits_only_while_the_gpu_works_waits_for_the_gpu() -> None:
    states = {Activity.QUEUE: 5, Activity.RUN: 5}
    feeders = loader(RUNS, CPU, main=states, used_by_main=CPU)
    assert shares(feeders, 0.5) == {HOST_CODE: 1.0}


@given(st.lists(st.booleans(), min_size=10, max_size=10))
def test_chance_in_the_samples_charges_no_sleep_of_a_main_that_waits_for_its_gpu_only(
    sleeps: list[bool],
) -> None:
    seen = {Activity.SLEEP: sum(sleeps), Activity.RUN: 10 - sum(sleeps)}
    feeders = bucket(seen, runnable=0.85)
    likely = sum(sleeps) <= 5
    assert (ASLEEP not in shares(feeders, 0.15)) is likely


@pytest.mark.parametrize(
    ("described", "host_code"),
    [
        pytest.param({"runnable": 0.5}, 0.5, id="as counted"),
        pytest.param({}, 0.4, id="not counted"),
        pytest.param({"runnable": 1.0}, 0.4, id="the samples rule it out"),
        pytest.param(
            {"runnable": 0.5, "held": CgroupCounters(throttled_periods=1)}, 0.4, id="under a quota"
        ),
    ],
)
def test_how_long_a_main_ran_is_as_counted_unless_that_cannot_be(
    described: dict[str, Any], host_code: float
) -> None:
    states = {Activity.RUN: 4, Activity.DISK: 3, Activity.SLEEP: 3}
    feeders = bucket(states, **described)
    found = shares(feeders, 0.0)
    assert found[HOST_CODE] == host_code
    assert found[STORAGE] == found[ASLEEP] == (1 - host_code) / 2


def test_a_main_that_was_never_seen_asleep_computes() -> None:
    feeders = bucket({Activity.RUN: 10}, runnable=0.8)
    assert shares(feeders, 0.0) == {HOST_CODE: 1.0}


@pytest.mark.parametrize(
    ("io", "cause"),
    [(Activity.NETWORK, NETWORK), (Activity.DISK, STORAGE)],
    ids=["network", "disk"],
)
def test_over_many_ticks_chance_takes_nothing_from_io(io: Activity, cause: str) -> None:
    def asleep(carry: Carry | None) -> float:
        draw, parts = random.Random(1), Counter[str]()  # noqa: S311 - no secret
        for _ in range(300):
            sleeps = sum(draw.random() < 0.5 for _ in range(10))
            feeders = bucket({Activity.SLEEP: sleeps, io: 10 - sleeps})
            parts.update(split(windows(0.5), HELD, feeders, carry))
        assert parts.keys() == {cause, ASLEEP}
        return parts[ASLEEP] / parts.total()

    assert asleep(None) > 0.1, "of the idle time, as each tick is charged by itself"
    assert asleep({}) < 0.04


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


def test_quota_wins_over_queue() -> None:
    feeders = loader(RUNS, STARVED, held=CgroupCounters(periods=10, throttled_periods=9))
    assert shares(feeders) == {CPU_QUOTA: 1.0}


def test_a_little_throttling_is_not_what_a_crowded_machine_waits_for() -> None:
    feeders = loader(RUNS, STARVED, held=CgroupCounters(periods=10, throttled_periods=2))
    assert shares(feeders) == {CPU_QUEUE: 1.0}


def test_reading_again_what_was_evicted_is_memory() -> None:
    moving = Counters(read_bytes=10**7)
    feeders = loader({Activity.DISK: 20}, moving, held=CgroupCounters(refault_bytes=9 * 10**6))
    assert shares(feeders) == {MEMORY: 1.0}
    feeders = loader({Activity.DISK: 20}, moving, held=CgroupCounters(refault_bytes=10**6))
    assert shares(feeders) == {STORAGE: 1.0}


def test_a_few_refaults_hold_nobody_up() -> None:
    moving = Counters(read_bytes=10**5)
    feeders = loader({Activity.DISK: 20}, moving, held=CgroupCounters(refault_bytes=10**5))
    assert shares(feeders) == {STORAGE: 1.0}


@pytest.mark.parametrize("moved", [0, 10**6])
def test_more_refaults_than_the_feeders_read_are_a_neighbours(moved: int) -> None:
    moving = Counters(read_bytes=moved)
    feeders = loader({Activity.DISK: 20}, moving, held=CgroupCounters(refault_bytes=5 * 10**6))
    assert shares(feeders) == {STORAGE: 1.0}


def test_a_main_on_cpu_is_host_code_whatever_its_neighbours_do() -> None:
    feeders = loader(main=RUNS, used_by_main=CPU)
    assert shares(feeders) == {HOST_CODE: 1.0}


def test_a_main_that_writes_a_checkpoint_waits_for_storage() -> None:
    used = spent(SECOND // 100, SECOND // 2, 500_000_000)
    feeders = bucket({Activity.RUN: 5, Activity.DISK: 5}, used)
    assert shares(feeders)[STORAGE] >= 0.95


def test_a_journal_that_is_forced_to_the_disk_moves_little_and_waits_for_storage() -> None:
    used = spent(SECOND // 100, SECOND // 4, 10**7)
    main = {Activity.RUN: 5, Activity.DISK: 6}
    feeders = bucket(main, used)
    assert shares(feeders)[STORAGE] >= 0.95
    feeders = loader(main, used)
    assert shares(feeders) == {STORAGE: 1.0}


def test_the_kernels_time_of_who_seldom_waits_for_the_disk_is_its_own() -> None:
    used = spent(SECOND // 100, SECOND // 2, 10**7)
    main = {Activity.RUN: 6, Activity.DISK: 1}
    feeders = bucket(main, used)
    assert shares(feeders)[HOST_CODE] >= 0.8
    feeders = loader(main, spent(SECOND // 50, 17 * SECOND // 10, 10**7))
    assert shares(feeders) == {WORKER_CPU: 1.0}


def test_sleep_while_the_gpu_works_is_not_counted() -> None:
    feeders = bucket({Activity.SLEEP: 3, Activity.RUN: 7}, CPU)
    assert shares(feeders, 0.3) == {HOST_CODE: 1.0}


def test_spinning_while_the_gpu_works_is_not_counted() -> None:
    feeders = loader(RUNS, CPU, main={Activity.RUN: 3, Activity.QUEUE: 7}, used_by_main=CPU)
    assert WORKER_CPU in shares(feeders, 0.3)


def test_a_rank_that_waits_for_another_waits_for_its_peer() -> None:
    feeders = bucket({Activity.SLEEP: 10}, peer=0.9)
    assert shares(feeders, 0.0) == {PEER: 0.9, ASLEEP: 0.1}


def test_threads_that_load_in_the_main_process_are_workers() -> None:
    feeders = bucket(used=Counters(cpu_ns=2 * SECOND))
    assert shares(feeders) == {WORKER_CPU: 1.0}


@pytest.mark.parametrize(
    ("helpers", "usage", "cause"),
    [
        ({Activity.RUN: 20}, CPU, WORKER_CPU),
        ({Activity.RUN: 20}, STARVED, CPU_QUEUE),
        ({Activity.DISK: 20}, CPU, STORAGE),
        ({Activity.NETWORK: 20}, CPU, NETWORK),
        ({}, CPU, ASLEEP),
    ],
)
def test_a_waiting_main_is_held_up_by_what_its_loading_threads_do(
    helpers: dict[Activity, int], usage: Counters, cause: str
) -> None:
    loading = Part(helpers, sum(helpers.values()), 10, usage)
    feeders = bucket(threads=loading)
    assert shares(feeders) == {cause: 1.0}


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ({Activity.RUN: 20}, WORKER_CPU),
        ({Activity.DISK: 20}, STORAGE),
        ({Activity.NETWORK: 20}, NETWORK),
        ({Activity.QUEUE: 20}, ASLEEP),
        ({Activity.REQUESTS: 20}, ASLEEP),
        ({Activity.GONE: 20}, ASLEEP),
        ({Activity.RUN: 10, Activity.GONE: 90}, WORKER_CPU),
    ],
)
def test_a_waiting_main_is_held_up_by_what_its_kin_do(
    states: dict[Activity, int], cause: str
) -> None:
    feeders = bucket(related=part(states, 2.0))
    assert shares(feeders) == {cause: 1.0}


def test_one_of_many_kin_that_works_explains_the_wait() -> None:
    states = {Activity.RUN: 10, Activity.QUEUE: 90}
    crowd = bucket(related=part(states, 10.0))
    assert shares(crowd) == {WORKER_CPU: 1.0}
    one = bucket(related=part(states, 1.0))
    assert shares(one)[ASLEEP] >= 0.85


def test_a_thread_that_seldom_works_does_not_explain_a_long_wait() -> None:
    feeders = bucket(threads=threads(1, 100))
    assert shares(feeders)[ASLEEP] >= 0.95


def test_children_that_come_and_go_work_for_the_main() -> None:
    feeders = bucket(used=Counters(children_ns=SECOND))
    assert shares(feeders) == {WORKER_CPU: 1.0}


def test_the_largest_of_all_helpers_names_the_cause() -> None:
    feeders = loader(
        {Activity.QUEUE: 20},
        threads=threads(6, 10, Activity.NETWORK),
        related=part({Activity.RUN: 20}, 0.2),
    )
    assert shares(feeders)[NETWORK] >= 0.85


def test_time_of_threads_is_not_counted_twice() -> None:
    loading = threads(6, 10, Activity.NETWORK)
    feeders = bucket(used=Counters(cpu_ns=SECOND), threads=loading)
    assert WORKER_CPU not in shares(feeders)


def test_a_server_without_a_request_waits_for_requests() -> None:
    assert shares(bucket({Activity.REQUESTS: 10}), 0.0) == {REQUESTS: 1.0}


def test_a_server_whose_kin_work_waits_for_them() -> None:
    feeders = bucket({Activity.REQUESTS: 10}, related=part({Activity.RUN: 10}))
    assert shares(feeders, 0.0) == {WORKER_CPU: 1.0}


def test_of_a_server_too_what_cannot_be_seen_is_unknown() -> None:
    states = {Activity.REQUESTS: 5, Activity.UNKNOWN: 5}
    feeders = bucket(states)
    assert shares(feeders, 0.0) == {REQUESTS: 0.5, UNKNOWN: 0.5}


def test_a_client_waits_for_the_network_whatever_its_workers_do() -> None:
    feeders = loader(RUNS, CPU, main={Activity.NETWORK: 10})
    assert shares(feeders) == {NETWORK: 1.0}


@pytest.mark.parametrize(
    ("peer", "workers", "cause"),
    [
        pytest.param(1.0, {Activity.QUEUE: 20}, PEER, id="its workers have nothing to do"),
        pytest.param(
            1.0, {Activity.RUN: 2, Activity.QUEUE: 18}, PEER, id="they prepare the next batch"
        ),
        pytest.param(1.0, RUNS, WORKER_CPU, id="its own workers are what it waits for"),
        pytest.param(0.4, RUNS, WORKER_CPU, id="the other is hardly engaged"),
        pytest.param(0.0, {Activity.QUEUE: 20}, ASLEEP, id="nobody is engaged"),
    ],
)
def test_a_rank_waits_for_a_peer_unless_it_has_a_cause_of_its_own(
    peer: float, workers: dict[Activity, int], cause: str
) -> None:
    found = shares(loader(workers, CPU, peer=peer))
    assert found[cause] >= 0.9


@pytest.mark.parametrize(
    ("active", "stalls", "share"),
    [
        pytest.param(SECOND, {}, 1.0, id="works"),
        pytest.param(0, {WORKER_CPU: SECOND}, 1.0, id="is starved"),
        pytest.param(0, {NETWORK: SECOND}, 1.0, id="waits for remote data"),
        pytest.param(0, {HOST_CODE: SECOND // 2, ASLEEP: SECOND // 2}, 0.5, id="in part"),
        pytest.param(0, {PEER: SECOND}, 0.0, id="waits for another: nobody waits in a circle"),
        pytest.param(0, {ASLEEP: SECOND}, 0.0, id="sleeps"),
        pytest.param(0, {REQUESTS: SECOND}, 0.0, id="waits for requests"),
        pytest.param(0, {UNKNOWN: SECOND}, 0.0, id="unknown"),
        pytest.param(0, {UNALLOCATED: SECOND}, 0.0, id="nobody's"),
        pytest.param(SECOND // 4, {STORAGE: SECOND // 4, PEER: SECOND // 2}, 0.5, id="all of it"),
    ],
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
WINDOWS = st.lists(
    st.tuples(st.integers(1, SECOND), st.floats(0, 1)).map(
        lambda pair: Window(0, pair[0], int(pair[0] * pair[1]))
    ),
    min_size=1,
    max_size=10,
)


@given(
    st.lists(
        st.tuples(WINDOWS, st.none() | st.integers(0, 4), st.none() | BUCKETS),
        min_size=1,
        max_size=5,
    )
)
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


@given(st.integers(1, 10**12), st.dictionaries(st.sampled_from(WAITING_ON), st.floats(0, 1e9)))
def test_apportioning_loses_nothing(total: int, weights: dict[str, float]) -> None:
    parts = apportion(total, weights)
    assert sum(parts.values()) == total
    assert all(part > 0 for part in parts.values())


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
