"""The time until a new holder of an unallocated GPU is noticed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import Device
from gpu_bottleneck_exporter.driver.readings import Processes, Reading
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.gpureader import GpuReader
from gpu_bottleneck_exporter.settings import Settings
from jobs.held import process
from support.board import Board

SETTINGS = Settings()


@pytest.fixture
def board(make_board: Callable[..., Board]) -> Board:
    return make_board()


def holders(reader: GpuReader) -> list[int] | None:
    (gpu,) = reader.snapshots(reader.read())
    result = gpu.reading(Processes)
    return [item.pid for item in result.processes] if result else None


def test_a_holder_is_noticed_at_the_next_tick(board: Board) -> None:
    reader = GpuReader(0, VirtualDriver(board), ALL, SETTINGS)
    reader.open()
    assert holders(reader) == []
    board.gpus[0].hold(os.getpid(), 2**30)
    assert holders(reader) == [os.getpid()]


def reading(board: Board, **then: Callable[[], object]) -> GpuReader:
    """A reader of a GPU to which something happens after collectors of these names have read."""

    def changed(one: Collector) -> Collector:
        read, happens = one.read, then[one.name]
        assert read is not None

        def reads(device: Device) -> Reading | None:
            result = read(device)
            happens()
            return result

        return replace(one, read=reads)

    collectors = [changed(item) if item.name in then else item for item in ALL]
    reader = GpuReader(0, VirtualDriver(board), collectors, SETTINGS)
    reader.open()
    return reader


def test_a_holder_right_after_another_has_left_is_noticed(board: Board) -> None:
    gpu, uuid = board.gpus[0], board.gpus[0].record.uuid.decode()
    leaves = iter([True])

    def leave() -> None:
        """End while the tick goes on, which has listed it: it is listed once more."""
        if next(leaves, False):
            gpu.release(os.getpid())
            reader.request_holders([uuid])

    gpu.hold(os.getpid(), 2**30)
    reader = reading(board, processes=leave)
    assert holders(reader) == []
    gpu.hold(os.getpid(), 2**30)
    assert holders(reader) == [os.getpid()]


def test_a_holder_between_two_readings_of_a_tick_is_noticed(board: Board) -> None:
    """It starts after the list of processes and before the memory, which then counts its own."""
    comes = iter([True])
    reader = reading(
        board,
        processes=lambda: board.gpus[0].hold(os.getpid(), 2**30) if next(comes, False) else None,
    )
    assert holders(reader) == [os.getpid()]


def test_memory_of_a_holder_that_left_hides_no_smaller_one(board: Board) -> None:
    gpu, pid = board.gpus[0], os.getpid()
    # Be there when the memory is read, and in no list.
    comes, leaves = (iter([True]) for _ in range(2))
    reader = reading(
        board,
        processes=lambda: gpu.hold(pid, 2**31) if next(comes, False) else None,
        memory=lambda: gpu.release(pid) if next(leaves, False) else None,
    )
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
        reader.request_holders([gpu.record.uuid.decode()])
        assert holders(reader) == []
        (snapshot,) = reader.snapshots(reader.read())
        starts.append(snapshot.totals.starts)
    assert starts == [1, 2, 3]
