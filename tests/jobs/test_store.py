"""Store of jobs: damaged, full, of another version, or too large."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.jobs.store import MAX_ROW_BYTES, NEWEST, Row, Store
from support.disks import small_disk
from support.leftovers import mark
from support.logged import logged
from support.rights import with_only_writable

MONTH = 30 * 86400.0
NOW = 1.7e9


def row(name: str, who: str = "ada", until: float = NOW, size: int = 0) -> Row:
    body = zlib.compress(f'{{"id": "{name}", "noise": "{os.urandom(size // 2).hex()}"}}'.encode())
    return Row(name, who, until, body)


def names(store: Store, since: float = 0.0) -> list[str]:
    return [item.id for item in store.read(since) or ()]


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    path = f"{tmp_path / 'jobs'}" if request.param == "file" else ""
    with closing(Store(path, 10, MONTH)) as result:
        yield result


def test_written_jobs_are_found(store: Store) -> None:
    assert store.write([row("a", until=NOW - 20), row("b")], NOW)
    assert store.write([row("b", "eve", until=NOW + 5)], NOW + 5)
    assert names(store) == ["b", "a"]
    assert names(store, since=NOW) == ["b"]
    (result,) = [*(store.read(0.0, "b", "b") or [])]
    assert result.account == "eve"
    assert '"id": "b"' in result.text
    assert store.read(0.0, "c", "c") == []


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
        store.write([row(f"{item}", size=500) for item in range(50)], NOW)
    with closing(Store(f"{path}", 1000, MONTH)) as store:
        assert len(names(store)) == 50
    assert [path.name for path in tmp_path.iterdir()] == ["jobs"]
    DAMAGE[how](path)
    with closing(Store(f"{path}", 1000, MONTH)) as store:
        store.write([row("new")], NOW)
        store.write([row("new")], NOW)
        assert names(store) == ["new"]
    assert (tmp_path / "jobs.aside").exists()
    lines = logged(caplog, logging.WARNING)
    assert len(lines) == 1
    assert "jobs.aside" in lines[0]
    assert "\n" not in lines[0]


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path):
        yield tmp_path


def test_a_full_disk_costs_a_line_and_the_pending_write(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ballast = tiny / "ballast"
    with pytest.raises(OSError, match="space"):
        ballast.write_bytes(bytes(100_000))
    with closing(Store(f"{tiny / 'jobs'}", 1000, MONTH)) as store:
        for _ in range(20):
            assert not store.write([row("a")], NOW)
        assert (
            len([record for record in caplog.records if "cannot write jobs" in record.message]) == 1
        )
        ballast.unlink()
        assert store.write([row("a")], NOW)
        ballast.write_bytes(bytes(tiny.stat().st_blksize * 8))
        assert not store.write([row("b", size=120_000)], NOW)
        assert names(store) == ["a"]
        ballast.unlink()
        assert store.write([row("b")], NOW)
        assert {*names(store)} == {"a", "b"}


STORING = """
import resource, sys, tempfile
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.settings import MAX_JOBS
try:
    raise SystemExit(f"{tempfile.gettempdir()} is writable")
except FileNotFoundError:
    pass
rows = [Row(f"pod-{n:036}", f"namespace-{n % 99}", 1.7e9 + n, b"{}") for n in range(MAX_JOBS)]
store = Store(sys.argv[1], MAX_JOBS, 1e9)
store.write(rows[:1], 1.7e9)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert store.write(rows, 1.7e9 + MAX_JOBS), "not written"
for extra in range(3):
    assert store.write([Row(f"extra-{extra}", "eve", 2e9 + extra, b"{}")], 2e9), "not evicted"
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
sys.exit(f"took {grown} MiB" if grown > int(sys.argv[2]) else store.names()[:4] != [
    "extra-2", "extra-1", "extra-0", rows[-1].id])
