from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.nodeview.history import (
    CounterHistory,
    GpuTime,
    Moment,
    RecentShares,
    between,
)
from gpu_bottleneck_exporter.nodeview.model import Key
from gpu_bottleneck_exporter.sampling.ledger import TenantTotals

KEY = Key("0", "GPU-0")


def moment(observed: float, busy: float, machine: Machine | None = None, **stalls: float) -> Moment:
    return Moment({KEY: GpuTime(observed, busy, stalls)}, machine or Machine())


def shown(history: CounterHistory, at: float, now: Moment) -> RecentShares:
    history.add(at, now)
    return history.recent(at, now)


def test_shares_are_of_the_window_only() -> None:
    history = CounterHistory(60, 300)
    assert shown(history, 0, moment(0, 0, storage=0)).seconds == 0
    assert shown(history, 50, moment(50, 50, storage=0)).seconds == 50
    shown(history, 60, moment(60, 60, storage=0))
    now = shown(history, 120, moment(120, 75, storage=45))
    assert now.seconds == 60
    assert (now.gpus[KEY].observed_seconds, now.gpus[KEY].busy_ratio) == (60, 0.25)
    assert now.gpus[KEY].stall_ratios == {"storage": 0.75}
    assert now.gpus[KEY].verdict == "storage"
    assert len(now.gpus[KEY].trend) == 3
    assert now.gpus[KEY].trend[0] == {"busy": 1}
    assert now.gpus[KEY].trend[-1] == {"busy": 0.25, "storage": 0.75}


def test_a_single_reading_proves_nothing_of_the_time_before_it() -> None:
    now = shown(CounterHistory(60, 300), 0, moment(1000, 10, storage=990))
    assert now.gpus == {}


def test_the_longest_wait_comes_first_and_names_the_cause() -> None:
    result = between(GpuTime(0, 0, {}), GpuTime(10, 4, {"storage": 1, "worker_cpu": 5, "peer": 0}))
    assert result is not None
    assert list(result.stall_ratios) == ["worker_cpu", "storage"]
    assert result.verdict == "worker_cpu"


@pytest.mark.parametrize(("busy", "verdict"), [(8.9, "storage"), (9, "busy")])
def test_a_gpu_busy_most_of_the_time_has_no_cause(busy: float, verdict: str) -> None:
    result = between(GpuTime(0, 0, {}), GpuTime(10, busy, {"storage": 10 - busy}))
    assert result is not None
    assert result.verdict == verdict


def test_for_how_long_the_verdict_has_been_the_same() -> None:
    history = CounterHistory(60, 300)
    for at in range(0, 31, 5):
        now = shown(history, at, moment(at, 0, storage=at))
    assert now.gpus[KEY].verdict_seconds == 25
    for at in range(35, 121, 5):
        now = shown(history, at, moment(at, at - 30, storage=30))
    assert now.gpus[KEY].verdict == "busy"
    lasted = now.gpus[KEY].verdict_seconds
    assert lasted is not None
    assert lasted < 60


def test_a_gpu_that_was_opened_anew_begins_anew() -> None:
    history = CounterHistory(60, 300)
    shown(history, 0, moment(1000, 0, storage=1000))
    assert shown(history, 5, moment(2, 2, storage=0)).gpus == {}
    assert shown(history, 10, moment(7, 7, storage=0)).gpus[KEY].busy_ratio == 1


def test_a_gpu_that_was_down_is_not_judged_by_its_earlier_time() -> None:
    history = CounterHistory(60, 300)
    shown(history, 0, moment(0, 0, storage=0))
    shown(history, 5, moment(5, 0, storage=5))
    gone = shown(history, 10, Moment({}))
    assert gone.gpus == {}
    assert shown(history, 15, moment(6, 1, storage=5)).gpus == {}


def test_work_until_now_needs_no_point_of_the_same_moment() -> None:
    history = CounterHistory(60, 300)
    history.add(0, moment(0, 0, storage=0))
    assert history.recent(4, moment(4, 1, storage=3)).gpus[KEY].busy_ratio == 0.25


def test_the_host() -> None:
    def host(seconds: float) -> Machine:
        pressure_ns = {("io", "some"): int(seconds / 4 * 1e9), ("io", "full"): 0}
        return Machine(cpus=4, cpu_busy_seconds=seconds, pressure_ns=pressure_ns)

    history = CounterHistory(60, 300)
    history.add(0, moment(0, 0))  # the host has not been looked at yet
    history.add(1, moment(1, 0, host(100)))
    now = history.recent(11, moment(11, 0, host(110)))
    assert now.cpu_busy == pytest.approx(10 / 10 / 4)
    assert now.pressure == {"io": pytest.approx(0.25)}


def test_nothing_is_kept_for_ever() -> None:
    history = CounterHistory(60, 300)
    for at in range(0, 3600, 5):
        now = shown(history, at, moment(at, 0, storage=at))
    assert len(now.gpus[KEY].trend) == 60


def with_tenants(observed: float, **busy: float) -> Moment:
    """A moment at which each tenant's busy seconds are `busy`, and its idle ones as many."""
    tenants = {
        name: TenantTotals(int(value * 1e9), {"storage": int(value * 1e9)})
        for name, value in busy.items()
    }
    return Moment({KEY: GpuTime(observed, observed, {}, tenants=tenants)})


def busy_by_tenant(*moments: Moment) -> dict[str, float]:
    history = CounterHistory(60, 300)
    for at, now in enumerate(moments):
        result = shown(history, 60 * at, now)
    return {name: total.busy_ns / 1e9 for name, total in result.gpus[KEY].tenants.items()}


@pytest.mark.parametrize(
    ("moments", "busy"),
    [
        ([{"a": 1, "b": 2}, {"a": 2, "b": 4}, {"a": 5, "b": 6}], {"a": 4, "b": 4}),
        ([{}, {"a": 2, "b": 1}], {"a": 2, "b": 1}),
        ([{"a": 9, "b": 9}, {}, {"a": 2, "b": 1}], {"a": 2, "b": 1}),
        ([{"a": 0, "b": 0}, *[{"a": 70, "b": 30}] * 5, {"a": 71, "b": 32}], {"a": 1, "b": 2}),
        ([{"a": 0, "b": 0}, {"a": 1, "b": 0}], {}),
        ([{}, {"a": 3, "unattributed": 9}], {}),
        ([{}, {"a": 3, "b": 4, "unattributed": 9}], {"a": 3, "b": 4, "unattributed": 9}),
    ],
    ids=["since before", "since they came", "again", "5 min", "one left", "one", "unexplained"],
)
def test_tenants_share_the_time_of_the_trend(
    moments: list[dict[str, float]], busy: dict[str, float]
) -> None:
    times = (with_tenants(60.0 * at, **now) for at, now in enumerate(moments))
    assert busy_by_tenant(*times) == pytest.approx(busy)
