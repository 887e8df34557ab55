"""NVIDIA's own library, without a driver: the exporter on it.

It comes from Debian's non-free and is unpacked, not installed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.nvml import loader
from support import fetched
from support.command import run
from support.rights import as_user


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the real library in it, on a machine without NVIDIA's driver."""
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has NVIDIA's driver")
    library = fetched.nvidia_library()
    shutil.copy(library, tmp_path / loader.LIBRARY)
    return tmp_path


def test_check_on_it_reports_that_no_driver_is_loaded(folder: Path) -> None:
    # As root without its rights: with them the library leaves device nodes behind.
    done = run(folder, "check", way=as_user(0) if os.geteuid() == 0 else ())
    assert (done.returncode, done.stderr) == (1, "")
    result, remedy = done.stdout.splitlines()
    assert result == "GPU metrics     none: nvmlInit: DRIVER_NOT_LOADED (9)"
    assert "modprobe nvidia" in remedy
