"""Where jobs are kept: what is damaged, full, of another version, or too much."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.jobs.store import File, Memory, Row, Store, row_of
from support.tools import require

MONTH = 30 * 86400.0
NOW = 1.7e9


def row(name: str, who: str = "ada", until: float = NOW, size: int = 0) -> Row:
    document = {"id": name, "owner": {"user": who}, "start_seconds": until - 60}
    text = f'{{"id": "{name}", "noise": "{os.urandom(size // 2).hex()}"}}'
    return row_of(document, text, until, None)


def names(store: Store, since: float = 0.0) -> list[str]:
    return [one.id for one in store.read(since)]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Store]:
    if request.param == "memory":
        return lambda most: Memory(most, MONTH)
    return lambda most: File(tmp_path / "jobs", most, MONTH)


def test_what_was_written_is_found(make: Callable[[int], Store]) -> None:
    store = make(10)
    assert store.write([row("a", until=NOW - 20), row("b")], NOW)
    assert store.write([row("b", "eve", until=NOW + 5)], NOW + 5)
    assert names(store) == ["b", "a"]
    assert names(store, since=NOW) == ["b"]
    assert (found := store.find("b")) is not None
    assert (found.who, found.holders) == ("eve", None)
    assert '"id": "b"' in found.text
    assert store.find("c") is None


def test_old_jobs_are_forgotten_and_a_users_many_push_out_their_own(
    make: Callable[[int], Store],
) -> None:
    store = make(10)
    store.write([row("old", until=NOW - MONTH - 1), row("ada", until=NOW - 999)], NOW)
    for number in range(50):
        store.write([row(f"eve-{number}", "eve", until=NOW + number)], NOW + number)
    assert names(store) == [*(f"eve-{number}" for number in range(49, 40, -1)), "ada"]


def test_memory_is_bounded_by_bytes() -> None:
    store = Memory(1000, MONTH)
    for number in range(100):
        store.write([row(f"{number}", until=NOW + number, size=200_000)], NOW)
    kept = store.read()
    assert sum(len(one.body) for one in kept) < 9 * 2**20
    assert kept[0].id == "99"


def test_a_file_outlives_the_exporter(tmp_path: Path) -> None:
    File(tmp_path / "jobs", 10, MONTH).write([row("a")], NOW)
    assert names(File(tmp_path / "jobs", 10, MONTH)) == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]


def _of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 7")
    file.close()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("not a database, but longer than a header of one" * 9),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "zeros": lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(9000)),
    "version": _of_another_version,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_set_aside(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs"
    File(path, 1000, MONTH).write([row(f"{one}", size=500) for one in range(50)], NOW)
    DAMAGE[how](path)
    store = File(path, 1000, MONTH)
    store.write([row("new")], NOW)
    store.write([row("new")], NOW)
    assert names(store) == ["new"]
    assert (tmp_path / "jobs.aside").exists()
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(told) == 1
    assert "jobs.aside" in told[0]
    assert "\n" not in told[0]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    require("mount", "mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", f"{tmp_path}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount")
    yield tmp_path
    subprocess.run(["umount", f"{tmp_path}"], check=True)


def test_a_full_disk_costs_a_line_and_what_was_to_be_written(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = File(tiny / "jobs", 1000, MONTH)
    assert store.write([row("a")], NOW)
    (tiny / "ballast").write_bytes(bytes(tiny.stat().st_blksize * 8))
    for _ in range(20):
        assert not store.write([row("b", size=60_000)], NOW)
    assert names(store) == ["a"]
    assert len(caplog.records) == 1
    (tiny / "ballast").unlink()
    assert store.write([row("b")], NOW)
    assert {*names(store)} == {"a", "b"}


def test_a_disk_that_is_full_from_the_start_is_tried_again(tiny: Path) -> None:
    ballast = tiny / "ballast"
    with pytest.raises(OSError, match="space"):
        ballast.write_bytes(bytes(100_000))
    store = File(tiny / "jobs", 1000, MONTH)
    assert store.read() == []
    assert not store.write([row("a")], NOW)
    ballast.unlink()
    assert store.write([row("a")], NOW)
    assert names(store) == ["a"]
