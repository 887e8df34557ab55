"""Names that a Python program may import."""

from __future__ import annotations

import contextlib
import gc
import io
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter import ExporterError, SettingsError, api, diagnose
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.protocol import DriverMissing
from support.board import Board

OPEN = Path("/proc/self/fd")
README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def board(make_board: Callable[..., Board], monkeypatch: pytest.MonkeyPatch) -> Board:
    """Two idle GPUs, which this process finds."""
    board = make_board(gpus=[H100, H100])
    monkeypatch.setattr(api, "open_driver", lambda *_, **__: VirtualDriver(board))
    return board


def test_all_public_names_are_there() -> None:
    names = gpu_bottleneck_exporter.__all__
    assert [getattr(gpu_bottleneck_exporter, name).__name__ for name in names] == names
    assert sorted(gpu_bottleneck_exporter._HOMES) == names
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        gpu_bottleneck_exporter.other  # noqa: B018


@pytest.mark.usefixtures("board")
def test_the_example_of_the_readme_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example.replace("seconds=30", "seconds=1"), {})  # noqa: S102
    assert [line.split()[:2] for line in printed.getvalue().splitlines()] == [
        ["0", "0.0"],
        ["1", "0.0"],
    ]


def test_one_gpu_by_its_index_or_uuid(board: Board) -> None:
    uuid = board.gpus[1].record.uuid.decode()
    for name in (1, "1", uuid):
        (gpu,) = diagnose(0.2, gpu=name).gpus
        assert gpu.uuid == uuid
    with pytest.raises(SettingsError, match="there is no GPU 2 "):
        diagnose(0.2, gpu=2)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_a_malformed_duration_is_refused(seconds: float) -> None:
    with pytest.raises(SettingsError, match="is not a duration"):
        diagnose(seconds)


@pytest.mark.usefixtures("board")
def test_nothing_stays_open() -> None:
    """Even where a loop has switched the collector of garbage off, as some do."""
    diagnose(0.2)
    gc.collect()
    gc.disable()
    try:
        before = len([*OPEN.iterdir()])
        for _ in range(3):
            diagnose(0.2)
        assert len([*OPEN.iterdir()]) <= before
    finally:
        gc.enable()


def test_a_machine_without_a_driver_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise DriverMissing("none here")

    monkeypatch.setattr(api, "open_driver", missing)
    with pytest.raises(ExporterError, match="no GPU metrics: none here"):
        diagnose(1)
