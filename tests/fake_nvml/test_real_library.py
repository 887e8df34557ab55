"""NVIDIA's own library, without a driver: the exporter on it, and the stand-in beside it.

It comes from Debian's non-free and is unpacked, not installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml import loader
from support import fetched
from support.command import run
from support.drivers import Libraries
from support.rights import as_user
from support.tools import require

LIBRARIES = {
    "this release's": ("libnvidia-ml1", None),
    "before MIG": ("libnvidia-legacy-390xx-ml1", fetched.ALL_BRANCHES),
    "with MIG": ("libnvidia-tesla-450-ml1", fetched.ALL_BRANCHES),
    "with MPS": ("libnvidia-tesla-470-ml1", fetched.ALL_BRANCHES),
}
WITHOUT_INIT = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
codes = {}
for name in sys.argv[2:]:
    function = getattr(library, name)
    function.restype = ctypes.c_uint
    codes[name] = function(*[ctypes.c_void_p()] * 6)
print(json.dumps(codes))
"""
NO_ANSWERS = {"nvmlInit_v2", "nvmlInitWithFlags", "nvmlErrorString", "nvmlSystemGetNVMLVersion"}
"""Not held to an answer before init: those that open, and those that need nothing opened."""
UNINITIALIZED = 1


@pytest.fixture
def real(request: pytest.FixtureRequest) -> Path:
    return fetched.nvidia_library(*LIBRARIES[request.param])


def branch(library: Path) -> int:
    found = re.fullmatch(r"libnvidia-ml\.so\.(\d+)\..*", library.resolve().name)
    assert found is not None
    return int(found[1])


def exports(library: Path) -> set[str]:
    command = [require("nm", "binutils"), "-D", "--defined-only", f"{library}"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    names = {line.split()[-1].partition("@")[0] for line in listing.stdout.splitlines()}
    return {name for name in names if name.startswith("nvml")}


def answers(library: Path, names: set[str]) -> dict[str, int]:
    command = [sys.executable, "-c", WITHOUT_INIT, f"{library}", *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("real", LIBRARIES, indirect=True)
def test_the_stand_in_is_like_it(real: Path, libraries: Libraries) -> None:
    stand_in = libraries.path(branch(real))
    mine, newest = exports(stand_in), exports(libraries.path(9999))
    assert mine == newest & exports(real)
    asked = mine - NO_ANSWERS
    assert answers(stand_in, asked) == answers(real, asked)
    codes = answers(stand_in, asked - {"nvmlShutdown"})
    assert set(codes.values()) == {UNINITIALIZED}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the real library in it, on a machine without NVIDIA's driver."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has NVIDIA's driver")
    library = fetched.nvidia_library(*LIBRARIES["this release's"])
    shutil.copy(library, tmp_path / loader.LIBRARY)
    return tmp_path


def test_check_on_it_says_that_no_driver_is_loaded(folder: Path) -> None:
    # As root without its rights: with them the library leaves device nodes behind.
    done = run(folder, "check", way=as_user(0) if os.geteuid() == 0 else ())
    assert (done.returncode, done.stderr) == (1, "")
    found, remedy = done.stdout.splitlines()
    assert found == "GPU metrics     none: nvmlInit: DRIVER_NOT_LOADED (9)"
    assert "modprobe nvidia" in remedy


@pytest.mark.parametrize("lost", [100_000, 500_000, 1_000_000])
def test_cut_short_it_is_told(folder: Path, lost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = folder / loader.LIBRARY
    content = library.read_bytes()
    library.write_bytes(content[:-lost])
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}")
    assert "cut short" in (loader.failure() or "")