"""
"""Fills a store to the largest `--jobs.keep`, then evicts from it."""


@pytest.mark.parametrize(("name", "mebibytes"), [("jobs", 32), ("", 96)])
def test_most_jobs_are_kept_without_temporary_files(
    name: str, mebibytes: int, tmp_path: Path
) -> None:
    path = f"{tmp_path / name}" if name else ""
    command = [*with_only_writable(tmp_path), sys.executable, "-c", STORING, path, f"{mebibytes}"]
    environment = {key: value for key, value in os.environ.items() if not key.endswith("TMPDIR")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ([name] if name else [])


def asides(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".aside" in path.name)


def test_closing_while_others_read_and_write_costs_nothing(tmp_path: Path) -> None:
    path, over = f"{tmp_path / 'jobs'}", threading.Event()
    with closing(Store(path, 1000, MONTH)) as store:
        store.write([row(f"{n}") for n in range(200)], NOW)

        def work() -> None:
            while not over.is_set():
                assert len(names(store)) >= 200
                assert store.write([row("one more")], NOW)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(300):
            store.close()
        over.set()
        for thread in threads:
            thread.join()
        assert len(names(store)) >= 200
    assert asides(tmp_path) == []


REPLACED: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "moved": lambda path: path.rename(path.with_name("moved")),
    "replaced": lambda path: path.with_name("other").replace(path),
}


@pytest.mark.parametrize("how", REPLACED)
def test_a_file_that_is_no_longer_there_is_begun_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with closing(Store(f"{tmp_path / 'other'}", 10, MONTH)) as other:
        other.write([row("other")], NOW)
    with closing(Store(f"{path}", 10, MONTH)) as store:
        store.write([row("a")], NOW)
        REPLACED[how](path)
        assert store.write([row("b")], NOW)
        there = {*names(store)}
    assert there == ({"other", "b"} if how == "replaced" else {"b"})
    with closing(Store(f"{path}", 10, MONTH)) as store:
        assert {*names(store)} == there


def test_a_file_system_mounted_over_the_folder_is_written(tiny: Path) -> None:
    path = f"{tiny / 'jobs'}"
    with closing(Store(path, 10, MONTH)) as store:
        store.write([row("a")], NOW)
        subprocess.run(["mount", "-t", "tmpfs", mark(), f"{tiny}"], check=True)
        try:
            assert store.write([row("b")], NOW)
            assert names(store) == ["b"]
        finally:
            store.close()
            subprocess.run(["umount", f"{tiny}"], check=True)
        assert names(store) == ["a"]


@pytest.mark.parametrize("wrong", [0.0, NOW - 20 * 12 * MONTH, NOW + 3 * MONTH, 4e9])
def test_a_wrong_clock_costs_no_job(store: Store, wrong: float) -> None:
    assert store.write([row("a", until=NOW - 5), row("b", until=NOW)], NOW)
    for turn in range(3):
        assert store.write([row("x", "eve", until=wrong + turn)], wrong + turn)
        assert store.write((), wrong + turn)
    assert store.write([row("c", until=NOW + 9)], NOW + 9)
    assert {"a", "b", "c"} <= {*names(store, since=-1.0)}


@pytest.mark.parametrize("wrong", [0.0, 4e9])
def test_a_wrong_clock_does_not_keep_jobs_beyond_their_time(store: Store, wrong: float) -> None:
    assert store.write([row("wrong", "eve", until=wrong)], wrong)
    for day in range(100):
        store.write([row(f"{day}", until=NOW + day * 86400)], NOW + day * 86400)
    assert store.write((), NOW + 128.5 * 86400)
    assert {*names(store, since=-1.0)} == {"wrong", "99"}


def test_a_job_is_forgotten_after_its_time_if_others_ended_since(store: Store) -> None:
    for day in range(40):
        store.write([row(f"{day}", until=NOW + day * 86400)], NOW + day * 86400)
    assert store.write((), NOW + 68.5 * 86400)
    assert names(store) == ["39"]


def test_a_disk_that_hangs_does_not_hold_up_the_start(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with closing(Store(f"{path}", 10, MONTH)) as store:
        assert not path.exists()
        assert store.read() == []
        assert path.exists()


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("there", [False, True])
def test_the_file_is_private(tmp_path: Path, *, there: bool) -> None:
    path = tmp_path / "jobs"
    if there:
        path.touch(0o666)
    with closing(Store(f"{path}", 10, MONTH)) as store:
        store.write([row("a")], NOW)
        with closing(sqlite3.connect(path)) as other:
            other.execute("UPDATE kept_jobs SET who = 'eve'")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"jobs": 0o600, "jobs-journal": 0o600}


def test_no_damaged_file_replaces_another_until_there_are_eight(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    for turn in range(10):
        path.write_text(f"{turn} is not a database, but longer than the header of one" * 9)
        with closing(Store(f"{path}", 10, MONTH)) as store:
            store.write((), NOW)
            path.unlink(missing_ok=True)
    assert len(asides(tmp_path)) == 8
    assert (tmp_path / "jobs.aside").read_text()[0] == "0"
    assert (tmp_path / "jobs.aside7").read_text()[0] == "6"


def test_a_file_that_another_process_has_locked_is_no_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with closing(Store(f"{path}", 10, MONTH)) as store:
        store.write([row("a")], NOW)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert not store.write([row("b")], NOW)
            assert store.read() is None
        assert names(store) == ["a"]
    assert asides(tmp_path) == []


def test_a_file_that_cannot_be_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with closing(Store(f"{path}", 10, MONTH)) as store:
        store.write([row("a")], NOW)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as read_only:
        store._file, store._place = read_only, None
        assert names(store) == ["a"]
        assert not store.write([row("b")], NOW)
    assert asides(tmp_path) == []


FORGED: dict[str, tuple[object, ...]] = {
    "too large": ("x", "eve", NOW, os.urandom(MAX_ROW_BYTES + 1)),
    "a text": ("x", "eve", NOW, "{}"),
    "no time": ("x", "eve", None, b"{}"),
    "a time in words": ("x", "eve", "late", b"{}"),
    "a long id": ("x" * 2**20, "eve", NOW, b"{}"),
    "a long owner": ("x", "e" * 2**20, NOW, b"{}"),
    "an id of bytes": (b"x", "eve", NOW, b"{}"),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_row_is_skipped(how: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs"
    with closing(Store(f"{path}", 10, MONTH)) as store:
        store.write([row("a")], NOW)
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("INSERT INTO kept_jobs VALUES (?, ?, ?, ?)", FORGED[how])
        assert names(store) == ["a"]
        last = store.before(NEWEST, 0.0)
        assert last
        assert last.id == "a"
        assert store.before((last.until, last.id), 0.0) is None


def test_a_document_that_unpacks_to_more_than_its_limit_is_refused() -> None:
    bomb = zlib.compress(bytes(2**26))
    assert len(bomb) < MAX_ROW_BYTES
    for body in (bomb, zlib.compress(b"{}")[:-1]):
        with pytest.raises(ValueError, match="too large"):
            _ = Row("a", "eve", NOW, body).text
