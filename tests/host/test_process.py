"""Processes, recorded and real: what /proc says of them, also once they are gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.host.process import TICK_NS, ProcessReader, allowed_cpus, parse_stat
from gpu_bottleneck_exporter.host.waits import Wait
from support.programs import program
from support.trees import lay
from support.waiting import until

PROC = Path("/proc")
STAT = (
    "77 ({comm}) {state} 5 77 77 0 -1 4194304 900 0 6 0 250 50 0 0 20 0 3 0 {start} 1000 10 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 2 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def stat(comm: str = "python", state: str = "S", start: int = 4242) -> str:
    return STAT.format(comm=comm, state=state, start=start)


@pytest.mark.parametrize(
    "comm", ["python", "pt_data_worker", "tmux: server", "a) R 1 (b", "(sd-pam)", ") ) )", "", " "]
)
def test_a_command_may_hold_anything(comm: str) -> None:
    result = parse_stat(stat(comm).encode())
    assert result is not None
    assert (result.state, result.parent, result.started_ticks) == ("S", 5, 4242)
    assert (result.user_ns, result.system_ns) == (250 * TICK_NS, 50 * TICK_NS)
    assert (result.major_faults, result.threads) == (6, 3)


@pytest.mark.parametrize("text", [b"", b"77 python S 5", b"77 (python) S", b"77 (python) S a b c"])
def test_a_malformed_stat_file_is_none(text: bytes) -> None:
    assert parse_stat(text) is None


LISTS = {"0-3,8": {0, 1, 2, 3, 8}, "5": {5}, "0-1,4-5,63": {0, 1, 4, 5, 63}, "": set()}


def test_the_cpus_a_process_may_run_on() -> None:
    for text, cpus in LISTS.items():
        status = f"Name:\tx\nCpus_allowed_list:\t{text}\nMems_allowed_list:\t0\n"
        assert allowed_cpus(status) == cpus
    assert allowed_cpus("Cpus_allowed:\tff\n") == allowed_cpus("") == set()
    assert allowed_cpus((PROC / "self/status").read_text()) == os.sched_getaffinity(0)


def all_of(reader: ProcessReader) -> tuple[object, ...]:
    return reader.stat(), reader.wait(), reader.leader_ns(), reader.io()


GONE = (None, Wait.GONE, None, None)


def test_ourselves() -> None:
    reader = ProcessReader(PROC, os.getpid())
    result = reader.stat()
    assert result is not None
    assert result.parent == os.getppid()
    assert reader.wait() is Wait.RUN
    before = reader.leader_ns()
    assert before is not None
    until(lambda: (reader.leader_ns() or before)[0] > before[0], "CPU time")
    assert reader.io() is not None
    assert reader.command()
    reader.close()
    assert reader.stat() is not None  # closing gives descriptors back, nothing else


def test_a_process_that_ended_is_gone_for_ever() -> None:
    with program("ready(); time.sleep(60)") as process:
        reader = ProcessReader(PROC, process.pid)
        until(lambda: reader.wait() is Wait.TIMER, "sleep")
        process.process.kill()
        until(lambda: reader.wait() is Wait.GONE, "a zombie")
    late = ProcessReader(PROC, process.pid)
    assert late.started_ticks is None
    assert all_of(reader) == all_of(reader) == all_of(late) == GONE
    reader.close()
    late.close()


def record(proc: Path, start: int, *, read: int) -> None:
    """Process 77 in recorded files, put in the place of its predecessor."""
    files = {
        "stat": stat(start=start),
        "schedstat": f"{read} 2 3\n",
        "wchan": "0",
        "io": f"rchar: 1\nwchar: 2\nsyscw: 4\nread_bytes: {read}\nwrite_bytes: 1\n",
    }
    for name, text in files.items():
        path = lay(proc, {f"77/{name}.new": text}) / f"77/{name}.new"
        path.rename(proc / f"77/{name}")


def test_a_kept_descriptor_never_shows_a_successor(tmp_path: Path) -> None:
    record(tmp_path, 100, read=5)
    reader = ProcessReader(tmp_path, 77)
    assert reader.io() == (5, 1, 1, 2, 4)
    record(tmp_path, 200, read=9)
    first = reader.stat()
    assert first is not None
    assert first.started_ticks == 100
    reader.close()  # what is opened from here on is another process's
    assert all_of(reader) == GONE
    reader.close()


def test_a_missing_field_is_unknown(tmp_path: Path) -> None:
    """A wait channel, bytes without permission, and a kernel without schedstat."""
    record(tmp_path, 100, read=5)
    (tmp_path / "77/io").unlink()
    (tmp_path / "77/io").mkdir()
    (tmp_path / "77/schedstat").unlink()
    reader = ProcessReader(tmp_path, 77)
    assert all_of(reader)[1:] == (Wait.UNKNOWN, None, None)
    assert reader.stat() is not None
    reader.close()
