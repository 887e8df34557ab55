from __future__ import annotations

import pytest

from gpu_bottleneck_exporter.nodeview.history import History, between
from gpu_bottleneck_exporter.nodeview.model import (
    GpuReading,
    GpuTime,
    GpuView,
    HostReading,
    Key,
    Reading,
    likely_cause,
)

KEY = Key("0", "GPU-0")


def reading(
    observed: float, busy: float, host: HostReading | None = None, **stalls: float
) -> Reading:
    gpu = GpuReading(KEY, counters=GpuTime(observed, busy, stalls))
    return Reading(gpus=(gpu,), host=host or HostReading())


def shown(history: History, at: float, now: Reading) -> GpuView:
    history.add(at, now)
    return history.view(at, now).gpus[0]


def test_shares_are_of_the_window_only() -> None:
    history = History(60, 300)
    shown(history, 0, reading(0, 0, storage=0))
    shown(history, 60, reading(60, 60, storage=0))
    now = shown(history, 120, reading(120, 75, storage=45))
    assert now.shares is not None
    assert (now.shares.seconds, now.shares.busy) == (60, 0.25)
    assert now.shares.stalls == {"storage": 0.75}
    assert now.cause == "storage"
    assert len(now.trend) == 2


def test_one_reading_tells_nothing_of_the_time_before_it() -> None:
    now = shown(History(60, 300), 0, reading(1000, 10, storage=990))
    assert (now.shares, now.cause, now.verdict_seconds) == (None, None, None)


def test_what_it_waited_on_most_comes_first_and_names_the_cause() -> None:
    shares = between(GpuTime(0, 0, {}), GpuTime(10, 4, {"storage": 1, "worker_cpu": 5, "peer": 0}))
    assert shares is not None
    assert list(shares.stalls) == ["worker_cpu", "storage"]
    assert shares.verdict == "worker_cpu"


@pytest.mark.parametrize(("busy", "verdict"), [(8.9, "storage"), (9, "busy")])
def test_a_gpu_busy_most_of_the_time_has_no_cause(busy: float, verdict: str) -> None:
    shares = between(GpuTime(0, 0, {}), GpuTime(10, busy, {"storage": 10 - busy}))
    assert shares is not None
    assert shares.verdict == verdict


def test_for_how_long_the_verdict_has_been_the_same() -> None:
    history = History(60, 300)
    for at in range(0, 31, 5):
        now = shown(history, at, reading(at, 0, storage=at))
    assert now.verdict_seconds == 25
    for at in range(35, 121, 5):
        now = shown(history, at, reading(at, at - 30, storage=30))
    assert likely_cause(now) == "busy"
    assert now.verdict_seconds is not None
    assert now.verdict_seconds < 60


def test_a_restart_of_the_exporter_begins_anew() -> None:
    history = History(60, 300)
    shown(history, 0, reading(1000, 0, storage=1000))
    assert shown(history, 5, reading(2, 2, storage=0)).shares is None
    now = shown(history, 10, reading(7, 7, storage=0))
    assert now.shares is not None
    assert now.shares.busy == 1


def test_a_gpu_that_was_down_is_not_judged_by_what_was_before() -> None:
    history = History(60, 300)
    shown(history, 0, reading(0, 0, storage=0))
    shown(history, 5, reading(5, 0, storage=5))
    down = Reading(gpus=(GpuReading(KEY, up=False),))
    gone = shown(history, 10, down)
    assert (gone.shares, gone.trend, likely_cause(gone)) == (None, (), "down")
    assert shown(history, 15, reading(6, 1, storage=5)).shares is None


def test_a_view_needs_no_reading_of_the_same_moment() -> None:
    history = History(60, 300)
    history.add(0, reading(0, 0, storage=0))
    now = history.view(4, reading(4, 1, storage=3)).gpus[0]
    assert now.shares is not None
    assert now.shares.busy == 0.25


def test_the_host() -> None:
    def host(seconds: float) -> HostReading:
        return HostReading(cpus=4, cpu_busy_seconds=seconds, pressure_seconds={"io": seconds / 4})

    history = History(60, 300)
    history.add(0, reading(0, 0))  # the host has not been looked at yet
    history.add(1, reading(1, 0, host(100)))
    view = history.view(11, reading(11, 0, host(110)))
    assert view.cpu_busy == pytest.approx(10 / 10 / 4)
    assert view.pressure == {"io": pytest.approx(0.25)}


def test_nothing_is_kept_for_ever() -> None:
    history = History(60, 300)
    for at in range(0, 3600, 5):
        now = shown(history, at, reading(at, 0, storage=at))
    assert len(now.trend) == 60
