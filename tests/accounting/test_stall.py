"""The stall split: exact sums whatever the readings, and the right cause for clear ones."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Feeders,
    Owed,
    Usage,
    apportion,
    by_file_system,
    engaged,
    split,
)
from gpu_bottleneck_exporter.accounting.state import State
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.host.places import Place

SECOND = 1_000_000_000
HELD = 1
WAITS: Mapping[State, int] = {State.QUEUE: 10}
RUNS = {State.RUN: 20}
CPU = Usage(user_ns=SECOND)
STARVED = Usage(user_ns=SECOND // 4, queue_ns=SECOND)


def windows(busy: float) -> list[Window]:
    active = round(SECOND * busy)
    return [Window(SECOND, SECOND, active)]


def shares(
    feeders: Feeders | None, busy: float = 0.1, holders: int | None = HELD
) -> dict[str, float]:
    idle = SECOND - round(SECOND * busy)
    return {
        cause: round(part / idle, 2)
        for cause, part in split(windows(busy), holders, feeders).items()
    }


def loader(**described: object) -> Feeders:
    """A main that waits for two workers."""
    base = {"elapsed_ns": SECOND, "main": WAITS, "worker_count": 2.0}
    return Feeders(**{**base, **described})  # type: ignore[arg-type]


def test_a_busy_gpu_waits_for_nothing() -> None:
    assert split(windows(1.0), HELD, loader()) == {}


def test_nobody_holds_it() -> None:
    assert shares(None, 0.0, 0) == {UNALLOCATED: 1.0}


def test_a_gpu_that_works_for_nobody_is_not_unallocated() -> None:
    assert shares(None, 0.3, 0) == {UNKNOWN: 1.0}


def test_holders_that_cannot_be_read_are_unknown() -> None:
    assert shares(loader(), 0.0, None) == {UNKNOWN: 1.0}


@pytest.mark.parametrize("feeders", [None, Feeders(elapsed_ns=SECOND)])
def test_feeders_that_were_not_looked_at_are_unknown(feeders: Feeders | None) -> None:
    assert shares(feeders) == {UNKNOWN: 1.0}


@pytest.mark.parametrize(
    ("workers", "usage", "cause"),
    [
        (RUNS, CPU, WORKER_CPU),
        (RUNS, STARVED, CPU_QUEUE),
        ({State.DISK: 20}, CPU, STORAGE),
        ({State.NETWORK: 20}, CPU, NETWORK),
        ({State.QUEUE: 20}, CPU, ASLEEP),
        ({State.SLEEP: 20}, CPU, ASLEEP),
        ({State.UNKNOWN: 20}, CPU, UNKNOWN),
    ],
)
def test_a_waiting_main_is_held_up_by_what_its_workers_do(
    workers: dict[State, int], usage: Usage, cause: str
) -> None:
    assert shares(loader(workers=workers, worker_usage=usage)) == {cause: 1.0}


@pytest.mark.parametrize(
    ("workers", "cause"),
    [
        ({State.DISK: 16, State.RUN: 84}, WORKER_CPU),
        ({State.DISK: 62, State.RUN: 38}, STORAGE),
        ({State.NETWORK: 60, State.RUN: 40}, NETWORK),
    ],
)
def test_the_larger_share_of_a_workers_time_names_the_cause(
    workers: dict[State, int], cause: str
) -> None:
    assert shares(loader(workers=workers, worker_usage=CPU)) == {cause: 1.0}


def test_workers_that_hardly_work_do_not_explain_a_long_wait() -> None:
    workers = {State.RUN: 1, State.QUEUE: 99}
    assert shares(loader(workers=workers, worker_usage=CPU))[ASLEEP] >= 0.95


def test_a_main_that_waits_only_while_the_gpu_works_waits_for_the_gpu() -> None:
    states = {State.QUEUE: 5, State.RUN: 5}
    feeders = loader(main=states, main_usage=CPU, workers=RUNS, worker_usage=CPU)
    assert shares(feeders, 0.5) == {HOST_CODE: 1.0}


@given(st.lists(st.booleans(), min_size=10, max_size=10))
def test_chance_in_the_samples_charges_no_sleep_of_a_main_that_waits_for_its_gpu_only(
    sleeps: list[bool],
) -> None:
    seen = {State.SLEEP: sum(sleeps), State.RUN: 10 - sum(sleeps)}
    feeders = Feeders(elapsed_ns=SECOND, main=seen, main_runnable=0.85)
    likely = sum(sleeps) <= 5
    assert (ASLEEP not in shares(feeders, 0.15)) is likely


@pytest.mark.parametrize(
    ("described", "host_code"),
    [
        pytest.param({"main_runnable": 0.5}, 0.5, id="as counted"),
        pytest.param({}, 0.4, id="not counted"),
        pytest.param({"main_runnable": 1.0}, 0.4, id="the samples rule it out"),
        pytest.param({"main_runnable": 0.5, "throttled_periods": 1}, 0.4, id="under a quota"),
    ],
)
def test_how_long_a_main_ran_is_as_counted_unless_that_cannot_be(
    described: dict[str, float], host_code: float
) -> None:
    states = {State.RUN: 4, State.DISK: 3, State.SLEEP: 3}
    feeders = Feeders(elapsed_ns=SECOND, main=states, **described)  # type: ignore[arg-type]
    found = shares(feeders, 0.0)
    assert found[HOST_CODE] == host_code
    assert found[STORAGE] == found[ASLEEP] == (1 - host_code) / 2


def test_a_main_that_was_never_seen_asleep_computes() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main={State.RUN: 10}, main_runnable=0.8)
    assert shares(feeders, 0.0) == {HOST_CODE: 1.0}


@pytest.mark.parametrize(
    ("io", "cause"), [(State.NETWORK, NETWORK), (State.DISK, STORAGE)], ids=["network", "disk"]
)
def test_over_many_ticks_chance_takes_nothing_from_io(io: State, cause: str) -> None:
    def asleep(owed: Owed | None) -> float:
        draw, parts = random.Random(1), Counter[str]()  # noqa: S311 - no secret
        for _ in range(300):
            sleeps = sum(draw.random() < 0.5 for _ in range(10))
            feeders = Feeders(elapsed_ns=SECOND, main={State.SLEEP: sleeps, io: 10 - sleeps})
            parts.update(split(windows(0.5), HELD, feeders, owed))
        assert parts.keys() == {cause, ASLEEP}
        return parts[ASLEEP] / parts.total()

    assert asleep(None) > 0.1, "of the idle time, as each tick is charged by itself"
    assert asleep({}) < 0.04


@pytest.mark.parametrize("state", State)
def test_what_a_main_does_while_its_gpu_works_hardly_changes_what_it_is_charged_for_later(
    state: State,
) -> None:
    owed: Owed = {}
    for _ in range(60):
        split(windows(0.9), HELD, Feeders(SECOND, {state: 10}), owed)
    parts = Counter[str]()
    for _ in range(10):
        parts.update(split(windows(0.0), HELD, Feeders(SECOND, {State.SLEEP: 10}), owed))
    assert parts[ASLEEP] >= 9 * SECOND
    assert state in (State.NETWORK, State.DISK) or parts[ASLEEP] == 10 * SECOND


def test_quota_wins_over_queue() -> None:
    feeders = loader(workers=RUNS, worker_usage=STARVED, periods=10, throttled_periods=9)
    assert shares(feeders) == {CPU_QUOTA: 1.0}


def test_a_little_throttling_is_not_what_a_crowded_machine_waits_for() -> None:
    feeders = loader(workers=RUNS, worker_usage=STARVED, periods=10, throttled_periods=2)
    assert shares(feeders) == {CPU_QUEUE: 1.0}


def test_reading_again_what_was_evicted_is_memory() -> None:
    moving = Usage(io_bytes=10**7)
    feeders = loader(workers={State.DISK: 20}, refault_bytes=9 * 10**6, worker_usage=moving)
    assert shares(feeders) == {MEMORY: 1.0}
    feeders = loader(workers={State.DISK: 20}, refault_bytes=10**6, worker_usage=moving)
    assert shares(feeders) == {STORAGE: 1.0}


def test_a_few_refaults_hold_nobody_up() -> None:
    moving = Usage(io_bytes=10**5)
    feeders = loader(workers={State.DISK: 20}, refault_bytes=10**5, worker_usage=moving)
    assert shares(feeders) == {STORAGE: 1.0}


@pytest.mark.parametrize("moved", [0, 10**6])
def test_more_refaults_than_the_feeders_read_are_a_neighbours(moved: int) -> None:
    moving = Usage(io_bytes=moved)
    feeders = loader(workers={State.DISK: 20}, refault_bytes=5 * 10**6, worker_usage=moving)
    assert shares(feeders) == {STORAGE: 1.0}


def test_a_main_on_cpu_is_host_code_whatever_its_neighbours_do() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main=RUNS, main_usage=CPU, worker_count=2.0)
    assert shares(feeders) == {HOST_CODE: 1.0}


def test_a_main_that_writes_a_checkpoint_waits_for_storage() -> None:
    usage = Usage(user_ns=SECOND // 100, system_ns=SECOND // 2, io_bytes=500_000_000)
    feeders = Feeders(elapsed_ns=SECOND, main={State.RUN: 5, State.DISK: 5}, main_usage=usage)
    assert shares(feeders)[STORAGE] >= 0.95


def test_a_journal_that_is_forced_to_the_disk_moves_little_and_waits_for_storage() -> None:
    usage = Usage(user_ns=SECOND // 100, system_ns=SECOND // 4, io_bytes=10**7)
    main = {State.RUN: 5, State.DISK: 6}
    feeders = Feeders(elapsed_ns=SECOND, main=main, main_usage=usage)
    assert shares(feeders)[STORAGE] >= 0.95
    feeders = loader(workers=main, worker_usage=usage)
    assert shares(feeders) == {STORAGE: 1.0}


def test_the_kernels_time_of_who_seldom_waits_for_the_disk_is_its_own() -> None:
    usage = Usage(user_ns=SECOND // 100, system_ns=SECOND // 2, io_bytes=10**7)
    main = {State.RUN: 6, State.DISK: 1}
    feeders = Feeders(elapsed_ns=SECOND, main=main, main_usage=usage)
    assert shares(feeders)[HOST_CODE] >= 0.8
    feeders = loader(workers=main, worker_usage=usage)
    assert shares(feeders) == {WORKER_CPU: 1.0}


def test_sleep_while_the_gpu_works_is_not_counted() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main={State.SLEEP: 3, State.RUN: 7}, main_usage=CPU)
    assert shares(feeders, 0.3) == {HOST_CODE: 1.0}


def test_spinning_while_the_gpu_works_is_not_counted() -> None:
    feeders = loader(
        main={State.RUN: 3, State.QUEUE: 7}, main_usage=CPU, workers=RUNS, worker_usage=CPU
    )
    assert WORKER_CPU in shares(feeders, 0.3)


def test_a_rank_that_waits_for_another_waits_for_its_peer() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main={State.SLEEP: 10}, peer=0.9)
    assert shares(feeders, 0.0) == {PEER: 0.9, ASLEEP: 0.1}


def test_threads_that_load_in_the_main_process_are_workers() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main={State.QUEUE: 10}, other_threads_cpu_ns=2 * SECOND)
    assert shares(feeders) == {WORKER_CPU: 1.0}


@pytest.mark.parametrize(
    ("helpers", "usage", "cause"),
    [
        ({State.RUN: 20}, CPU, WORKER_CPU),
        ({State.RUN: 20}, STARVED, CPU_QUEUE),
        ({State.DISK: 20}, CPU, STORAGE),
        ({State.NETWORK: 20}, CPU, NETWORK),
        ({}, CPU, ASLEEP),
    ],
)
def test_a_waiting_main_is_held_up_by_what_its_loading_threads_do(
    helpers: dict[State, int], usage: Usage, cause: str
) -> None:
    feeders = Feeders(
        elapsed_ns=SECOND, main=WAITS, threads=helpers, thread_looks=10, thread_usage=usage
    )
    assert shares(feeders) == {cause: 1.0}


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ({State.RUN: 20}, WORKER_CPU),
        ({State.DISK: 20}, STORAGE),
        ({State.NETWORK: 20}, NETWORK),
        ({State.QUEUE: 20}, ASLEEP),
        ({State.REQUESTS: 20}, ASLEEP),
        ({State.GONE: 20}, ASLEEP),
        ({State.RUN: 10, State.GONE: 90}, WORKER_CPU),
    ],
)
def test_a_waiting_main_is_held_up_by_what_its_kin_do(states: dict[State, int], cause: str) -> None:
    feeders = Feeders(elapsed_ns=SECOND, main=WAITS, kin=states, kin_count=2.0)
    assert shares(feeders) == {cause: 1.0}


def test_one_of_many_kin_that_works_explains_the_wait() -> None:
    states = {State.RUN: 10, State.QUEUE: 90}
    crowd = Feeders(elapsed_ns=SECOND, main=WAITS, kin=states, kin_count=10.0)
    assert shares(crowd) == {WORKER_CPU: 1.0}
    one = Feeders(elapsed_ns=SECOND, main=WAITS, kin=states, kin_count=1.0)
    assert shares(one)[ASLEEP] >= 0.85


def test_a_thread_that_seldom_works_does_not_explain_a_long_wait() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main=WAITS, threads={State.RUN: 1}, thread_looks=100)
    assert shares(feeders)[ASLEEP] >= 0.95


def test_children_that_come_and_go_work_for_the_main() -> None:
    feeders = Feeders(elapsed_ns=SECOND, main=WAITS, children_cpu_ns=SECOND)
    assert shares(feeders) == {WORKER_CPU: 1.0}


def test_the_largest_of_all_helpers_names_the_cause() -> None:
    feeders = loader(
        workers={State.QUEUE: 20},
        threads={State.NETWORK: 6},
        thread_looks=10,
        kin={State.RUN: 20},
        kin_count=0.2,
    )
    assert shares(feeders)[NETWORK] >= 0.85


def test_time_of_threads_is_not_counted_twice() -> None:
    feeders = Feeders(
        elapsed_ns=SECOND,
        main=WAITS,
        threads={State.NETWORK: 6},
        thread_looks=10,
        other_threads_cpu_ns=SECOND,
    )
    assert WORKER_CPU not in shares(feeders)


def test_a_server_without_a_request_waits_for_requests() -> None:
    assert shares(Feeders(elapsed_ns=SECOND, main={State.REQUESTS: 10}), 0.0) == {REQUESTS: 1.0}


def test_a_server_whose_kin_work_waits_for_them() -> None:
    feeders = Feeders(
        elapsed_ns=SECOND, main={State.REQUESTS: 10}, kin={State.RUN: 10}, kin_count=1.0
    )
    assert shares(feeders, 0.0) == {WORKER_CPU: 1.0}


def test_of_a_server_too_what_cannot_be_seen_is_unknown() -> None:
    states = {State.REQUESTS: 5, State.UNKNOWN: 5}
    feeders = Feeders(elapsed_ns=SECOND, main=states)
    assert shares(feeders, 0.0) == {REQUESTS: 0.5, UNKNOWN: 0.5}


def test_a_client_waits_for_the_network_whatever_its_workers_do() -> None:
    feeders = loader(main={State.NETWORK: 10}, workers=RUNS, worker_usage=CPU)
    assert shares(feeders) == {NETWORK: 1.0}


@pytest.mark.parametrize(
    ("peer", "workers", "cause"),
    [
        pytest.param(1.0, {State.QUEUE: 20}, PEER, id="its workers have nothing to do"),
        pytest.param(1.0, {State.RUN: 2, State.QUEUE: 18}, PEER, id="they prepare the next batch"),
        pytest.param(1.0, RUNS, WORKER_CPU, id="its own workers are what it waits for"),
        pytest.param(0.4, RUNS, WORKER_CPU, id="the other is hardly engaged"),
        pytest.param(0.0, {State.QUEUE: 20}, ASLEEP, id="nobody is engaged"),
    ],
)
def test_a_rank_waits_for_a_peer_unless_it_has_a_cause_of_its_own(
    peer: float, workers: dict[State, int], cause: str
) -> None:
    found = shares(loader(workers=workers, worker_usage=CPU, peer=peer))
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


STATES = st.dictionaries(st.sampled_from(list(State)), st.integers(0, 50))
NANOSECONDS = st.integers(0, 10 * SECOND)
USAGES = st.builds(Usage, NANOSECONDS, NANOSECONDS, NANOSECONDS, st.integers(0, 10**10))
FEEDERS = st.builds(
    Feeders,
    elapsed_ns=NANOSECONDS,
    main=STATES,
    workers=STATES,
    worker_count=st.floats(0, 64),
    main_runnable=st.none() | st.floats(0, 1),
    threads=STATES,
    thread_looks=st.integers(0, 100),
    kin=STATES,
    kin_count=st.floats(0, 32),
    main_usage=USAGES,
    worker_usage=USAGES,
    thread_usage=USAGES,
    children_cpu_ns=NANOSECONDS,
    other_threads_cpu_ns=NANOSECONDS,
    periods=st.integers(0, 100),
    throttled_periods=st.integers(0, 100),
    refault_bytes=st.integers(0, 10**10),
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
        st.tuples(WINDOWS, st.none() | st.integers(0, 4), st.none() | FEEDERS),
        min_size=1,
        max_size=5,
    )
)
def test_idle_time_is_split_exactly(
    ticks: list[tuple[list[Window], int | None, Feeders | None]],
) -> None:
    owed: Owed = {}
    for of_tick, holders, feeders in ticks:
        parts = split(of_tick, holders, feeders, owed)
        idle = sum(window.duration_ns - window.active_ns for window in of_tick)
        assert sum(parts.values()) == idle
        assert all(part > 0 for part in parts.values())
        assert set(parts) <= set(WAITING_ON)
        active = sum(window.active_ns for window in of_tick)
        assert active <= engaged(active, parts) <= active + idle
        assert all(0 <= ns <= SECOND for ns in owed.values())


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
