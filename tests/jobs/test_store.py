"""Where jobs are kept: what is damaged, full, of another version, or too much."""

from __future__ import annotations

import logging
import os
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.jobs.store import Row, Store
from support.leftovers import mark
from support.tools import require

MONTH = 30 * 86400.0
NOW = 1.7e9


def row(name: str, who: str = "ada", until: float = NOW, size: int = 0) -> Row:
    body = zlib.compress(f'{{"id": "{name}", "noise": "{os.urandom(size // 2).hex()}"}}'.encode())
    return Row(name, who, until, body)


def names(store: Store, since: float = 0.0) -> list[str]:
    return [one.id for one in store.read(since)]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    path = f"{tmp_path / 'jobs'}" if request.param == "file" else ""
    with closing(Store(path, 10, MONTH)) as found:
        yield found


def test_what_was_written_is_found(store: Store) -> None:
    assert store.write([row("a", until=NOW - 20), row("b")], NOW)
    assert store.write([row("b", "eve", until=NOW + 5)], NOW + 5)
    assert names(store) == ["b", "a"]
    assert names(store, since=NOW) == ["b"]
    (found,) = store.read(ids="b")
    assert found.who == "eve"
    assert '"id": "b"' in found.text
    assert store.read(ids="c") == []


def test_old_jobs_are_forgotten_and_a_users_many_push_out_their_own(store: Store) -> None:
    store.write([row("old", until=NOW - MONTH - 1), row("ada", until=NOW - 999)], NOW)
    for number in range(50):
        store.write([row(f"eve-{number}", "eve", until=NOW + number)], NOW + number)
    assert names(store) == [*(f"eve-{number}" for number in range(49, 40, -1)), "ada"]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "text": lambda path: path.write_text("not a database, but longer than a header of one" * 9),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "zeros": lambda path: path.write_bytes(path.read_bytes()[:100] + bytes(9000)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_outlives_the_exporter_and_a_damaged_one_is_set_aside(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs"
    with closing(Store(f"{path}", 1000, MONTH)) as store:
        store.write([row(f"{one}", size=500) for one in range(50)], NOW)
    with closing(Store(f"{path}", 1000, MONTH)) as store:
        assert len(names(store)) == 50
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
    DAMAGE[how](path)
    with closing(Store(f"{path}", 1000, MONTH)) as store:
        store.write([row("new")], NOW)
        store.write([row("new")], NOW)
        assert names(store) == ["new"]
    assert (tmp_path / "jobs.aside").exists()
    told = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(told) == 1
    assert "jobs.aside" in told[0]
    assert "\n" not in told[0]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    require("mount", "mount")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", mark(), f"{tmp_path}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount")
    yield tmp_path
    subprocess.run(["umount", f"{tmp_path}"], check=True)


def test_a_full_disk_costs_a_line_and_what_was_to_be_written(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ballast = tiny / "ballast"
    with pytest.raises(OSError, match="space"):
        ballast.write_bytes(bytes(100_000))
    with closing(Store(f"{tiny / 'jobs'}", 1000, MONTH)) as store:
        for _ in range(20):
            assert not store.write([row("a")], NOW)
        assert len([one for one in caplog.records if "cannot write jobs" in one.message]) == 1
        ballast.unlink()
        assert store.write([row("a")], NOW)
        ballast.write_bytes(bytes(tiny.stat().st_blksize * 8))
        assert not store.write([row("b", size=120_000)], NOW)
        assert names(store) == ["a"]
        ballast.unlink()
        assert store.write([row("b")], NOW)
        assert {*names(store)} == {"a", "b"}
