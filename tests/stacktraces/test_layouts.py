"""The numbers are those of the headers that a Python comes with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.stacktraces.layouts import LAYOUTS
from support.pythons import PYTHONS
from support.tools import require

SOURCE = Path(__file__).with_name("offsets.c")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


@pytest.mark.parametrize("minor", PYTHONS)
def test_the_headers_say_the_same(minor: int, tmp_path: Path) -> None:
    cc = require("cc", "gcc")
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    headers = Path(output(PYTHONS[minor], "-c", code))
    if not (headers / "internal/pycore_runtime.h").exists():
        pytest.skip(f"python3.{minor} has no headers here")
    program = tmp_path / "offsets"
    include = (f"-I{headers}", f"-I{headers}/internal")
    output(cc, "-w", *include, f"{SOURCE}", "-o", f"{program}")
    layout = tuple(LAYOUTS[minor])
    assert output(f"{program}") == f"{minor}: Layout{layout},"
