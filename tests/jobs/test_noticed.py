"""How soon it is noticed that somebody holds a GPU that nobody held."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.readings import Identity, Memory, Processes
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.settings import Settings
from jobs.held import process
from support.board import Board

SETTINGS = Settings()


@pytest.fixture
def board(make_board: Callable[..., Board]) -> Board:
    return make_board()


def holders(reader: GpuReader) -> list[int] | None:
    (gpu,) = reader.snapshots(reader.read())
    found = gpu.reading(Processes)
    return [one.pid for one in found.processes] if found else None


def test_a_holder_is_noticed_at_the_next_tick(board: Board) -> None:
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS)
    reader.open()
    assert holders(reader) == []
    board.gpus[0].hold(os.getpid(), 2**30)
    assert holders(reader) == [os.getpid()]


def test_a_holder_who_comes_right_after_another_has_left_is_noticed(board: Board) -> None:
    gpu, uuid = board.gpus[0], board.gpus[0].record.uuid.decode()
    watch = HostSampler(SETTINGS, {"stall"})
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS, watch)

    def leave(_: Identity, __: int, what: object) -> None:
        """End while the tick goes on, which has listed it: it is listed once more."""
        if isinstance(what, Processes) and what.processes:
            gpu.release(os.getpid())
            reader.look([uuid])

    gpu.hold(os.getpid(), 2**30)
    watch.note = leave
    reader.open()
    assert holders(reader) == []
    watch.note = lambda *_: None
    gpu.hold(os.getpid(), 2**30)
    assert holders(reader) == [os.getpid()]


def test_a_holder_who_comes_between_two_readings_of_a_tick_is_noticed(board: Board) -> None:
    """After the list of processes and before the memory, which then counts the holder's own."""
    watch = HostSampler(SETTINGS, {"stall"})

    def come(_: Identity, __: int, what: object) -> None:
        if what == Processes(()):
            board.gpus[0].hold(os.getpid(), 2**30)

    watch.note = come
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS, watch)
    reader.open()
    assert holders(reader) == [os.getpid()]


def test_what_a_holder_used_who_has_left_hides_nobody_who_uses_less(board: Board) -> None:
    gpu, watch = board.gpus[0], HostSampler(SETTINGS, {"stall"})

    def come_and_go(_: Identity, __: int, what: object) -> None:
        """Be there when the memory is read, and in no list."""
        if what == Processes(()):
            gpu.hold(os.getpid(), 2**31)
        elif isinstance(what, Memory):
            gpu.release(os.getpid())
            watch.note = lambda *_: None

    watch.note = come_and_go
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS, watch)
    reader.open()
    assert holders(reader) == []
    gpu.hold(os.getpid(), 2**30)
    assert holders(reader) == [os.getpid()]


def test_each_start_is_counted_also_of_one_container_that_keeps_crashing(board: Board) -> None:
    gpu = board.gpus[0]
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS)
    reader.open()
    assert holders(reader) == []
    starts = []
    for _ in range(3):
        with process() as crashing:
            gpu.hold(crashing.pid, 2**30)
            assert holders(reader) == [crashing.pid]
        gpu.release(crashing.pid)
        reader.look([gpu.record.uuid.decode()])
        assert holders(reader) == []
        (snapshot,) = reader.snapshots(reader.read())
        starts.append(snapshot.totals.starts)
    assert starts == [1, 2, 3]
