"""The numbers are those of the headers that a Python comes with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpu_bottleneck_exporter.stacktraces.layouts import LAYOUTS
from support.pythons import PYTHONS
from support.tools import require

SOURCE = Path(__file__).with_name("offsets.c")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def test_the_headers_say_the_same(tmp_path: Path) -> None:
    cc, program = require("cc", "gcc"), tmp_path / "offsets"
    for minor, path in PYTHONS.items():
        headers = Path(path).resolve().parents[1] / f"include/python3.{minor}"
        if (headers / "internal/pycore_runtime.h").exists():
            include = (f"-I{headers}", f"-I{headers}/internal")
            output(cc, "-w", *include, f"{SOURCE}", "-o", f"{program}")
            assert output(f"{program}") == f"{minor}: Layout{tuple(LAYOUTS[minor])},"
