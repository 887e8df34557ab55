"""Files in the place of the driver's library that are not it: told in one line, never fatal."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.driver.nvml.library import LIBRARY
from support.command import ANY_PORT, run, serving
from support.drivers import Libraries
from support.waiting import until

ELF_CLASS = 4
Place = Callable[[Path, Path], object]
"""Puts something at its second argument, be it made of the whole library at its first."""


def of_another_class(whole: Path, at: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[ELF_CLASS] = 1
    at.write_bytes(content)


def needing(_: Path, at: Path) -> None:
    """A library that needs another one, which is gone."""
    gone = at.parent / "libgone.so"
    for path, options in ((gone, []), (at, [f"-L{at.parent}", "-Wl,--no-as-needed", "-lgone"])):
        command = ["cc", "-shared", "-x", "c", "/dev/null", "-o", f"{path}", "-x", "none", *options]
        subprocess.run(command, check=True)
    gone.unlink()


BAD: dict[str, tuple[Place, str]] = {
    "empty": (lambda _, at: at.touch(), "file too short"),
    "a folder": (lambda _, at: at.mkdir(), "cannot read file data"),
    "text": (lambda _, at: at.write_text("GPU\n" * 100), "invalid ELF header"),
    "of another machine": (of_another_class, "wrong ELF class"),
    "in need of another": (needing, "libgone.so: cannot open"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_loaded_is_told_with_its_reason(
    tmp_path: Path, libraries: Libraries, name: str
) -> None:
    place, reason = BAD[name]
    place(libraries.path(580), tmp_path / LIBRARY)
    checked = run(tmp_path, "check")
    assert (checked.returncode, checked.stderr) == (2, "")
    found, remedy = checked.stdout.splitlines()
    assert found.startswith("GPU metrics     none: nvmlInit: LIBRARY_NOT_FOUND (12): ")
    assert reason in found
    assert "reinstall the driver's libraries" in remedy


def test_serve_lives_on_with_it_and_takes_the_whole_one_once_it_is_there(
    tmp_path: Path, libraries: Libraries, make_board: Callable[..., Board]
) -> None:
    (tmp_path / LIBRARY).touch()
    variables = {"FAKE_NVML_BOARD": f"{make_board().path}"}
    with serving(tmp_path, "serve", *ANY_PORT, **variables) as server:
        until(lambda: "file too short" in server.get("/-/ready")[1], "the reason")
        assert "gpu_exporter_build_info" in server.get()[1]
        whole = Path(shutil.copy(libraries.path(580), tmp_path / "whole"))
        whole.rename(tmp_path / LIBRARY)
        until(lambda: "gpu_up{" in server.get()[1], "the GPU")
