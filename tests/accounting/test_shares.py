"""Shares that are neither none nor all: how much of a wait each kind of helper explains."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

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
    UNKNOWN,
    WORKER_CPU,
    Carry,
    apportion,
    split,
)
from gpu_bottleneck_exporter.accounting.windows import Window

SECOND = 1_000_000_000
ELAPSED = 4 * SECOND
"""What counters cover: longer than the tick that is split."""
MEBIBYTE = 1 << 20
SLEEP, QUEUE, HIDDEN, RUN = Activity.SLEEP, Activity.QUEUE, Activity.UNKNOWN, Activity.RUN
SERVES, READS, ASKS = Activity.REQUESTS, Activity.DISK, Activity.NETWORK
WAITS = {QUEUE: 10}


def seconds(**counters: float) -> Counters:
    """Counters of CPU time in seconds; others as they are."""
    return Counters(
        **{
            n: round(value * SECOND) if n.endswith("_ns") else round(value)
            for n, value in counters.items()
        }
    )


def part(seen: Mapping[Activity, int], number: int = 1, /, **counters: float) -> Part:
    return Part(dict(seen), 10 * number, 10, seconds(**counters))


def bucket(
    main: Mapping[Activity, int] = WAITS,
    *,
    held: CgroupCounters | None = None,
    peer: float = 0.0,
    of_main: Mapping[str, float] | None = None,
    **parts: Part,
) -> Bucket:
    """Four seconds; a main that waits, if nothing else is said, and helpers by role."""
    everybody = {Role.MAIN: part(main, **(of_main or {})), **parts}
    return Bucket(elapsed_ns=ELAPSED, parts=everybody, held=held or CgroupCounters(), peer=peer)


def shares(did: Bucket, busy: float = 0.0, carry: Carry | None = None) -> dict[str, float]:
    """Of the idle time of a tick of one second."""
    found = split([Window(SECOND, SECOND, round(busy * SECOND))], 1, did, carry)
    return {cause: round(ns / SECOND / (1 - busy), 3) for cause, ns in found.items()}


COPIES = {"cpu_ns": 1.0, "system_ns": 0.75, "read_bytes": 50e6, "written_bytes": 50e6}
"""25 MB/s, three quarters of the CPU time in the kernel."""
RUNS = {"leader_cpu_ns": 1, "launch_cpu_ns": 1, "launch_queue_ns": 1}


@pytest.mark.parametrize(
    ("did", "found"),
    [
        pytest.param(bucket(of_main={"children_ns": 1.2}), {WORKER_CPU: 0.3}, id="short-lived"),
        pytest.param(
            bucket(worker=part(WAITS, children_ns=1.2)), {WORKER_CPU: 0.3}, id="of a worker's"
        ),
        pytest.param(
            bucket(of_main={"cpu_ns": 2.0, "leader_cpu_ns": 0.4, "launch_cpu_ns": 0.4}),
            {WORKER_CPU: 0.3},
            id="other threads of the main",
        ),
        pytest.param(bucket(related=part({RUN: 3, QUEUE: 7})), {WORKER_CPU: 0.3}, id="kin run"),
        pytest.param(bucket(related=part({READS: 3, QUEUE: 7})), {STORAGE: 0.3}, id="kin read"),
        pytest.param(bucket(related=part({ASKS: 3, QUEUE: 7})), {NETWORK: 0.3}, id="kin ask"),
        pytest.param(
            bucket(related=part({READS: 1, RUN: 2, QUEUE: 7})), {WORKER_CPU: 0.3}, id="more run"
        ),
        pytest.param(
            bucket(related=part({RUN: 4, QUEUE: 6}, **COPIES)), {STORAGE: 0.4}, id="kin copy"
        ),
        pytest.param(
            bucket(thread=part({RUN: 4, QUEUE: 6}), of_main=COPIES),
            {STORAGE: 0.4},
            id="threads copy",
        ),
        pytest.param(
            bucket(related=part({RUN: 4, QUEUE: 6}, **{**COPIES, "written_bytes": 10e6})),
            {WORKER_CPU: 0.4},
            id="they copy little",
        ),
        pytest.param(
            bucket(worker=part({RUN: 5, QUEUE: 5}, 2, cpu_ns=2, leader_cpu_ns=2, queue_ns=0.4)),
            {WORKER_CPU: 0.6},
            id="workers as counted",
        ),
        pytest.param(
            bucket(worker=part({RUN: 2, QUEUE: 8}, 2, cpu_ns=2.5, leader_cpu_ns=2, queue_ns=0.4)),
            {WORKER_CPU: 0.4},
            id="their threads ran, too",
        ),
        pytest.param(
            bucket(worker=part({HIDDEN: 5, QUEUE: 15})), {UNKNOWN: 0.25}, id="who may not be read"
        ),
        pytest.param(
            bucket(related=part({RUN: 4, QUEUE: 6}), peer=0.6),
            {PEER: 0.6},
            id="a peer, and helpers that prepare",
        ),
        pytest.param(
            bucket(related=part({RUN: 5, QUEUE: 5}), peer=0.6),
            {WORKER_CPU: 0.5, PEER: 0.3},
            id="a peer, and helpers at work",
        ),
        pytest.param(
            bucket(related=part({RUN: 4, QUEUE: 6}), peer=0.5),
            {WORKER_CPU: 0.4, PEER: 0.3},
            id="a peer for half of the time",
        ),
    ],
)
def test_a_wait_is_explained_as_far_as_helpers_are_active(
    did: Bucket, found: dict[str, float]
) -> None:
    assert shares(did) == pytest.approx({**found, ASLEEP: 1 - sum(found.values())})


def test_busy_time_is_explained_by_what_hides_it_likeliest() -> None:
    did = bucket({SLEEP: 2, QUEUE: 1, HIDDEN: 1, SERVES: 1, RUN: 2, ASKS: 1, READS: 2})
    idle = {REQUESTS: 1, HOST_CODE: 2, NETWORK: 1, STORAGE: 2}
    assert shares(did, 0.4) == pytest.approx({c: n / 6 for c, n in idle.items()}, abs=0.001)
    assert shares(did, 0.8) == pytest.approx({STORAGE: 1.0})
    waits = {SERVES: 4, QUEUE: 4, SLEEP: 2}
    assert shares(bucket(waits), 0.2) == pytest.approx({REQUESTS: 0.5, ASLEEP: 0.5})


def test_what_busy_time_took_from_io_is_paid_back_once() -> None:
    carry: Carry = {}
    assert shares(bucket({ASKS: 8, SLEEP: 2}), 0.5, carry) == {NETWORK: 1.0}
    assert carry == pytest.approx({ASKS: 0.3e9})
    half = [Window(0, SECOND // 5, 0)]
    assert split(half, 1, bucket({SLEEP: 10}), carry) == {NETWORK: SECOND // 5}
    assert carry == pytest.approx({ASKS: 0.1e9})
    assert shares(bucket({SLEEP: 10}), 0.0, carry) == {NETWORK: 0.1, ASLEEP: 0.9}
    assert carry == pytest.approx({ASKS: 0.0})
    assert shares(bucket({SLEEP: 10}), 0.0, carry) == {ASLEEP: 1.0}


def test_what_is_known_to_be_no_work_of_the_gpu_pays_nothing_back() -> None:
    assert shares(bucket({SERVES: 10}), 0.0, {ASKS: 0.3e9}) == {REQUESTS: 1.0}
    assert shares(bucket({RUN: 10}), 0.0, {ASKS: 0.3e9}) == {HOST_CODE: 1.0}


@pytest.mark.parametrize(
    ("of_main", "found"),
    [
        pytest.param({**COPIES, "leader_cpu_ns": 1}, {HOST_CODE: 0.25, STORAGE: 0.75}, id="bulk"),
        pytest.param(
            {**COPIES, "leader_cpu_ns": 1, "read_bytes": 10e6}, {HOST_CODE: 1.0}, id="few"
        ),
        pytest.param({**RUNS, "queue_ns": 1.0}, {HOST_CODE: 1.0}, id="it waits for a CPU as long"),
        pytest.param({**RUNS, "queue_ns": 1.1}, {CPU_QUEUE: 1.0}, id="or longer"),
    ],
)
def test_a_main_that_runs_is_charged_for_what_its_cpu_time_was_spent_on(
    of_main: dict[str, float], found: dict[str, float]
) -> None:
    assert shares(bucket({RUN: 10}, of_main=of_main)) == pytest.approx(found)


@pytest.mark.parametrize(("throttled", "cause"), [(5, CPU_QUEUE), (6, CPU_QUOTA)])
def test_a_quota_that_runs_out_most_of_the_time_is_what_a_queue_comes_from(
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
    assert shares(bucket(worker=crew, related=related, of_main=of_main)) == {cause: 1.0}


@pytest.mark.parametrize(
    ("refaults", "moved", "cause"),
    [
        pytest.param(MEBIBYTE, MEBIBYTE, MEMORY, id="256 KiB/s"),
        pytest.param(MEBIBYTE - 1, MEBIBYTE, STORAGE, id="less"),
        pytest.param(9 * MEBIBYTE, 3 * MEBIBYTE, MEMORY, id="three times what is read"),
        pytest.param(9 * MEBIBYTE + 1, 3 * MEBIBYTE, STORAGE, id="more"),
        pytest.param(2 * MEBIBYTE, 4 * MEBIBYTE, STORAGE, id="half"),
        pytest.param(2 * MEBIBYTE + 1, 4 * MEBIBYTE, MEMORY, id="more than half"),
    ],
)
def test_what_was_evicted_is_memory_where_it_is_most_of_what_is_read(
    refaults: int, moved: int, cause: str
) -> None:
    reading = part({READS: 10}, read_bytes=moved / 2, written_bytes=moved / 2)
    did = bucket(worker=reading, held=CgroupCounters(refault_bytes=refaults))
    assert shares(did) == {cause: 1.0}


def test_a_remainder_goes_to_the_largest_part() -> None:
    assert apportion(10, {HOST_CODE: 1, STORAGE: 1, NETWORK: 1}) == {
        HOST_CODE: 4,
        STORAGE: 3,
        NETWORK: 3,
    }
