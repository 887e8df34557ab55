"""Totals of one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, TenantTime
from gpu_bottleneck_exporter.driver.readings import (
    Link,
    Process,
    Processes,
    RingSample,
    UnitActivity,
    Utilization,
    Video,
)
from gpu_bottleneck_exporter.sampling.ledger import OTHER_TENANTS, GpuLedger, TenantTotals
from support.states import HOPPER, SYSTEM
from support.ticks import tick

SECOND = 1_000_000_000


def test_work_of_the_gpu_is_added_up() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    for at_ns in (0, SECOND):
        ledger.add(
            at_ns, SECOND, UnitActivity(SECOND, pipes={"fp16": 0.5}, traffic_bytes={"pcie": 7})
        )
    totals = ledger.snapshot(SECOND).totals
    assert (totals.pipe_ns, totals.traffic_bytes) == ({"fp16": SECOND}, {"pcie": 14})


def test_idle_time_is_added_up_by_wait() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    for second in range(3):
        ledger.add(second * SECOND, SECOND, Utilization(gpu_percent=50))
    assert ledger.snapshot(2 * SECOND).totals.stall_ns is None, "nothing was split"
    ledger.note(replace(tick(0, {"storage": 300, "host_code": 200}), storage={"remote": 100}))
    ledger.note(tick(0, {"storage": 500}))
    totals = ledger.snapshot(2 * SECOND).totals
    none = dict.fromkeys(WAITING_ON, 0)
    assert totals.stall_ns == {**none, "storage": 800, "host_code": 200}
    assert totals.storage_ns == {"local": 0, "remote": 100}


def shared(ledger: GpuLedger, seconds: range, *names: str) -> dict[str, TenantTotals]:
    """Totals by tenant after these seconds, of which each of `names` used the same part."""
    parts = [TenantTime(name, {1: 600}, {"storage": 400}) for name in names]
    for second in seconds:
        ledger.add(second * SECOND, SECOND, Utilization(gpu_percent=60))
        ledger.note(replace(tick(600, {"storage": 400}, second * SECOND), tenants=parts))
    return dict(ledger.snapshot(seconds[-1] * SECOND).totals.tenants)


def test_tenants_keep_their_sums_after_they_left() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    shared(ledger, range(5), "a", "b", UNATTRIBUTED)
    left = shared(ledger, range(5, 300), "b")
    assert left["a"] == TenantTotals(3000, {"storage": 2000})
    assert left[UNATTRIBUTED].busy_ns == 3000
    assert left["b"].busy_ns == 300 * 600
    assert shared(ledger, range(300, 310), "b").keys() == {"b", UNATTRIBUTED}


def test_eight_tenants_are_named_and_the_rest_are_others() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    shared(ledger, range(5), *"abcdefgh")
    ten = shared(ledger, range(5, 10), *"abcdefghij")
    assert ten.keys() == {*"abcdefgh", OTHER_TENANTS}
    assert ten[OTHER_TENANTS] == TenantTotals(2 * 5 * 600, {"storage": 2 * 5 * 400})
    # The place of one that left is free once scrapes saw its end.
    assert "i" not in shared(ledger, range(10, 60), *"bcdefghij")
    later = shared(ledger, range(60, 80), *"bcdefghij")
    assert later.keys() == {*"bcdefghi", OTHER_TENANTS}


def test_the_most_lanes_outlive_a_fall_and_gaps() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    most = []
    for at_ns, width in enumerate((None, 8, 16, None, 8)):
        ledger.add(at_ns, 0, Link(width=width))
        most.append(ledger.snapshot(at_ns + 1).most_lanes)
    assert most == [None, 8, 16, 16, 16]


def works(ledger: GpuLedger, seconds: range, percent: int, *pids: int) -> tuple[int | None, ...]:
    """Totals after these seconds, in which `pids` hold the GPU and keep it busy."""
    for second in seconds:
        ledger.add(second * SECOND, SECOND, Processes(tuple(Process(pid) for pid in pids)))
        ledger.add(second * SECOND, SECOND, Utilization(gpu_percent=percent))
    totals = ledger.snapshot(seconds[-1] * SECOND).totals
    return totals.starts, totals.productive_starts


def test_starts_of_jobs_are_counted_and_those_that_reach_work() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    assert ledger.snapshot(0).totals.starts is None, "nobody has looked"
    assert works(ledger, range(30), 100, 7) == (0, 0), "it was there before the exporter"
    assert works(ledger, range(30, 40), 0) == (0, 0)
    assert works(ledger, range(40, 55), 50, 8, 9) == (1, 0), "a crash: seven seconds of work"
    assert works(ledger, range(55, 60), 0) == (1, 0)
    assert works(ledger, range(60, 70), 50, 10) == (2, 0)
    assert works(ledger, range(70, 90), 50, 10, 11) == (2, 1), "a second process of a job"
    assert works(ledger, range(90, 95), 50, 11) == (3, 1), "it began before the other left"
    for second in range(95, 110):  # a server that is up
        ledger.note(tick(0, {"requests": SECOND}))
        ledger.add(second * SECOND, SECOND, Processes((Process(11),)))
    assert works(ledger, range(110, 112), 0, 11) == (3, 2)


def test_starts_are_unknown_while_processes_may_be_hidden() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    ledger.add(0, SECOND, Processes(others_hidden=True))
    assert ledger.snapshot(0).totals.starts is None
    ledger.add(SECOND, SECOND, Processes((Process(7),)))
    ledger.add(2 * SECOND, SECOND, Processes(others_hidden=True))
    ledger.add(3 * SECOND, SECOND, Processes((Process(7),)))
    totals = ledger.snapshot(3 * SECOND).totals
    assert (totals.starts, totals.productive_starts) == (0, None), "busy time is not measured"


def ring(first: int, percents: Sequence[int]) -> tuple[RingSample, ...]:
    """Samples of seconds `first` and later."""
    return tuple(RingSample((first + at) * 10**6, item) for at, item in enumerate(percents))


def test_the_time_of_video_engines_is_added_up_and_that_of_the_busiest_explains_idle_time() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    ledger.add(10 * SECOND, SECOND, Video({"encoder": ring(1, [0] * 10), "ofa": ring(1, [0] * 10)}))
    assert ledger.snapshot(10 * SECOND).totals.engine_ns == {"encoder": 0, "ofa": 0}
    assert ledger.engine_share(10 * SECOND) == 0
    works = {"encoder": ring(11, [0, 50, 100, 90, 60]), "ofa": ring(11, [0] * 5)}
    ledger.add(15 * SECOND, SECOND, Video(works))
    assert ledger.snapshot(15 * SECOND).totals.engine_ns == {"encoder": 3 * SECOND, "ofa": 0}
    assert ledger.engine_share(16 * SECOND) == 0.6
    assert ledger.engine_share(16 * SECOND + 1) == 0, "an old reading"
    assert ledger.snapshot(17 * SECOND).totals.engine_ns == {}


def test_an_engine_that_starts_after_idle_readings_loses_no_time() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    for second in (10, 15):
        ledger.add(second * SECOND, SECOND, Video({"encoder": ring(second, [0])}))
        assert ledger.snapshot(second * SECOND).totals.engine_ns == {"encoder": 0}
    ledger.add(20 * SECOND, SECOND, Video({"encoder": ring(16, [100] * 5)}))
    assert ledger.snapshot(20 * SECOND).totals.engine_ns == {"encoder": 5 * SECOND}
    ledger.add(25 * SECOND, SECOND, Video({"encoder": ring(25, [0])}))
    ledger.add(30 * SECOND, SECOND, Video({"encoder": ring(26, [0, 0, 0, 0, 50])}))
    assert ledger.snapshot(30 * SECOND).totals.engine_ns == {"encoder": 11 * SECOND // 2}
    assert ledger.engine_share(30 * SECOND) == 0.1


def test_an_engine_without_samples_is_added_up_by_its_readings() -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    for second, percent in enumerate((100, 50, 100), 1):
        ledger.add(second * SECOND, SECOND, Video({}, {"jpeg": percent}))
    assert ledger.snapshot(3 * SECOND).totals.engine_ns == {"jpeg": 3 * SECOND // 2}


@pytest.mark.parametrize(
    ("pids", "hidden", "held"),
    [((), False, set()), ((), True, None), ((7,), False, {7}), ((7,), True, {7})],
)
def test_holders_are_unknown_where_none_is_visible_and_some_may_be_hidden(
    pids: tuple[int, ...], held: set[int] | None, *, hidden: bool
) -> None:
    ledger = GpuLedger(HOPPER, SYSTEM, SECOND)
    ledger.add(0, SECOND, Processes(tuple(map(Process, pids)), others_hidden=hidden))
    assert ledger.holders(SECOND) == held
    assert ledger.holders(SECOND + 1) is None, "an old reading"
