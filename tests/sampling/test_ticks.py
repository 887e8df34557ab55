"""Content and receivers of a tick, and its remains where something fails."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED, UNKNOWN
from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import DriverError
from gpu_bottleneck_exporter.driver.readings import Memory, Power, Processes, Utilization
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from support.board import Board

SETTINGS = Settings()
Ticks = list[Tick]
Read = Callable[..., Ticks]


@pytest.fixture
def read(make_board: Callable[..., Board]) -> Iterator[Read]:
    """Reads a GPU until some time is accounted; returns the ticks since."""
    board, ticks = make_board(), Ticks()

    def failing(_: Tick) -> None:
        raise ValueError("whoever learns of ticks may fail")

    watch = HostSampler(SETTINGS, {"stall"}, [failing, ticks.append])
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS, watch)
    reader.open()

    def reads(*, held: bool, explaining: Callable[..., None] | None = None) -> Ticks:
        if held:
            board.gpus[0].hold(os.getpid(), 2**30)
        if explaining:
            watch.explaining = explaining  # type: ignore[method-assign]
        reader.request_holders([board.gpus[0].record.uuid.decode()])
        ticks.clear()
        until = time.monotonic() + 30
        while not any(tick.windows for tick in ticks) and time.monotonic() < until:
            reader.read()
            time.sleep(0.2)
        stalls = reader.snapshots(time.monotonic_ns())[0].totals.stall_ns or {}
        last = [tick for tick in ticks if tick.windows][-1]
        assert sum(stalls.values()) >= sum(last.stalls.values())
        return ticks

    yield reads
    watch.stop()


def of_time(ticks: Ticks) -> Tick:
    """The last of them that accounts some time."""
    values = [tick for tick in ticks if tick.windows]
    assert all(
        sum(tick.stalls.values()) == sum(w.duration_ns - w.active_ns for w in tick.windows)
        for tick in values
    )
    return values[-1]


def test_a_tick_has_its_readings_and_the_split_of_its_time(read: Read) -> None:
    tick = of_time(read(held=False))
    assert tick.holders == frozenset()
    assert {*tick.stalls} == {UNALLOCATED}
    assert tick.reading(Utilization)
    assert tick.only([Processes]).readings.keys() <= {Processes}
    assert tick.only([Processes]).windows == tick.windows


def test_its_holders_are_those_that_were_listed(read: Read) -> None:
    ticks = read(held=True)
    assert of_time(ticks).holders == frozenset({os.getpid()})
    assert any(tick.reading(Processes) for tick in ticks)
    assert any(tick.reading(Memory) for tick in ticks)


def test_time_is_published_at_once_as_the_next_read_may_hang(read: Read) -> None:
    ticks = read(held=True)
    later = [tick for tick in ticks if tick.reading(Power)]
    assert later
    assert not any(tick.windows for tick in later)
    assert all(tick.read_ns(Power) <= tick.at_ns for tick in later)


def test_unexplained_time_is_unknown_and_published_all_the_same(read: Read) -> None:
    def explaining(*_: object) -> None:
        raise DriverError("no")

    tick = of_time(read(held=True, explaining=explaining))
    assert {*tick.stalls} == {UNKNOWN}


def test_a_process_with_samples_is_listed_at_once(
    make_board: Callable[..., Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    board, watch = make_board(), HostSampler(SETTINGS, {"stall"})
    monkeypatch.setattr(watch, "tenants", lambda _: {os.getpid(): "pod-a"})
    gpu = board.gpus[0]
    gpu.hold(os.getpid(), 2**20)
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS, watch)
    reader.open()
    reader.read()
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as late:
        gpu.hold(late.pid, 2**20)
        gpu.synchronize(gpu.launch(0.4, Work(kernel=1.0), late.pid) + 400_000_000)
        reader.read()
        holders = reader.snapshots(time.monotonic_ns())[0].reading(Processes)
    assert holders
    assert late.pid in {process.pid for process in holders.processes}
