from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import pytest

from gpu_bottleneck_exporter.demo.board.layout import GpuRecord
from gpu_bottleneck_exporter.driver.protocol import Device, Driver
from support.board import Board, VirtualGpu
from support.drivers import KINDS, Libraries, opener


class Machine:
    """A virtual board, and a driver that opens once it is used."""

    def __init__(self, board: Board, open_driver: Callable[[Board], Driver]) -> None:
        self.board = board
        self._open = open_driver

    @property
    def gpu(self) -> VirtualGpu:
        """The first GPU of the board."""
        return self.board.gpus[0]

    @property
    def record(self) -> GpuRecord:
        return self.gpu.record

    @cached_property
    def driver(self) -> Driver:
        return self._open(self.board)

    @cached_property
    def device(self) -> Device:
        """The first GPU, as the driver reads it."""
        return self.driver.open(0)[0]


Make = Callable[..., Machine]
"""Makes a machine of what `make_board` takes."""


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, make_board: Callable[..., Board]) -> Make:
    """Machines for tests that run on both drivers."""
    return lambda **board: Machine(make_board(**board), opener(request))


@pytest.fixture
def nvml(make_board: Callable[..., Board], libraries: Libraries) -> Make:
    """Machines for tests of NVML alone."""
    return lambda **board: Machine(make_board(**board), libraries.open)
