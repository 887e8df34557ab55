"""Fixtures that several parts need: boards, and the C stand-in driver compiled once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpu_bottleneck_exporter.driver.board import Board, create
from support.drivers import Libraries


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    return Libraries(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(autouse=True)
def in_no_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tests themselves run in one."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.fixture(autouse=True)
def real_proc() -> Iterator[None]:
    """What a test made psutil read instead of /proc must not reach the next one."""
    yield
    psutil.PROCFS_PATH = "/proc"


@pytest.fixture
def make_board(tmp_path: Path) -> Iterator[Callable[..., Board]]:
    boards: list[Board] = []

    def make(**description: Any) -> Board:  # noqa: ANN401 - what `create` takes
        boards.append(create(tmp_path / f"board{len(boards)}", **description))
        return boards[-1]

    yield make
    os.environ.pop("FAKE_NVML_BOARD", None)
