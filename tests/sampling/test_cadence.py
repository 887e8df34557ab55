"""How often a GPU is read: less often while it goes on as before, and nothing is missed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import Driver, DriverError
from gpu_bottleneck_exporter.driver.readings import Power, Processes
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.sampling.worker import GpuWorker, _next_tick
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import Settings
from support.board import Board as HeldBoard
from support.programs import program
from support.rows import rows
from support.waiting import PATIENCE_SECONDS, until

MakeBoard = Callable[..., Board]
FAST = Settings(interval_seconds=0.2, deadline_seconds=5.0)
TICKS = 6


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSampler]:
    brief = replace(CADENCE, recent_ns=1_000_000_000)
    monkeypatch.setattr("gpu_bottleneck_exporter.feeders.group.CADENCE", brief)
    watch = HostSampler(FAST, {"stall"})
    watch.start()
    yield watch
    watch.stop()


@contextmanager
def reading(driver: Driver, *watches: HostSampler | None) -> Iterator[list[GpuWorker]]:
    """A worker for each of the watches."""
    workers = [
        GpuWorker(index, driver, ALL, FAST, watch, own_cpu=OwnCpu(1.0))
        for index, watch in enumerate(watches)
    ]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop(0.0)
        assert all(worker.stop(PATIENCE_SECONDS) for worker in workers)


@pytest.fixture
def board(make_board: MakeBoard) -> Iterator[Board]:
    """A GPU whose holder sleeps all the time."""
    board = make_board(gpus=[H100])
    with program("ready()\ntime.sleep(600)") as process:
        board.gpus[0].hold(process.process.pid, 2**30)
        yield board


def test_a_scrape_shows_the_present_state_of_such_a_gpu(
    board: Board, watch: HostSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual_ns = int(FAST.interval_seconds * 1e9)
    with reading(VirtualDriver(board), watch) as (worker,):

        def read_ns() -> int:
            return worker.snapshots(time.monotonic_ns())[0].at_ns

        until(lambda: worker.reader.interval() > FAST.interval_seconds, "it is idle all the time")
        # Who asks just when it is read anyway is not kept waiting, as that may hang.
        monkeypatch.setattr(worker.reader, "interval", lambda: 1000.0)
        last_ns = read_ns()
        until(lambda: read_ns() > last_ns, "the last reading unasked")
        for _ in range(TICKS):
            until(lambda: time.monotonic_ns() - read_ns() > usual_ns, "an old reading")
            asked_ns = time.monotonic_ns()
            worker.refresh(time.monotonic() + PATIENCE_SECONDS)
            assert read_ns() > asked_ns - usual_ns


def test_the_end_waits_for_no_tick(make_board: MakeBoard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuReader, "interval", lambda _: 1000.0)
    with reading(VirtualDriver(make_board(gpus=[H100])), None) as (worker,):
        until(lambda: worker.attempted, "its first tick")


def test_a_slow_reading_is_shown_until_it_is_late(make_board: MakeBoard) -> None:
    reader = GpuReader(0, VirtualDriver(make_board(gpus=[H100])), ALL, Settings())
    reader.open()
    read_ns = reader.read()
    (now, later, late) = (reader.snapshots(read_ns + s * 10**9)[0] for s in (0, 25, 60))
    assert now.reading(Processes) == later.reading(Processes) != late.reading(Processes) is None


@pytest.mark.parametrize("interval", [0.2, 1.0, 5.0])
def test_all_gpus_keep_to_one_grid_each_a_little_later(interval: float) -> None:
    began = 1234.567
    offsets = [index * CADENCE.stagger_seconds for index in range(8)]
    ticks = [_next_tick(began, interval, offset, interval) for offset in offsets]
    assert all(began < tick <= began + interval for tick in ticks)
    assert [tick - ticks[0] for tick in ticks] == pytest.approx(offsets)
    for tick, offset in zip(ticks, offsets, strict=True):
        # Awake on time, a little early or late: one interval on. So late that one was missed: two.
        for awake in (tick, tick - 1e-4, tick + 0.1 * interval):
            following = [_next_tick(awake, interval, offset, n * interval) for n in (1, 4)]
            assert following == pytest.approx([tick + interval, tick + 4 * interval])
        later = _next_tick(tick + 1.1 * interval, interval, offset, interval)
        assert later == pytest.approx(tick + 2 * interval)


@rows(
    "interval, deadline, longer",
    {
        "default": (1.0, 5.0, 4.0),
        "often": (0.2, 5.0, 0.8),
        "the ring holds 10 s": (5.0, 20.0, 5.0),
        "the deadline is near": (1.0, 3.0, 3.0),
    },
)
def test_a_steady_gpu_is_read_within_the_deadline_and_the_span_of_the_ring(
    interval: float,
    deadline: float,
    longer: float,
    watch: HostSampler,
    board: Board,
) -> None:
    settings = Settings(interval_seconds=interval, deadline_seconds=deadline)
    worker = GpuWorker(0, VirtualDriver(board), ALL, settings, watch, own_cpu=OwnCpu(1.0))
    worker.start()
    until(lambda: worker.reader.interval() == longer, "it is idle all the time")
    assert worker.stop(PATIENCE_SECONDS)


def test_a_gpu_without_a_holder_is_read_at_the_full_rate(
    make_board: MakeBoard, watch: HostSampler
) -> None:
    """Else a job that is shorter than the pause would come and go unseen."""
    board = make_board(gpus=[H100])
    uuid = board.gpus[0].record.uuid.decode()
    with reading(VirtualDriver(board), watch) as (worker,):
        until(lambda: (feed := watch.feed(uuid)) and feed.pace.is_steady, "it is idle all the time")
        assert worker.reader.interval() == FAST.interval_seconds


@pytest.fixture
def between_ticks(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[GpuWorker, GpuSnapshot]]:
    """A worker after its first tick, whose next one never comes by itself; and what it read."""
    never = time.monotonic() + 2 * PATIENCE_SECONDS
    monkeypatch.setattr("gpu_bottleneck_exporter.sampling.worker._next_tick", lambda *_: never)
    with reading(VirtualDriver(board), None) as (worker,):
        (first,) = until(lambda: worker.snapshots(time.monotonic_ns()), "a reading")
        yield worker, first


def test_holders_are_read_soon_after_a_previous_read(
    between_ticks: tuple[GpuWorker, GpuSnapshot],
) -> None:
    """Not at the next tick, by when who came meanwhile may have left."""
    worker, first = between_ticks
    worker.request_holders([first.identity.uuid], now=True)
    until(lambda: worker.snapshots(time.monotonic_ns())[0].at_ns > first.at_ns, "another")


@pytest.fixture
def alone(
    make_board: Callable[..., HeldBoard],
) -> Iterator[tuple[HeldBoard, GpuReader, list[Tick]]]:
    """A GPU without a holder, its reader, and the ticks since it was opened."""
    board, ticks = make_board(gpus=[H100]), list[Tick]()
    watch = HostSampler(Settings(), {"stall"}, [ticks.append])
    reader = GpuReader(0, VirtualDriver(board), ALL, Settings(), watch)
    reader.open()
    reader.read()
    ticks.clear()
    yield board, reader, ticks
    reader.close()
    watch.stop()


@rows(
    "pause_seconds, due_seconds",
    {"every 2 s": (2, 1.5), "every 4 s": (4, 3), "every 15 s": (15, 5.5), "no longer": (0.1, 5.5)},
)
def test_gauges_are_read_at_the_rate_of_scrapes(
    alone: tuple[HeldBoard, GpuReader, list[Tick]], pause_seconds: float, due_seconds: float
) -> None:
    """A tick before the next request, and every 6 s; half a tick early."""
    _, reader, ticks = alone
    (opened,) = reader._opened
    assert opened.due_ns["power"] == opened.read_ns["power"] + 5_500_000_000
    asked_ns = time.monotonic_ns() - (10**9 if pause_seconds < 1 else 0)
    reader.request_refresh(asked_ns - int(pause_seconds * 1e9))
    opened.read_ns["power"] = asked_ns - 10**10
    assert reader.request_refresh(asked_ns)
    reader.read()
    assert any(tick.reading(Power) for tick in ticks)
    read_ns = opened.read_ns["power"]
    assert opened.due_ns["power"] - read_ns == pytest.approx(due_seconds * 1e9, abs=5e8)
    assert not reader.request_refresh(read_ns + 10**8)
    assert reader.request_refresh(read_ns + 2 * 10**9)


def test_a_gauge_that_fails_is_read_again_soon(
    alone: tuple[HeldBoard, GpuReader, list[Tick]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the last value expires."""
    _, reader, _ = alone
    (opened,) = reader._opened

    def busy() -> Power:
        raise DriverError("busy")

    for works, due_seconds in ((False, 1.5), (True, 5.5)):
        opened.due_ns["power"] = 0
        with monkeypatch.context() as patch:
            if not works:
                patch.setattr(opened.device, "power", busy)
            reader.read()
        assert opened.outcomes["power"].success == works
        assert opened.due_ns["power"] - opened.read_ns["power"] == due_seconds * 1e9


