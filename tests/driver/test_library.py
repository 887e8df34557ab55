"""Files in the place of the driver's library that are not it: told in one line, never fatal."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.driver.nvml import loader
from support.command import ANY_PORT, run, serving
from support.drivers import Libraries
from support.rights import as_user
from support.rows import rows
from support.waiting import until

ELF_CLASS, SEGMENT_COUNT = 4, 56
Place = Callable[[Path, Path], object]
"""Puts something at its second argument, be it made of the whole library at its first."""


def cut(share: float) -> Place:
    """Less than what is loaded of it: what follows are symbols for debuggers."""

    def place(whole: Path, at: Path) -> None:
        _, needed = loader._lengths(whole)
        at.write_bytes(whole.read_bytes()[: int(needed * share)])

    return place


def of_another_class(whole: Path, at: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[ELF_CLASS] = 1
    at.write_bytes(content)


def without_segments(whole: Path, at: Path) -> None:
    content = bytearray(whole.read_bytes())
    content[SEGMENT_COUNT : SEGMENT_COUNT + 2] = bytes(2)
    at.write_bytes(content)


def needing(_: Path, at: Path) -> None:
    """A library that needs another one, which is gone."""
    gone = at.parent / "libgone.so"
    for path, options in ((gone, []), (at, [f"-L{at.parent}", "-Wl,--no-as-needed", "-lgone"])):
        command = ["cc", "-shared", "-x", "c", "/dev/null", "-o", f"{path}", "-x", "none", *options]
        subprocess.run(command, check=True)
    gone.unlink()


BAD: dict[str, tuple[Place, str]] = {
    "cut to a tenth": (cut(0.1), "cut short"),
    "cut in half": (cut(0.5), "cut short"),
    "cut by a hundredth": (cut(0.99), "cut short"),
    "empty": (cut(0.0), "file too short"),
    "a folder": (lambda _, at: at.mkdir(), "not a file"),
    "a pipe": (lambda _, at: os.mkfifo(at), "not a file"),
    "cut within its header": (
        lambda whole, at: at.write_bytes(whole.read_bytes()[:40]),
        "too short",
    ),
    "of random bytes": (lambda _, at: at.write_bytes(b"\xff" * 100), "invalid ELF header"),
    "of random bytes after its kind": (
        lambda whole, at: at.write_bytes(whole.read_bytes()[:32] + b"\xff" * 100),
        loader.LIBRARY,
    ),
    "text": (lambda _, at: at.write_text("GPU\n" * 100), "invalid ELF header"),
    "without segments": (without_segments, "no loadable segments"),
    "of another machine": (of_another_class, "wrong ELF class"),
    "a dead link": (lambda _, at: at.symlink_to("libnvidia-ml.so.9"), "which is missing"),
    "in need of another": (needing, f"/{loader.LIBRARY}: libgone.so: cannot open"),
}


def failure(folder: Path, library: str = loader.LIBRARY) -> str:
    """Error of a new process whose loader searches `folder` first."""
    code = f"from {loader.__name__} import failure; print(failure({library!r}) or '', end='')"
    places = {**os.environ, "LD_LIBRARY_PATH": f"{folder}"}
    return subprocess.check_output([sys.executable, "-c", code], env=places, text=True, timeout=60)


@rows("place, reason", BAD)
def test_a_file_that_cannot_be_loaded_is_reported_with_its_reason(
    tmp_path: Path, libraries: Libraries, place: Place, reason: str
) -> None:
    place(libraries.path(580), tmp_path / loader.LIBRARY)
    result = failure(tmp_path)
    assert reason in result
    assert loader.LIBRARY in result
    assert "\n" not in result


def test_a_file_that_an_upgrade_has_just_removed_is_the_loaders_matter(tmp_path: Path) -> None:
    assert loader._lengths(tmp_path / "gone") == (0, 0)


def test_the_places_are_those_of_the_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Besides those of its cache. Which systems' loaders look into /usr/lib64 is their choice."""
    values = [tmp_path / name for name in "abc"]
    for folder in values:
        folder.mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", "{}:{};{}".format(*values))
    code = "import ctypes; ctypes.CDLL('libnowhere.so.1')"
    looking = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_DEBUG": "libs"},
        capture_output=True,
        text=True,
        check=False,
    )
    tried = re.findall(r"trying file=(\S*/libnowhere\.so\.1)$", looking.stderr, re.MULTILINE)
    folders = {Path(file).parent.resolve() for file in tried if Path(file).parent.is_dir()}
    ours = {place.parent.resolve() for place in loader._places("libnowhere.so.1")}
    of_python = (Path(sys.base_prefix) / "lib").resolve()
    assert folders - {of_python} == ours - {Path("/usr/lib64").resolve()}


def test_a_library_without_needed_parts_is_reported(tmp_path: Path, libraries: Libraries) -> None:
    """A missing part that only a later call would touch is reported too."""
    assert failure(tmp_path, "libnowhere.so.1") == ""
    whole = libraries.path(580)
    _, needed = loader._lengths(whole)
    for length in (needed - 1, needed, None):
        (tmp_path / loader.LIBRARY).write_bytes(whole.read_bytes()[:length])
        assert bool(failure(tmp_path)) == (length == needed - 1)
    moved = bytearray(whole.read_bytes())
    table, size, count = struct.unpack_from("=Q14xHH", moved, 32)
    struct.pack_into("=Q", moved, 32, len(moved))
    moved += moved[table : table + size * count]
    moved[table : table + size * count] = bytes(size * count)
    (tmp_path / loader.LIBRARY).write_bytes(moved)
    assert loader._lengths(tmp_path / loader.LIBRARY) == (len(moved), needed)


@pytest.fixture
def cut_short(tmp_path: Path, libraries: Libraries) -> Path:
    cut(0.1)(libraries.path(580), tmp_path / loader.LIBRARY)
    return tmp_path


def test_serve_lives_on_with_it_and_takes_the_whole_one_once_it_is_there(
    cut_short: Path, libraries: Libraries, make_board: Callable[..., Board]
) -> None:
    board = make_board()
    variables = {"FAKE_NVML_BOARD": f"{board.path}"}
    with serving(cut_short, "serve", *ANY_PORT, **variables) as server:
        until(lambda: "cut short" in server.get("/-/ready")[1], "the reason")
        assert "gpu_exporter_build_info" in server.get()[1]
        whole = cut_short / "whole"
        shutil.copy(libraries.path(580), whole)
        whole.rename(cut_short / loader.LIBRARY)
        until(lambda: "gpu_up{" in server.get()[1], "the GPU")


@pytest.mark.parametrize(("closed", "wanted"), [("library", "read"), ("folder", "look for")])
def test_a_library_that_may_not_be_read_is_not_a_missing_one(
    tmp_path: Path, libraries: Libraries, closed: str, wanted: str
) -> None:
    folder = tmp_path / "driver"
    folder.mkdir()
    library = Path(shutil.copy(libraries.path(580), folder / loader.LIBRARY))
    shut = library if closed == "library" else folder
    shut.chmod(0)
    way = as_user(0) if os.geteuid() == 0 else ()
    done = run(tmp_path, "check", way=way, LD_LIBRARY_PATH=f"{folder}")
    shut.chmod(0o700)
    result, remedy = done.stdout.splitlines()
    assert done.returncode == 1
    assert result.endswith(f"{library}: no permission to {wanted} it")
    assert "read the library" in remedy


@pytest.mark.parametrize("given", ["", ":"])
def test_the_working_folder_is_no_place(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", given)
    assert all(place.is_absolute() for place in loader._places(loader.LIBRARY))
