from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import pytest

from gpu_bottleneck_exporter.demo.board.layout import GpuRecord
from gpu_bottleneck_exporter.driver.protocol import Device, Driver
from support.board import Board, VirtualGpu
from support.drivers import KINDS, Libraries, open_driver


class Machine:
    """A virtual board, and a driver that opens once it is used."""

    def __init__(self, board: Board, kind: str, libraries: Libraries) -> None:
        self.board = board
        self._kind, self._libraries = kind, libraries

    @property
    def gpu(self) -> VirtualGpu:
        """The first GPU of the board."""
        return self.board.gpus[0]

    @property
    def record(self) -> GpuRecord:
        return self.gpu.record

    @cached_property
    def driver(self) -> Driver:
        return open_driver(self._kind, self.board, self._libraries)

    @cached_property
    def device(self) -> Device:
        """The first GPU, as the driver reads it."""
        return self.driver.open(0)[0]


Make = Callable[..., Machine]
"""Makes a machine of what `make_board` takes."""


@pytest.fixture
def machine_of(make_board: Callable[..., Board], libraries: Libraries) -> Make:
    """A machine with a driver of one of `KINDS`."""
    return lambda kind, **board: Machine(make_board(**board), kind, libraries)


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, machine_of: Make) -> Make:
    """For tests that run on both drivers."""
    return lambda **board: machine_of(request.param, **board)


@pytest.fixture
def nvml(machine_of: Make) -> Make:
    """For tests of what only NVML does."""
    return lambda **board: machine_of("nvml", **board)
