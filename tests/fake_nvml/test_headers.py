"""The stand-in and our own numbers against NVIDIA's nvml.h: a wrong one does not compile.

The headers come from the wheels that NVIDIA publishes, one for each CUDA release.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from fake_nvml.c_header import c_header
from support import fetched
from support.tools import require

from . import nvidia

HERE = Path(__file__).parent
RELEASES = {
    "11.8.86": ("nvidia-nvml-dev-cu11", "520.61.05"),
    "12.2.140": ("nvidia-nvml-dev-cu12", "535.54.03"),
    "12.8.90": ("nvidia-nvml-dev-cu12", "570.124.06"),
    "12.9.79": ("nvidia-nvml-dev-cu12", "575.57.08"),
    "13.0.39": ("nvidia-nvml-dev", "580.65.06"),
    "13.0.87": ("nvidia-nvml-dev", "580.82.07"),
    "newest": ("nvidia-nvml-dev", "9999.1"),
}
"""Release of the header: its package, and the driver that it came with."""
EXPORTED = re.compile(r'__attribute__\(\(visibility\("default"\)\)\)\s+([^;{]+?\))\s*\{')


def header(release: str) -> Path:
    package, _ = RELEASES[release]
    return fetched.header(package, None if release == "newest" else release)


def words(path: Path) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Za-z_]\w*", path.read_text(errors="replace")))


def unit(lines: Iterable[str], abi: str) -> str:
    """A C file in which our header and NVIDIA's meet."""
    versions = "#define NVML_NO_UNVERSIONED_FUNC_DEFS"  # else macros rename the first ones
    parts = ["#include <stddef.h>", versions, nvidia.renamed(abi), '#include "nvml.h"', *lines, ""]
    return "\n".join(parts)


def complaints(text: str, nvml: Path, folder: Path) -> list[str]:
    """Errors of the compiler in C file `text`."""
    (folder / "held.c").write_text(text)
    compiler = require("cc", "gcc")
    command = [compiler, "-std=gnu11", "-fsyntax-only", "-Wno-deprecated-declarations"]
    command += [f"-I{nvml.parent}", f"{folder / 'held.c'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    errors = [line for line in done.stderr.splitlines() if " error: " in line]
    assert errors or done.returncode == 0, done.stderr
    return errors


def prototypes(branch: int, folder: Path) -> dict[str, str]:
    """Exports of the stand-in in driver `branch`, by name: result, name and parameters."""
    (folder / "board.h").write_text(c_header())
    command = [require("cc", "gcc"), "-E", "-P", "-std=c11", f"-DDRIVER_BRANCH={branch}"]
    command += [f"-I{folder}", f"-I{HERE}", *map(str, sorted(HERE.glob("*.c")))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    values = [" ".join(text.split()) for text in EXPORTED.findall(done.stdout)]
    fields = {re.findall(r"(\w+)\(", text)[0]: text for text in values}
    return {name: text for name, text in fields.items() if name.startswith("nvml")}


def as_nvidia(prototype: str) -> str:
    """The same in NVIDIA's types, to be declared beside NVIDIA's own."""
    for ours, theirs in (nvidia.STRUCTURES | nvidia.HANDLES).items():
        prototype = re.sub(rf"\bstruct {ours}\b", theirs, prototype)
    return re.sub(r"^int ", "nvmlReturn_t ", prototype) + ";"


@pytest.mark.parametrize("release", RELEASES)
def test_numbers_layouts_and_functions_are_nvidias(release: str, tmp_path: Path) -> None:
    nvml, version = header(release), RELEASES[release][1]
    pairs = [*nvidia.of_the_stand_in(version), *nvidia.of_our_code()]
    lines = list(nvidia.assertions(pairs, words(nvml)))
    assert len(lines) > 100
    assert release != "newest" or len(lines) == len(pairs), "a name that NVIDIA does not have"
    assert complaints(unit(lines, nvidia.ABI), nvml, tmp_path) == []
    mine = prototypes(int(version.partition(".")[0]), tmp_path)
    assert mine.keys() == prototypes(9999, tmp_path).keys() & words(nvml)
    assert complaints(unit(map(as_nvidia, mine.values()), ""), nvml, tmp_path) == []
