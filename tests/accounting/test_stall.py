"""The stall split: exact sums whatever the readings, and the right cause for clear ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF, Activity
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
    VIDEO_ENGINE,
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
from gpu_bottleneck_exporter.host.waits import Wait
from support.rows import rows

SECOND = 1_000_000_000
ELAPSED = 4 * SECOND
"""Span of the counters: longer than the tick that is split."""
MEBIBYTE = 1 << 20
HELD = 1
ROLES = (Role.MAIN, Role.WORKER, Role.THREAD, Role.RELATED)
SLEEP, QUEUE, HIDDEN, RUN = Activity.SLEEP, Activity.QUEUE, Activity.UNKNOWN, Activity.RUN
SERVES, READS, ASKS = Activity.REQUESTS, Activity.DISK, Activity.NETWORK
ASKS_PEER = Activity.PEER
WAITS, RUNS = {QUEUE: 10}, {RUN: 20}
Used = Mapping[str, float]
"""Counters of CPU time in seconds; others as they are."""
CPU: Used = {"cpu_ns": 4, "leader_cpu_ns": 4}
STARVED: Used = {"cpu_ns": 1, "leader_cpu_ns": 1, "queue_ns": 4}


def counters(used: Used) -> Counters:
    units = {name: SECOND if name.endswith("_ns") else 1 for name in used}
    return Counters(**{name: round(value * units[name]) for name, value in used.items()})


def part(seen: Mapping[Activity, int], number: float = 1, /, **used: float) -> Part:
    """Number of processes."""
    return Part(dict(seen), round(10 * number), 10, counters(used))


def bucket(  # noqa: PLR0913 - what a test is about
    main: Mapping[Activity, int] = WAITS,
    used: Used | None = None,
    *,
    held: CgroupCounters | None = None,
    runnable: float | None = None,
    peer: float = 0.0,
    places: Mapping[Place, int] | None = None,
    **helpers: Part,
) -> Bucket:
    """Four seconds; a main that waits, if nothing else is said, and its helpers by role."""
    return Bucket(
        elapsed_ns=ELAPSED,
        parts={Role.MAIN: part(main, **(used or {})), **helpers},
        held=held or CgroupCounters(),
        runnable_ns=round((runnable or 0.0) * SECOND),
        counted_ns=0 if runnable is None else SECOND,
        peer=peer,
        places=dict(places or {}),
    )


def shares(
    did: Bucket | None, busy: float = 0.0, carry: Carry | None = None, holders: int | None = HELD
) -> dict[str, float]:
    """Shares of the idle time of a tick of one second."""
    stalls = split([Window(SECOND, SECOND, round(busy * SECOND))], holders, did, carry)
    return {cause: round(ns / SECOND / (1 - busy), 3) for cause, ns in stalls.items()}


def loader(
    workers: Mapping[Activity, int],
    used: Used | None = None,
    *,
    main: Mapping[Activity, int] = WAITS,
    used_by_main: Used | None = None,
) -> Bucket:
    """A main that waits for two workers."""
    return bucket(main, used_by_main, worker=part(workers, 2, **(used or {})))


def threads(seen: Mapping[Activity, int], **used: float) -> Part:
    """Samples at ten looks, of threads of which only those that are active are counted."""
    return part(seen, sum(seen.values()) / 10, **used)


def spent(user: float, system: float) -> Used:
    """Counters of a process with one thread that moves little data."""
    cpu = user + system
    return {"cpu_ns": cpu, "system_ns": system, "leader_cpu_ns": cpu, "read_bytes": 10**7}


def test_each_wait_is_an_activity() -> None:
    assert ACTIVITY_OF.keys() == set(Wait)
    assert set(ACTIVITY_OF.values()) == set(Activity) - {SERVES, ASKS_PEER, Activity.TIMER}
    for activity, waits in {
        ASKS: {Wait.SOCKET},
        QUEUE: {Wait.LOCK, Wait.PIPE},
        SLEEP: {
            *(Wait.POLL, Wait.ACCEPT, Wait.TIMER, Wait.CHILD),
            *(Wait.STOPPED, Wait.FROZEN, Wait.OTHER),
        },
    }.items():
        assert {wait for wait, result in ACTIVITY_OF.items() if result is activity} == waits


@rows(
    "found, did, busy, holders",
    {
        "no holder": (UNALLOCATED, None, 0.0, 0),
        "it serves no client": (UNKNOWN, None, 0.3, 0),
        "holders that cannot be read": (UNKNOWN, loader({}), 0.0, None),
        "feeders that are not known": (UNKNOWN, None, 0.1, 1),
        "feeders without samples": (UNKNOWN, Bucket(elapsed_ns=SECOND), 0.1, 1),
    },
)
def test_causes_of_idle_time_by_activity_of_mains(
    found: str, did: Bucket | None, busy: float, holders: int | None
) -> None:
    assert shares(did, busy, holders=holders) == {found: 1.0}


JOURNAL, KERNEL, SYSTEM = spent(0.04, 1), spent(0.04, 2), spent(0.08, 6.8)


POLLED = {"cpu_ns": 5, "system_ns": 4, "leader_cpu_ns": 1, "queue_ns": 3, "poller_cpu_ns": 4}
POLLS = {"cpu_ns": 8, "system_ns": 4, "leader_cpu_ns": 4, "poller_cpu_ns": 4, "read_bytes": 10**9}


def reading(
    states: Mapping[Activity, int],
    awaited: float,
    main: Mapping[Activity, int] | None = None,
    disk_ns: float = 0,
    **helpers: Part,
) -> Bucket:
    """A main that `OVERLAPS`, and its threads, which explain this much of its waits in locks."""
    loading = part(states, sum(states.values()) / 10, cpu_ns=1.0, disk_ns=disk_ns)
    result = bucket(main or OVERLAPS, thread=loading)
    result.parts.update(helpers)
    result.locked, result.awaited = 0.3, awaited
    return result


def pinning(states: Mapping[Activity, int], threads_run: float) -> Bucket:
    """A waiting main with two workers, and threads beside them."""
    loading = part({RUN: round(10 * threads_run)}, threads_run, cpu_ns=4 * threads_run)
    return bucket(worker=part(states, 2), thread=loading)


def kin(states: Mapping[Activity, int]) -> Bucket:
    """A waiting main with two of them."""
    return bucket(related=part(states, 2))


@rows(
    "cause, did",
    {
        "workers compute": (WORKER_CPU, loader(RUNS, CPU)),
        "workers read": (STORAGE, loader({READS: 20}, CPU)),
        "workers fetch": (NETWORK, loader({ASKS: 20}, CPU)),
        "workers lack memory": (MEMORY, loader({Activity.MEMORY: 20}, CPU)),
        "workers change their memory map": (WORKER_CPU, loader({Activity.PROGRAM: 20}, CPU)),
        "workers are in the driver": (ASLEEP, loader({Activity.DRIVER: 20}, CPU)),
        "a main that lacks memory": (MEMORY, loader({}, main={Activity.MEMORY: 10})),
        "a main that starts a child": (HOST_CODE, loader({}, main={Activity.PROGRAM: 10})),
        "a main in the driver": (UNKNOWN, loader(RUNS, CPU, main={Activity.DRIVER: 10})),
        "workers wait": (ASLEEP, loader({QUEUE: 20}, CPU)),
        "workers sleep": (ASLEEP, loader({SLEEP: 20}, CPU)),
        "workers cannot be seen": (UNKNOWN, loader({HIDDEN: 20}, CPU)),
        "threads compute": (WORKER_CPU, bucket(thread=threads(RUNS, **CPU))),
        "threads copy batches of workers": (HOST_CODE, pinning({RUN: 20, QUEUE: 80}, 4)),
        "threads beside workers that compute, too": (WORKER_CPU, pinning({RUN: 80, QUEUE: 20}, 4)),
        "threads beside workers that read": (WORKER_CPU, pinning({READS: 60, QUEUE: 40}, 4)),
        "a thread that runs now and then": (STORAGE, pinning({READS: 40, QUEUE: 60}, 0.2)),
        "threads wait for a CPU": (CPU_QUEUE, bucket(thread=threads(RUNS, **STARVED))),
        "threads read": (STORAGE, bucket(thread=threads({READS: 20}, **CPU))),
        "threads fetch": (NETWORK, bucket(thread=threads({ASKS: 20}, **CPU))),
        "threads do nothing": (ASLEEP, bucket(thread=threads({}, **CPU))),
        "threads too brief for samples": (WORKER_CPU, bucket(thread=threads({}, missed_ns=4))),
        "kin wait": (ASLEEP, kin({QUEUE: 20})),
        "kin wait for requests": (ASLEEP, kin({SERVES: 20})),
        "kin are gone": (ASLEEP, kin({Activity.GONE: 20})),
        "kin compute, and most are gone": (WORKER_CPU, kin({RUN: 10, Activity.GONE: 90})),
        "one of many kin": (WORKER_CPU, bucket(related=part({RUN: 10, QUEUE: 90}, 10))),
        "a peer that works in turn with it": (PEER, bucket({ASKS_PEER: 10}, peer=0.5)),
        "such a peer, and workers that prepare": (
            PEER,
            bucket({ASKS_PEER: 10}, worker=part({RUN: 4, QUEUE: 6}), peer=0.3),
        ),
        "a main that computes": (HOST_CODE, loader({}, main=RUNS, used_by_main=CPU)),
        "a main that fetches, whatever workers do": (NETWORK, loader(RUNS, CPU, main={ASKS: 10})),
        "a server with working kin": (WORKER_CPU, bucket({SERVES: 10}, related=part({RUN: 10}))),
        "never seen asleep": (HOST_CODE, bucket({RUN: 10}, runnable=0.8)),
        "a journal, and workers": (STORAGE, loader({RUN: 5, READS: 6}, JOURNAL)),
        "workers with rings polled by the kernel": (CPU_QUEUE, loader(RUNS, POLLED)),
        "workers that compute, and the kernel polls": (WORKER_CPU, loader(RUNS, POLLS)),
        "the kernel's time of workers": (WORKER_CPU, loader({RUN: 6, READS: 1}, SYSTEM)),
    },
)
def test_helpers_that_hold_up_a_waiting_main(cause: str, did: Bucket) -> None:
    assert shares(did) == {cause: 1.0}


COPIES: Used = {"cpu_ns": 1.0, "system_ns": 0.75, "read_bytes": 50e6, "written_bytes": 50e6}
"""25 MB/s, three quarters of the CPU time in the kernel."""
COPIES_LITTLE = {**COPIES, "written_bytes": 10e6}
COMPUTES: Used = {**COPIES, "cpu_ns": 4, "system_ns": 0.6, "leader_cpu_ns": 3.2}
READS_ROWS: Used = {"cpu_ns": 0.8, "system_ns": 0.6}
"""Threads of a main that computes, most of whose own CPU time the kernel used."""
LAUNCHES: Used = {"leader_cpu_ns": 1, "launch_cpu_ns": 1, "launch_queue_ns": 1}
OTHERS_RAN = {"cpu_ns": 2.0, "leader_cpu_ns": 0.4, "launch_cpu_ns": 0.4}
COUNTED = {"cpu_ns": 2, "leader_cpu_ns": 2, "queue_ns": 0.4}
WAITING = {RUN: 4, QUEUE: 6}


@rows(
    "did, found",
    {
        "short-lived": (bucket(used={"children_ns": 1.2}), {WORKER_CPU: 0.3}),
        "of a worker's": (bucket(worker=part(WAITS, children_ns=1.2)), {WORKER_CPU: 0.3}),
        "other threads of the main": (bucket(used=OTHERS_RAN), {WORKER_CPU: 0.3}),
        "kin run": (bucket(related=part({RUN: 3, QUEUE: 7})), {WORKER_CPU: 0.3}),
        "kin read": (bucket(related=part({READS: 3, QUEUE: 7})), {STORAGE: 0.3}),
        "kin ask": (bucket(related=part({ASKS: 3, QUEUE: 7})), {NETWORK: 0.3}),
        "more run": (bucket(related=part({READS: 1, RUN: 2, QUEUE: 7})), {WORKER_CPU: 0.3}),
        "more read": (bucket(related=part({READS: 2, RUN: 1, QUEUE: 7})), {STORAGE: 0.3}),
        "more ask": (bucket(related=part({ASKS: 2, RUN: 1, QUEUE: 7})), {NETWORK: 0.3}),
        "kin copy": (bucket(related=part(WAITING, **COPIES)), {STORAGE: 0.4}),
        "threads copy": (bucket(used=COPIES, thread=part(WAITING)), {STORAGE: 0.4}),
        "threads copy, and the main computes": (
            bucket(used=COMPUTES, thread=part(WAITING, **READS_ROWS)),
            {STORAGE: 0.4},
        ),
        "threads compute, and the main copies": (
            bucket(used=COPIES, thread=part(WAITING, cpu_ns=0.8, system_ns=0.08)),
            {WORKER_CPU: 0.4},
        ),
        "they copy little": (bucket(related=part(WAITING, **COPIES_LITTLE)), {WORKER_CPU: 0.4}),
        "workers as counted": (
            bucket(worker=part({RUN: 5, QUEUE: 5}, 2, **COUNTED)),
            {WORKER_CPU: 0.6},
        ),
        "their threads ran, too": (
            bucket(worker=part({RUN: 2, QUEUE: 8}, 2, **{**COUNTED, "cpu_ns": 2.5})),
            {WORKER_CPU: 0.4},
        ),
        "a pool of threads that run briefly": (
            bucket(related=part({RUN: 2, QUEUE: 8}, cpu_ns=3.2, missed_ns=2.0)),
            {WORKER_CPU: 0.7},
        ),
        "such a pool that fetches as well": (
            bucket(related=part({ASKS: 6, RUN: 1, QUEUE: 3}, cpu_ns=1.2, missed_ns=0.8)),
            {NETWORK: 0.9},
        ),
        "a pool in each worker": (
            bucket(worker=part({RUN: 1, QUEUE: 9}, 2, cpu_ns=6.0, missed_ns=2.8)),
            {WORKER_CPU: 0.9},
        ),
        "threads that run at the same time": (
            bucket(related=part({RUN: 2, QUEUE: 8}, cpu_ns=8)),
            {WORKER_CPU: 0.2},
        ),
        "threads that ran while a main did": (
            bucket({RUN: 5, SLEEP: 5}, CPU, thread=Part(rounds=10, used=counters(CPU))),
            {HOST_CODE: 0.5},
        ),
        "a server without requests, whose thread spins": (
            bucket({SERVES: 5, SLEEP: 5}, CPU, thread=Part(rounds=10, used=counters(CPU))),
            {REQUESTS: 0.5},
        ),
        "an unreadable process": (bucket(worker=part({HIDDEN: 5, QUEUE: 15})), {UNKNOWN: 0.25}),
        "a peer, and helpers that prepare": (bucket(related=part(WAITING), peer=0.6), {PEER: 0.6}),
        "a peer, and helpers at work": (
            bucket(related=part({RUN: 5, QUEUE: 5}), peer=0.6),
            {WORKER_CPU: 0.5, PEER: 0.3},
        ),
        "a peer for half of the time": (
            bucket(related=part(WAITING), peer=0.5),
            {WORKER_CPU: 0.4, PEER: 0.3},
        ),
        "a peer, asked for half of the time": (
            bucket({ASKS_PEER: 5, SLEEP: 5}, peer=0.2),
            {PEER: 0.6},
        ),
        "a peer that is asked and does nothing": (bucket({ASKS_PEER: 10}, peer=0.04), {PEER: 0.04}),
        "the largest of all helpers": (
            bucket(thread=threads({ASKS: 6}), related=part({RUN: 20}, 0.2)),
            {NETWORK: 0.8},
        ),
    },
)
def test_a_wait_is_explained_as_far_as_helpers_are_active(
    did: Bucket, found: dict[str, float]
) -> None:
    assert shares(did) == pytest.approx({**found, ASLEEP: 1 - sum(found.values())})


@rows(
    "main, used, found",
    {
        "bulk": (RUNS, {**COPIES, "leader_cpu_ns": 1}, {HOST_CODE: 0.25, STORAGE: 0.75}),
        "few": (RUNS, {**COPIES, "leader_cpu_ns": 1, "read_bytes": 10e6}, {HOST_CODE: 1.0}),
        "it waits for a CPU as long": (RUNS, {**LAUNCHES, "queue_ns": 1.0}, {HOST_CODE: 1.0}),
        "or longer": (RUNS, {**LAUNCHES, "queue_ns": 1.1}, {CPU_QUEUE: 1.0}),
        "a journal": ({RUN: 5, READS: 6}, JOURNAL, {STORAGE: 0.983, HOST_CODE: 0.017}),
        "the kernel's": ({RUN: 6, READS: 1}, KERNEL, {HOST_CODE: 0.857, STORAGE: 0.143}),
        "a server, half unseen": ({SERVES: 5, HIDDEN: 5}, {}, {REQUESTS: 0.5, UNKNOWN: 0.5}),
    },
)
def test_a_running_main_is_charged_by_the_kind_of_its_cpu_time(
    main: Mapping[Activity, int], used: Used, found: dict[str, float]
) -> None:
    assert shares(bucket(main, used)) == pytest.approx(found)


def test_busy_time_is_subtracted_from_the_likeliest_activity() -> None:
    activity = bucket({SLEEP: 2, QUEUE: 1, HIDDEN: 1, SERVES: 1, RUN: 2, ASKS: 1, READS: 2})
    idle = {REQUESTS: 1, HOST_CODE: 2, NETWORK: 1, STORAGE: 2}
    assert shares(activity, 0.4) == pytest.approx({c: n / 6 for c, n in idle.items()}, abs=0.001)
    assert shares(activity, 0.7) == pytest.approx({NETWORK: 1 / 3, STORAGE: 2 / 3}, abs=0.001)
    assert shares(activity, 0.8) == pytest.approx({STORAGE: 1.0})
    waits = {SERVES: 4, QUEUE: 4, SLEEP: 2}
    assert shares(bucket(waits), 0.2) == pytest.approx({REQUESTS: 0.5, ASLEEP: 0.5})


def test_io_time_subtracted_as_busy_is_added_back_once() -> None:
    carry: Carry = {}
    assert shares(bucket({ASKS: 8, SLEEP: 2}), 0.5, carry) == {NETWORK: 1.0}
    assert carry == pytest.approx({ASKS: 0.3e9})
    half = [Window(0, SECOND // 5, 0)]
    assert split(half, 1, bucket({SLEEP: 10}), carry) == {NETWORK: SECOND // 5}
    assert carry == pytest.approx({ASKS: 0.1e9})
    assert shares(bucket({SLEEP: 10}), 0.0, carry) == {NETWORK: 0.1, ASLEEP: 0.9}
    assert carry == pytest.approx({ASKS: 0.0})
    assert shares(bucket({SLEEP: 10}), 0.0, carry) == {ASLEEP: 1.0}


def test_time_known_not_to_be_gpu_work_adds_nothing_back() -> None:
    assert shares(bucket({SERVES: 10}), 0.0, {ASKS: 0.3e9}) == {REQUESTS: 1.0}
    assert shares(bucket({RUN: 10}), 0.0, {ASKS: 0.3e9}) == {HOST_CODE: 1.0}


@pytest.mark.parametrize(("throttled", "cause"), [(5, CPU_QUEUE), (6, CPU_QUOTA)])
def test_a_quota_that_runs_out_in_most_periods_explains_the_queue(
    throttled: int, cause: str
) -> None:
    held = CgroupCounters(periods=10, throttled_periods=throttled)
    workers = part({RUN: 10}, 2, cpu_ns=1, leader_cpu_ns=1, queue_ns=4)
    assert shares(bucket(worker=workers, held=held)) == {cause: 1.0}


@pytest.mark.parametrize(
    ("kin", "children", "cause"),
    [(0.7, 0.0, CPU_QUEUE), (0.9, 0.0, WORKER_CPU), (0.7, 0.2, WORKER_CPU)],
)
def test_helpers_wait_for_a_cpu_if_all_together_wait_longer_than_they_run(
    kin: float, children: float, cause: str
) -> None:
    crew = part({RUN: 10}, 2, cpu_ns=0.2, leader_cpu_ns=0.2, queue_ns=1)
    of_main = {"children_ns": children}
    related = part({RUN: 1, QUEUE: 9}, cpu_ns=kin / 2, children_ns=kin / 2)
    assert shares(bucket(used=of_main, worker=crew, related=related)) == {cause: 1.0}


@rows(
    "refaults, moved, cause",
    {
        "256 KiB/s": (MEBIBYTE, MEBIBYTE, MEMORY),
        "less": (MEBIBYTE - 1, MEBIBYTE, STORAGE),
        "three times the bytes read": (9 * MEBIBYTE, 3 * MEBIBYTE, MEMORY),
        "more": (9 * MEBIBYTE + 1, 3 * MEBIBYTE, STORAGE),
        "half": (2 * MEBIBYTE, 4 * MEBIBYTE, STORAGE),
        "more than half": (2 * MEBIBYTE + 1, 4 * MEBIBYTE, MEMORY),
    },
)
def test_io_is_memory_where_most_bytes_read_were_evicted(
    refaults: int, moved: int, cause: str
) -> None:
    reading = part({READS: 10}, read_bytes=moved / 2, written_bytes=moved / 2)
    activity = bucket(worker=reading, held=CgroupCounters(refault_bytes=refaults))
    assert shares(activity) == {cause: 1.0}


def test_a_remainder_goes_to_the_largest_part() -> None:
    parts = apportion(10, {HOST_CODE: 1, STORAGE: 1, NETWORK: 1}, UNKNOWN)
    assert parts == {HOST_CODE: 4, STORAGE: 3, NETWORK: 3}


def test_counters_read_soon_after_a_window_belong_to_it() -> None:
    history = History()
    for at_ns, outcome in ((SECOND // 2, WAITS), (SECOND, RUNS)):
        history.add_pass(Bucket(at_ns, parts={Role.MAIN: part(outcome)}))
    soon, late = counters(CPU), counters(STARVED)
    for at_ns, used in ((2 * SECOND, soon), (3 * SECOND, late)):
        history.add_second(Bucket(at_ns, SECOND, {Role.MAIN: Part(used=used)}))
    result = history.explaining(0, SECOND)
    assert result is not None
    assert (result.of(Role.MAIN).used, result.elapsed_ns) == (soon, SECOND)
    assert result.of(Role.MAIN).by_activity == {**WAITS, **RUNS}
    assert (later := history.explaining(SECOND, SECOND + 1))
    assert later.of(Role.MAIN).by_activity == RUNS, "the last look holds on"


def test_counters_hold_on_where_counts_are_further_apart_than_a_window() -> None:
    history = History()
    held = CgroupCounters(periods=40, throttled_periods=40)
    history.add_second(Bucket(SECOND, SECOND, held=held))
    history.add_pass(Bucket(5 * SECOND, parts={Role.MAIN: part(WAITS)}))
    result = history.explaining(SECOND, 5 * SECOND + SECOND // 4)
    assert result is not None
    assert result.held == held
    assert (later := history.explaining(4 * SECOND, 7 * SECOND))
    assert later.held == CgroupCounters(), "but not for ever"


def test_waits_for_threads_are_judged_over_seconds() -> None:
    history = History()
    for at_ns, outcome, active in ((SECOND, {QUEUE: 6, SLEEP: 4}, 4), (2 * SECOND, {SLEEP: 10}, 0)):
        history.add_pass(Bucket(at_ns, parts={Role.MAIN: part(outcome)}, awaited_threads=active))
        history.add_second(history.passes_since(at_ns - SECOND))
    result = history.explaining(SECOND, 2 * SECOND)
    assert result is not None
    assert result.of(Role.MAIN).by_activity == {SLEEP: 10}
    assert result.locked == pytest.approx(0.3)
    assert result.awaited == pytest.approx(2 / 3)


def test_time_of_threads_is_not_counted_twice() -> None:
    assert WORKER_CPU not in shares(bucket(used={"cpu_ns": 4}, thread=threads({ASKS: 6})))
    assert WORKER_CPU not in shares(bucket(used={"cpu_ns": 4, "poller_cpu_ns": 4}))
    spins_while_the_gpu_works = loader(RUNS, CPU, main={RUN: 3, QUEUE: 7}, used_by_main=CPU)
    assert WORKER_CPU in shares(spins_while_the_gpu_works, 0.3)


@pytest.mark.parametrize(("throttled", "working"), [(0, 0.02), (1, 0.44)])
def test_while_a_quota_throttles_only_samples_show_how_long_workers_were_runnable(
    throttled: int, working: float
) -> None:
    held = CgroupCounters(periods=10, throttled_periods=throttled)
    workers = part({QUEUE: 19, RUN: 1}, 8, leader_cpu_ns=0.08, queue_ns=0.008)
    result = shares(bucket(worker=workers, held=held), 0.1)
    assert result[ASLEEP] == pytest.approx(1 - working, abs=0.01)


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
    result = shares(bucket({RUN: 4, READS: 3, SLEEP: 3}, **described))
    assert result[HOST_CODE] == host_code
    assert result[STORAGE] == result[ASLEEP] == (1 - host_code) / 2


@pytest.mark.parametrize("state", Activity)
def test_activity_of_a_main_while_its_gpu_works_barely_changes_later_charges(
    state: Activity,
) -> None:
    carry: Carry = {}
    for _ in range(60):
        shares(bucket({state: 10}), 0.9, carry)
    asleep = [shares(bucket({SLEEP: 10}), 0.0, carry).get(ASLEEP, 0.0) for _ in range(10)]
    assert sum(asleep) >= 9
    assert state in (ASKS, READS, Activity.MEMORY) or asleep == [1.0] * 10


@rows(
    "active, stalls, share",
    {
        "works": (SECOND, {}, 1.0),
        "is starved": (0, {WORKER_CPU: SECOND}, 1.0),
        "waits for remote data": (0, {NETWORK: SECOND}, 1.0),
        "in part": (0, {HOST_CODE: SECOND // 2, ASLEEP: SECOND // 2}, 0.5),
        "waits for another: no wait is a circle": (0, {PEER: SECOND}, 0.0),
        "sleeps": (0, {ASLEEP: SECOND}, 0.0),
        "waits for requests": (0, {REQUESTS: SECOND}, 0.0),
        "unknown": (0, {UNKNOWN: SECOND}, 0.0),
        "unallocated": (0, {UNALLOCATED: SECOND}, 0.0),
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


ENGINE = st.floats(0, 1)
TICKS = st.tuples(WINDOWS, st.none() | st.integers(0, 4), st.none() | BUCKETS, ENGINE)


@given(st.lists(TICKS, min_size=1, max_size=5))
@example([([Window(0, 2, 1)], HELD, None, 0.0)])
def test_idle_time_is_split_exactly(
    ticks: list[tuple[list[Window], int | None, Bucket | None, float]],
) -> None:
    carry: Carry = {}
    for of_tick, holders, feeders, engine in ticks:
        parts = split(of_tick, holders, feeders, carry, engine)
        idle = sum(window.duration_ns - window.active_ns for window in of_tick)
        assert sum(parts.values()) == idle
        assert all(part > 0 for part in parts.values())
        assert set(parts) <= set(WAITING_ON)
        active = sum(window.active_ns for window in of_tick)
        assert active <= engaged(active, parts) <= active + idle
        assert all(0 <= ns <= SECOND for ns in carry.values())


@given(st.integers(0, 10 * SECOND), st.dictionaries(st.sampled_from(Place), st.integers(1, 40)))
def test_storage_is_split_as_it_was_seen(storage: int, places: dict[Place, int]) -> None:
    parts = by_file_system({STORAGE: storage, HOST_CODE: SECOND}, bucket(places=places))
    result = {place.value for place in places} - {Place.UNKNOWN.value} if storage else set()
    assert parts.keys() == result
    for place, number in places.items():
        share = storage * number / sum(places.values())
        assert place is Place.UNKNOWN or share - 1 <= parts.get(place.value, 0) <= share


def test_storage_without_a_sampled_wait_has_no_file_system() -> None:
    assert by_file_system({STORAGE: SECOND}, bucket()) == {}
    assert by_file_system({STORAGE: SECOND}, None) == {}
    assert by_file_system({HOST_CODE: SECOND}, bucket(places={Place.LOCAL: 1})) == {}


@rows(
    "holders, engine, split_as",
    {
        "an encoder that works all the time": (HELD, 1.0, {VIDEO_ENGINE: 0.9}),
        "in part": (HELD, 0.5, {VIDEO_ENGINE: 0.45, ASLEEP: 0.45}),
        "holders that may be hidden": (None, 0.5, {VIDEO_ENGINE: 0.45, UNKNOWN: 0.45}),
        "a holder out of sight": (0, 0.5, {VIDEO_ENGINE: 0.45, UNKNOWN: 0.45}),
        "none": (HELD, 0.0, {ASLEEP: 0.9}),
    },
)
def test_time_in_which_a_video_engine_works_is_not_idle(
    holders: int | None, engine: float, split_as: Mapping[str, float]
) -> None:
    tick = [Window(SECOND, SECOND, SECOND // 10)]
    parts = split(tick, holders, bucket({SLEEP: 10}), {}, engine)
    assert {name: ns / SECOND for name, ns in parts.items()} == pytest.approx(split_as)


def test_a_main_that_sleeps_while_a_video_engine_works_waits_for_nothing_else() -> None:
    tick = [Window(SECOND, SECOND, 0)]
    parts = split(tick, HELD, bucket({SLEEP: 5, READS: 5}), {}, 0.5)
    assert parts == {VIDEO_ENGINE: SECOND // 2, STORAGE: SECOND // 2}


OVERLAPS = {SLEEP: 12, QUEUE: 6, RUN: 2}
"""Twenty looks at a main whose GPU works for 70 % of the time: while it computes, as well."""


@rows(
    "did, found",
    {
        "waits for threads that read": (reading({READS: 12, RUN: 4}, 1), {STORAGE: 1.0}),
        "waits for threads that fetch": (reading({ASKS: 12, RUN: 4}, 1), {NETWORK: 1.0}),
        "threads that compute most of the time": (
            reading({READS: 4, RUN: 12}, 0.3),
            {HOST_CODE: 0.333, WORKER_CPU: 0.667},
        ),
        "a thread that reads beside workers that compute": (
            reading({READS: 12}, 1, worker=part({RUN: 20}, 2)),
            {HOST_CODE: 0.333, WORKER_CPU: 0.667},
        ),
        "threads that read while it sleeps": (
            reading({READS: 12, RUN: 4}, 0),
            {HOST_CODE: 0.333, STORAGE: 0.667},
        ),
        "a tick that shows few of these waits by chance": (
            reading({READS: 12, RUN: 4}, 1, {SLEEP: 7, QUEUE: 1, RUN: 2}),
            {STORAGE: 1.0},
        ),
        "threads with counted reads only": (
            reading({READS: 4, RUN: 12}, 1, disk_ns=5.6),
            {STORAGE: 1.0},
        ),
        "a tick that has none of them": (
            reading({READS: 12, RUN: 4}, 1, {SLEEP: 36, RUN: 4}),
            {HOST_CODE: 0.333, STORAGE: 0.667},
        ),
    },
)
def test_code_that_overlaps_with_the_gpus_work_delays_nothing(
    did: Bucket, found: Mapping[str, float]
) -> None:
    assert shares(did, 0.7) == pytest.approx(found, abs=0.01)
