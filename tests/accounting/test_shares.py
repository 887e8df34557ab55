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
from support.rows import rows

SECOND = 1_000_000_000
ELAPSED = 4 * SECOND
"""What counters cover: longer than the tick that is split."""
MEBIBYTE = 1 << 20
SLEEP, QUEUE, HIDDEN, RUN = Activity.SLEEP, Activity.QUEUE, Activity.UNKNOWN, Activity.RUN
SERVES, READS, ASKS = Activity.REQUESTS, Activity.DISK, Activity.NETWORK
WAITS = {QUEUE: 10}


def seconds(**counters: float) -> Counters:
    """Counters of CPU time in seconds; others as they are."""
    units = {name: SECOND if name.endswith("_ns") else 1 for name in counters}
    return Counters(**{name: round(value * units[name]) for name, value in counters.items()})


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


@rows(
    "did, found",
    {
        "short-lived": (bucket(of_main={"children_ns": 1.2}), {WORKER_CPU: 0.3}),
        "of a worker's": (bucket(worker=part(WAITS, children_ns=1.2)), {WORKER_CPU: 0.3}),
        "other threads of the main": (
            bucket(of_main={"cpu_ns": 2.0, "leader_cpu_ns": 0.4, "launch_cpu_ns": 0.4}),
            {WORKER_CPU: 0.3},
        ),
        "kin run": (bucket(related=part({RUN: 3, QUEUE: 7})), {WORKER_CPU: 0.3}),
        "kin read": (bucket(related=part({READS: 3, QUEUE: 7})), {STORAGE: 0.3}),
        "kin ask": (bucket(related=part({ASKS: 3, QUEUE: 7})), {NETWORK: 0.3}),
        "more run": (bucket(related=part({READS: 1, RUN: 2, QUEUE: 7})), {WORKER_CPU: 0.3}),
        "kin copy": (bucket(related=part({RUN: 4, QUEUE: 6}, **COPIES)), {STORAGE: 0.4}),
        "threads copy": (bucket(thread=part({RUN: 4, QUEUE: 6}), of_main=COPIES), {STORAGE: 0.4}),
        "they copy little": (
            bucket(related=part({RUN: 4, QUEUE: 6}, **{**COPIES, "written_bytes": 10e6})),
            {WORKER_CPU: 0.4},
        ),
        "workers as counted": (
            bucket(worker=part({RUN: 5, QUEUE: 5}, 2, cpu_ns=2, leader_cpu_ns=2, queue_ns=0.4)),
            {WORKER_CPU: 0.6},
        ),
        "their threads ran, too": (
            bucket(worker=part({RUN: 2, QUEUE: 8}, 2, cpu_ns=2.5, leader_cpu_ns=2, queue_ns=0.4)),
            {WORKER_CPU: 0.4},
        ),
        "who may not be read": (bucket(worker=part({HIDDEN: 5, QUEUE: 15})), {UNKNOWN: 0.25}),
        "a peer, and helpers that prepare": (
            bucket(related=part({RUN: 4, QUEUE: 6}), peer=0.6),
            {PEER: 0.6},
        ),
        "a peer, and helpers at work": (
            bucket(related=part({RUN: 5, QUEUE: 5}), peer=0.6),
            {WORKER_CPU: 0.5, PEER: 0.3},
        ),
        "a peer for half of the time": (
            bucket(related=part({RUN: 4, QUEUE: 6}), peer=0.5),
            {WORKER_CPU: 0.4, PEER: 0.3},
        ),
    },
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


@rows(
    "of_main, found",
    {
        "bulk": ({**COPIES, "leader_cpu_ns": 1}, {HOST_CODE: 0.25, STORAGE: 0.75}),
        "few": ({**COPIES, "leader_cpu_ns": 1, "read_bytes": 10e6}, {HOST_CODE: 1.0}),
        "it waits for a CPU as long": ({**RUNS, "queue_ns": 1.0}, {HOST_CODE: 1.0}),
        "or longer": ({**RUNS, "queue_ns": 1.1}, {CPU_QUEUE: 1.0}),
    },
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


@rows(
    "refaults, moved, cause",
    {
        "256 KiB/s": (MEBIBYTE, MEBIBYTE, MEMORY),
        "less": (MEBIBYTE - 1, MEBIBYTE, STORAGE),
        "three times what is read": (9 * MEBIBYTE, 3 * MEBIBYTE, MEMORY),
        "more": (9 * MEBIBYTE + 1, 3 * MEBIBYTE, STORAGE),
        "half": (2 * MEBIBYTE, 4 * MEBIBYTE, STORAGE),
        "more than half": (2 * MEBIBYTE + 1, 4 * MEBIBYTE, MEMORY),
    },
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