def test_requests_at_one_moment_while_it_is_read_do_no_harm(
    alone: tuple[HeldBoard, GpuReader, list[Tick]],
) -> None:
    _, reader, ticks = alone
    later_ns = time.monotonic_ns() + 10**10
    for _ in range(2):
        reader.request_refresh(later_ns)
    reader.read()
    assert any(tick.reading(Power) for tick in ticks)


def test_energy_is_read_when_holders_change(
    alone: tuple[HeldBoard, GpuReader, list[Tick]],
) -> None:
    """Else a job would pay for the seconds before and after it."""
    board, reader, ticks = alone
    for change in (board.gpus[0].hold, board.gpus[0].release):
        change(os.getpid(), *([2**30] if change == board.gpus[0].hold else []))
        reader.request_holders([board.gpus[0].record.uuid.decode()])
        reader.read()
        assert any(tick.reading(Power) for tick in ticks)
        ticks.clear()
        reader.read()
        assert not any(tick.reading(Power) for tick in ticks)


def test_a_scrape_just_after_a_tick_shows_present_gauges(
    between_ticks: tuple[GpuWorker, GpuSnapshot],
) -> None:
    worker, first = between_ticks
    (opened,) = worker.reader._opened
    opened.read_ns = dict.fromkeys(opened.read_ns, time.monotonic_ns() - 3 * 10**9)
    worker._snapshots = (replace(first, at_ns=time.monotonic_ns()),)
    asked_ns = time.monotonic_ns()
    worker.refresh(time.monotonic() + PATIENCE_SECONDS)
    assert opened.read_ns["power"] > asked_ns
