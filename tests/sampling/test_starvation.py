"""The exporter without a CPU: late, by its own fault alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.commands.check import missing_signals
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import AccessLost, DriverError
from gpu_bottleneck_exporter.sampling import starvation
from gpu_bottleneck_exporter.sampling.ledger import GpuTotals
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu, run_delay_ns, schedstat_of
from gpu_bottleneck_exporter.sampling.worker import GpuWorker
from gpu_bottleneck_exporter.settings import Settings
from support.states import mixed_state

SECOND = 1_000_000_000
MakeBoard = Callable[..., Board]


@pytest.fixture
def own_cpu() -> OwnCpu:
    return OwnCpu(2.0)


@pytest.fixture
def worker(make_board: MakeBoard, own_cpu: OwnCpu) -> GpuWorker:
    driver = VirtualDriver(make_board())
    result = GpuWorker(0, driver, ALL, Settings(deadline_seconds=5.0), own_cpu=own_cpu)
    own_cpu.beat(result._due_ns)
    return result


def test_a_hang_is_reported_at_the_deadline_while_others_run(
    worker: GpuWorker, own_cpu: OwnCpu
) -> None:
    now = worker._due_ns
    for second in (2, 4):
        own_cpu.beat(now + second * SECOND)
    assert worker.hung_seconds(now + 5 * SECOND) is None
    assert worker.hung_seconds(now + 5 * SECOND + 1) == pytest.approx(5)


def test_a_hang_is_reported_later_by_the_time_in_which_no_thread_ran(
    worker: GpuWorker, own_cpu: OwnCpu
) -> None:
    now = worker._due_ns
    assert worker.hung_seconds(now + 60 * SECOND) is None
    own_cpu.beat(now + 60 * SECOND)
    assert worker.hung_seconds(now + 62 * SECOND) is None
    own_cpu.beat(now + 62 * SECOND)
    assert worker.hung_seconds(now + 64 * SECOND) == pytest.approx(64)


def test_access_is_lost_since_the_first_refusal(worker: GpuWorker) -> None:
    worker._fail(AccessLost("refused"))
    since = worker.access_lost_since
    assert since is not None
    worker._fail(AccessLost("refused"))
    assert worker.access_lost_since == since
    worker._fail(DriverError("another"))
    assert worker.access_lost_since is None


def delay_of(thread: threading.Thread) -> int | None:
    """Its run queue delay in ns."""
    return run_delay_ns(schedstat_of(thread.native_id or 0))


@pytest.fixture
def sleeper() -> Iterator[threading.Thread]:
    """A thread, which the kernel says something of."""
    ending = threading.Event()
    thread = threading.Thread(target=ending.wait)
    thread.start()
    try:
        if delay_of(thread) is None:
            pytest.skip("this kernel has no schedstat")
        yield thread
    finally:
        ending.set()
        thread.join()


@pytest.fixture
def asleep(
    worker: GpuWorker, sleeper: threading.Thread, monkeypatch: pytest.MonkeyPatch
) -> GpuWorker:
    """A worker whose thread it is."""
    monkeypatch.setattr(worker, "_schedstat", schedstat_of(sleeper.native_id or 0))
    return worker


def test_a_thread_that_alone_has_no_cpu_is_not_hung(
    asleep: GpuWorker, own_cpu: OwnCpu, sleeper: threading.Thread
) -> None:
    delay = delay_of(sleeper)
    assert delay is not None
    now = asleep._due_ns
    asleep._delay_ns = delay - 3 * SECOND
    for second in (2, 4, 6, 8):
        own_cpu.beat(now + second * SECOND)
    assert asleep.hung_seconds(now + 7 * SECOND) is None
    assert asleep.hung_seconds(now + 9 * SECOND) == pytest.approx(9)


def test_a_value_unknown_at_the_last_tick_is_no_delay(asleep: GpuWorker, own_cpu: OwnCpu) -> None:
    """There was no room to open a file, say."""
    asleep._delay_ns = None
    now = asleep._due_ns
    for second in (2, 4, 6):
        own_cpu.beat(now + second * SECOND)
    assert asleep.hung_seconds(now + 7 * SECOND) == pytest.approx(7)


@pytest.fixture(params=["schedstat", "none"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """One that tells how threads were scheduled, or one that does not, as in a sandbox."""
    if request.param == "none":
        monkeypatch.setattr(starvation, "_OWN_TASKS", Path("/proc/self/task/none"))
    return delay_of(threading.current_thread()) is not None


@pytest.mark.parametrize(("late_seconds", "starved"), [(0.4, False), (0.8, True)])
def test_starvation_is_detected_also_without_schedstat(
    own_cpu: OwnCpu, late_seconds: float, *, starved: bool, kernel: bool
) -> None:
    own_cpu.beat(0)
    assert own_cpu.starved is None, "nothing is known yet"
    for at in range(1, 10):
        own_cpu.beat(int(at * (2 + late_seconds) * SECOND))
    assert own_cpu.starved is starved
    assert (own_cpu.waited_seconds is not None) is kernel
    for at in range(20, 40):
        own_cpu.beat(at * 2 * SECOND)
    assert own_cpu.starved is False


def test_the_wait_of_its_threads_only_grows(own_cpu: OwnCpu, sleeper: threading.Thread) -> None:
    sums = []
    for second in range(0, 100, 2):
        own_cpu.beat(second * SECOND)
        assert own_cpu.waited_seconds is not None
        sums.append(own_cpu.waited_seconds)
    assert sums == sorted(sums)
    assert sums[-1] > 0
    assert sleeper.is_alive()


def test_a_late_value_is_not_shown_as_current(worker: GpuWorker) -> None:
    worker.reader.open()
    for _ in range(3):
        worker._tick()
        time.sleep(0.3)
    now = worker._due_ns
    (fresh,) = worker.snapshots(now)
    assert fresh.readings
    (late,) = worker.snapshots(now + 30 * SECOND)
    assert late == replace(fresh, readings={}, totals=GpuTotals(lost_ns=fresh.totals.lost_ns))
    assert late.up


def test_a_gap_has_its_remedy() -> None:
    starved = {
        gap.subject: gap for gap in missing_signals(replace(mixed_state(), starved=True), {})
    }
    assert starved["own_cpu"].problem == "the exporter itself is starved of CPU"
    assert "resources.requests.cpu" in starved["own_cpu"].remedy
    assert not any(gap.subject == "own_cpu" for gap in missing_signals(mixed_state(), {}))
