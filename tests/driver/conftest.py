from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.driver.protocol import Driver
from support.drivers import KINDS, Libraries, open_driver

MakeBoard = Callable[..., Board]
OpenDriver = Callable[[Board], Driver]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_on(kind: str, libraries: Libraries) -> OpenDriver:
    """Opens the driver under test on a board; tests that use it run on both drivers."""
    return lambda board: open_driver(kind, board, libraries)
