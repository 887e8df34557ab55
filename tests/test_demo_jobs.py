"""The demo's training loops: what each shows, and that they leave room for the rest."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from select import select

import psutil
import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import LANE
from gpu_bottleneck_exporter.demo.jobs import JOBS
from gpu_bottleneck_exporter.demo.run import running
from gpu_bottleneck_exporter.feeders.programs import has_terminal
from support.command import ANY_PORT, COMMAND, environment
from support.tools import require
from support.waiting import PATIENCE_SECONDS

WATCHED_SECONDS = 4.0
CORES = 1.2
"""Of two; the rest is for Prometheus and for what else runs on a laptop."""
PROC = Path("/proc")


@pytest.fixture(scope="module")
def demo() -> Iterator[Board]:
    with running() as started:
        yield started


@pytest.fixture(scope="module")
def used(demo: Board) -> tuple[dict[str, float], float]:
    """Busy share of each job's GPU, and the cores that all of them burned."""
    began, busy, burned = time.monotonic(), busy_seconds(demo), burned_seconds(demo)
    time.sleep(WATCHED_SECONDS)
    busy_now, burned_now = busy_seconds(demo), burned_seconds(demo)
    elapsed = time.monotonic() - began
    shares = {job.name: (busy_now[job.gpus[0]] - busy[job.gpus[0]]) / elapsed for job in JOBS}
    return shares, (burned_now - burned) / elapsed


def busy_seconds(demo: Board) -> list[float]:
    """Seconds of work that each GPU was given so far."""
    return [gpu.record.submitted[LANE["busy_ns"]] / 1e9 for gpu in demo.gpus]


def burned_seconds(demo: Board) -> float:
    """CPU seconds of the loops and their workers so far."""
    loops = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it ended between two looks, and is no loop
            if str(demo.path) in process.cmdline():
                loops.append(process)
    assert len(loops) == len(JOBS)
    times = [p.cpu_times() for loop in loops for p in (loop, *loop.children())]
    return sum(spent.user + spent.system for spent in times)


def threshold(name: str) -> float:
    """What the rules judge by."""
    text = files("gpu_bottleneck_exporter").joinpath("rules/thresholds.yml").read_text()
    found = re.search(rf"record: gpu:threshold:{name}\n +expr: vector\(([\d.]+)\)", text)
    assert found is not None
    return float(found[1])


# A crowded machine makes all of these smaller, never larger.


@pytest.mark.parametrize("job", ["slow-worker", "python-loop"])
def test_what_burns_cpu_leaves_its_gpu_underused(
    used: tuple[dict[str, float], float], job: str
) -> None:
    assert 0 < used[0][job] < threshold("underused")


def test_what_is_left_idle_worked_at_first_but_little(
    demo: Board, used: tuple[dict[str, float], float]
) -> None:
    (index,) = next(job.gpus for job in JOBS if job.name == "held-idle")
    assert busy_seconds(demo)[index] > 0
    assert used[0]["held-idle"] < threshold("was_active")


def test_the_loops_leave_room_on_two_cores(used: tuple[dict[str, float], float]) -> None:
    assert 0 < used[1] < CORES


def test_in_a_terminal_its_jobs_are_no_sessions_and_end_with_ctrl_c(tmp_path: Path) -> None:
    with in_terminal(tmp_path) as (process, terminal):
        said = read(terminal, "watching 8 GPUs")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= len(JOBS), said
        pids = [process.pid, *(child.pid for child in children)]
        stats = [(PROC / f"{pid}/stat").read_text() for pid in pids]
        assert [has_terminal(stat) for stat in stats] == [True] + [False] * len(children)
        os.write(terminal, b"\x03")
        said = read(terminal)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in said
    assert not psutil.wait_procs(children, PATIENCE_SECONDS)[1]


@contextmanager
def in_terminal(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The demo under a terminal, and our end of that."""
    require("setsid", "util-linux")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *COMMAND, "demo", *ANY_PORT],
        env=environment(folder),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read(terminal: int, words: str | None = None) -> str:
    """What is written on `terminal` until `words` are, or until nobody has it open any more."""
    said = ""
    with suppress(OSError):  # how Linux says that
        while words is None or words not in said:
            ready, _, _ = select([terminal], [], [], PATIENCE_SECONDS)
            assert ready, said
            said += os.read(terminal, 4096).decode(errors="replace")
    return said
