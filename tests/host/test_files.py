"""However much a job puts into a file of its own, at most the stated size is read."""

from __future__ import annotations

import ast
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gpu_bottleneck_exporter
from gpu_bottleneck_exporter.host.files import (
    MAX_TABLE_BYTES,
    MAX_TEXT_BYTES,
    KeptFile,
    list_names,
    read,
)
from support.trees import lay

PACKAGE = Path(gpu_bottleneck_exporter.__file__).parent
HUGE_BYTES = 2**33


@pytest.fixture
def huge(tmp_path: Path) -> Path:
    """A file of gigabytes that takes no room, with a word at its beginning."""
    path = tmp_path / "environ"
    with path.open("wb") as file:
        file.write(b"SLURM_JOB_ID=7\0" + b"x" * (2 * MAX_TABLE_BYTES))
        file.truncate(HUGE_BYTES)
    return path


def peak(function: Callable[[], object]) -> int:
    """Bytes that it takes at most."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("most", [MAX_TEXT_BYTES, MAX_TABLE_BYTES])
def test_of_a_huge_file_little_is_read(most: int, huge: Path) -> None:
    assert read(huge, most) == "SLURM_JOB_ID=7\0"
    assert peak(lambda: read(huge, most)) < 4 * most


def test_a_kept_file_is_cut_as_well(huge: Path) -> None:
    file = KeptFile(huge)
    assert file.read() == b"SLURM_JOB_ID=7\0"
    assert peak(file.read) < 2 * MAX_TABLE_BYTES
    file.close()


@pytest.mark.parametrize("end", [b"\n", b"\0", b" "])
def test_half_a_word_is_none(end: bytes, tmp_path: Path) -> None:
    """Half of a process id would be that of another process."""
    path = tmp_path / "children"
    path.write_bytes(end.join([b"1234567"] * 20_000) + end)
    whole = (read(path) or "").split(end.decode())
    assert set(whole) == {"1234567", ""}
    assert len(whole) == MAX_TEXT_BYTES // 8 + 1


def test_a_file_below_the_limit_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "cmdline"
    for length in (0, 1, MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES):
        path.write_bytes(b"x" * length)
        assert read(path) == "x" * length
    path.write_bytes(b"x" * (MAX_TEXT_BYTES + 1))
    assert read(path) == ""
    assert read(path, 2048) == "", "nor if all that fits is read at once"
    assert read(tmp_path / "none") is None


def test_of_a_long_folder_a_part_is_listed(tmp_path: Path) -> None:
    lay(tmp_path, {f"{number}": "" for number in range(50)})
    for most, whole in ((49, False), (50, True)):
        names, are_all = list_names(tmp_path, most)
        assert (len({*names}), are_all) == (most, whole)


def readers(path: Path) -> Iterator[str]:
    """Calls in a module that read a file whole."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in {"read_text", "read_bytes", "open", "fdopen", "readlines"}:
                yield name


@pytest.mark.parametrize("part", ["host", "feeders", "workload"])
def test_no_other_code_reads_files_that_a_job_can_shape(part: str) -> None:
    fields = {
        path.name: [*readers(path)]
        for path in (PACKAGE / part).glob("*.py")
        # sharedmemory opens without reading (O_PATH): it asks the kernel of what it has reached.
        if path.name not in ("files.py", "sharedmemory.py")
    }
    assert {name: calls for name, calls in fields.items() if calls} == {}
