"""The numbers are those of the headers that a Python comes with."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpu_bottleneck_exporter.stacktraces.layouts import FREE_THREADED, LAYOUTS, Layout
from support.pythons import PYTHONS
from support.tools import require

SOURCE = Path(__file__).with_name("offsets.c")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def test_the_headers_have_the_same_offsets(tmp_path: Path) -> None:
    cc, program = require("cc", "gcc"), tmp_path / "offsets"
    for version, path in PYTHONS.items():
        minor = int(version.removesuffix("t").partition(".")[2])
        headers = Path(path).resolve().parents[1] / f"include/python{version}"
        if not (headers / "internal/pycore_runtime.h").exists():
            continue
        rows = [("Py_GIL_DISABLED", FREE_THREADED)] if minor in FREE_THREADED else []
        rows += [] if version.endswith("t") else [("Py_WITH_LOCK", LAYOUTS)]
        for build, layouts in rows:
            include = (f"-I{headers}", f"-I{headers}/internal", f"-D{build}")
            output(cc, "-w", *include, f"{SOURCE}", "-o", f"{program}")
            fields = dict(line.split("=") for line in output(f"{program}").splitlines())
            values = {name: int(offset) for name, offset in fields.items()}
            assert values.pop("minor") == minor
            assert Layout(**values) == layouts[minor]
