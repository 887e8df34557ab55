"""The notation of the tables: what changes over time, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.cases import At, Row, fleets_of, row_of, signal, timeline
from rules.fleet import Gpu
from rules.series import level

FAULT, UNDERUSED = "GpuFault/critical", "GpuUnderused/info"


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ("-", [At(50, "-", ())]),
        ("?", [At(50, "?", ())]),
        ("gpu_fault", [At(50, "gpu_fault", ())]),
        ("gpu_fault/critical", [At(50, "gpu_fault", (FAULT,))]),
        ("29,30.5 -", [At(29, "-", ()), At(30.5, "-", ())]),
        ("4 - gpu_fault/critical", [At(4, "-", (FAULT,))]),
        ("4 ?; gpu_fault", [At(4, "?", ()), At(50, "gpu_fault", ())]),
        ("- GpuUnderused/info gpu_fault/critical", [At(50, "-", (UNDERUSED, FAULT))]),
        ("after 15 gpu_fault/critical", [At(13, "gpu_fault", ()), At(50, "gpu_fault", (FAULT,))]),
    ],
)
def test_what_is_told_when(told: str, found: list[At]) -> None:
    assert [*timeline(told, end=50)] == found


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("7", (7, 7, 7, 7, 7)),
        ("0 @2 1e3 @3 none", (0, 0, 1000, None, None)),
        ("1 ~2 2 @3 0", (1, 1.5, 2, 0, 0)),
        ("0 @1 1 @2 again", (0, 1, 0, 1, 0)),
    ],
)
def test_what_changes_over_time(text: str, values: tuple[float | None, ...]) -> None:
    assert level(4, signal(text)) == values


def test_a_row_is_a_gpu_and_what_is_told() -> None:
    row = row_of({"busy": "0.5", "stalls": {"memory": "1e-1"}, "gap": [1, 2], "told": "- x/info"})
    assert row == Row(Gpu(busy=0.5, stalls={"memory": 0.1}, gap=(1, 2)), "- x/info")
    with pytest.raises(TypeError, match="bussy"):
        row_of({"bussy": 1})


@pytest.mark.parametrize("told", ["host_loop_bound/warning", "20 -; host_loop_bound", "- x/info"])
def test_promtool_refuses_what_is_not_so(told: str, tmp_path: Path) -> None:
    """Each of them is wrong of a healthy GPU, and of one that is healthy for 20 minutes only."""
    every, _ = fleets_of({"fine": Row(Gpu(), told)}, 25, usual=())
    assert every.run(tmp_path).returncode
