"""Each capture, replayed: the exporter makes of it what a reviewer found right.

`make generate` writes the expectations anew; read their diff. A capture becomes a test once its
file lies here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml.findings import seen
from replay.build import build
from replay.judged import CAPTURES, judged, load


@pytest.mark.processes
@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_the_exporter_sees_a_captured_gpu_as_was_reviewed(capture: Path, tmp_path: Path) -> None:
    expected = capture.with_suffix(".txt").read_text(encoding="utf-8")
    assert judged(load(build(capture, tmp_path))) == expected


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.stem)
def test_a_captured_model_is_in_the_table_of_findings(capture: Path) -> None:
    lines = [json.loads(line) for line in capture.read_text(encoding="utf-8").splitlines()]
    values = {
        line["call"]: line.get("value")
        for line in lines
        if ":" not in line.get("device", "")
        if "call" in line
    }
    assert seen(values["nvmlDeviceGetName"], values["nvmlSystemGetDriverVersion"])
