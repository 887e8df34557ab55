"""The line in which a table says what is told of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.cases import At, Row, firing, fleets_of, merged, timeline
from rules.fleet import Gpu

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
    ],
)
def test_what_is_told_when(told: str, found: list[At]) -> None:
    assert [*timeline(told, end=50)] == found


def test_rows_of_one_name_are_an_error() -> None:
    row = Row(Gpu())
    assert [*merged({"one": row}, {"other": row})] == ["one", "other"]
    with pytest.raises(AssertionError):
        merged({"one": row}, {"one": row})


def test_an_alert_has_all_of_its_labels() -> None:
    assert firing("n", "small_batch/info", user="ada") == (
        'ALERTS{alertname="GpuSmallBatch",alertstate="firing",cause="small_batch",gpu="0",'
        'instance="n",job="gpu",owner="job",severity="info",uuid="GPU-n-0",user="ada"}'
    )


@pytest.mark.parametrize("told", ["host_loop_bound/warning", "20 -; host_loop_bound", "- x/info"])
def test_promtool_refuses_what_is_not_so(told: str, tmp_path: Path) -> None:
    """Each of them is wrong of a healthy GPU, and of one that is healthy for 20 minutes only."""
    every, _ = fleets_of({"fine": Row(Gpu(), told)}, 25, usual=())
    assert every.run(tmp_path).returncode
