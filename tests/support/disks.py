"""File systems without room."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.leftovers import mark
from support.tools import require


@contextmanager
def small_disk(folder: Path, kibibytes: int = 64) -> Iterator[None]:
    """A file system of this size at `folder`, until the end of the block."""
    require("mount", "mount")
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", mark(), f"{folder}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount")
    try:
        yield
    finally:
        subprocess.run(["umount", f"{folder}"], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No room at `folder` until the end of the block."""
    ballast = folder / "ballast"
    with pytest.raises(OSError, match="space"):
        ballast.write_bytes(bytes(shutil.disk_usage(folder).free + 100_000))
    try:
        yield
    finally:
        ballast.unlink()
