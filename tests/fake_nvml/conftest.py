from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from support.board import Board, create

from .build import build
from .probe import Probe, probe

if TYPE_CHECKING:
    from pathlib import Path

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[Board]:
    with create(tmp_path / "board") as created:
        yield created


@pytest.fixture(scope="session")
def fresh(library: Path) -> Iterator[Probe]:
    with probe(library) as asked:
        yield asked


@pytest.fixture
def ask(fresh: Probe) -> Ask:
    """Ask pynvml, in a process of its own, about a board."""
    return lambda about, code: fresh(about.path, code)
