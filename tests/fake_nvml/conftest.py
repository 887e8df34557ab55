from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from gpu_bottleneck_exporter.driver import board

from .build import build
from .probe import probe

if TYPE_CHECKING:
    from pathlib import Path

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[board.Board]:
    with board.create(tmp_path / "board") as created:
        yield created


@pytest.fixture
def ask(library: Path) -> Ask:
    """Ask pynvml, in a process of its own, about a board."""

    def answer(about: board.Board, code: str) -> Any:  # noqa: ANN401
        return probe(library, about.path, code)

    return answer
