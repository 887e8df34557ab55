"""Stall accounting with PyTorch's own DataLoader: `make test-torch`.

Two cores are assumed: six workers crowd them, one and two do not.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.diagnose import share
from gpu_bottleneck_exporter.driver.board import Board, create
from gpu_bottleneck_exporter.driver.virtual import VirtualDriver
from gpu_bottleneck_exporter.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

pytest.importorskip("torch", reason="pip install torch==2.13.0 (or `make test-torch`)")

PATIENCE_SECONDS = 90.0
MEASURED_SECONDS = 4.0
TRAIN = Path(__file__).parent / "train.py"
RIGHT, WRONG = 0.8, 0.1
METHODS = ("fork", "spawn", "forkserver")


@dataclass(frozen=True)
class Loop:
    """How the loop is run; `step` and `burn` in seconds, `burn` per sample of four."""

    workers: int
    method: str = "fork"
    persistent: bool = True
    burn: float = 0.03
    step: float = 0.02


@contextmanager
def training(board: Board, loop: Loop) -> Iterator[subprocess.Popen[bytes]]:
    persistence = "persistent" if loop.persistent else "respawned"
    arguments = [loop.workers, loop.method, persistence, loop.burn, loop.step]
    command = [sys.executable, "-W", "ignore", TRAIN, os.getpid(), board.path, *arguments]
    words = [str(word) for word in command]
    with subprocess.Popen(words, start_new_session=True) as process:
        try:
            yield process
        finally:
            # A fork server and its workers outlive the process that asked for them.
            os.killpg(process.pid, signal.SIGKILL)


def wait_for_work(board: Board) -> None:
    """Until the first steps are done: importing torch takes seconds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while board.gpus[0].record.submitted[1] < 100_000_000:
        assert time.monotonic() < deadline, "the loop never began"
        time.sleep(0.05)


def measure(board: Board, loop: Loop) -> tuple[float, Mapping[str, float], int]:
    """Busy share, idle time by cause (shares of it), and how many workers were seen."""
    with training(board, loop):
        wait_for_work(board)
        sampler = Sampler(lambda: VirtualDriver(board), ALL, Settings(), lambda _: None)
        sampler.start()
        try:
            time.sleep(2)
            before = sampler.state().gpus[0]
            time.sleep(MEASURED_SECONDS)
            found = share(sampler.state().gpus[0], before.totals)
            assert sampler._watch is not None
            feed = sampler._watch.feed(before.identity.uuid)
            workers = len(feed.workers) if feed else -1
        finally:
            sampler.stop()
    assert found is not None
    idle = 1 - found.busy
    return found.busy, {name: part / idle for name, part in found.stalls.items()}, workers


def judge(tmp_path: Path, loop: Loop, cause: str) -> int:
    """Measure, once more if the machine's noise spoilt it; how many workers were seen."""
    for attempt in (1, 2):
        board = create(tmp_path / f"board{attempt}")
        busy, causes, workers = measure(board, loop)
        wrong = max((part for name, part in causes.items() if name != cause), default=0.0)
        print(f"{loop}: busy {busy:.0%}, {workers} workers,", causes)  # noqa: T201 - for the log
        if causes.get(cause, 0.0) >= RIGHT and wrong <= WRONG:
            return workers
    pytest.fail(f"{loop}: {cause} expected, got {causes} at {busy:.0%} busy, twice")


def test_loading_in_the_main_process_is_host_code(tmp_path: Path) -> None:
    assert judge(tmp_path, Loop(workers=0), "host_code") == 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2])
def test_few_busy_workers_are_worker_cpu(tmp_path: Path, workers: int, method: str) -> None:
    assert judge(tmp_path, Loop(workers, method), "worker_cpu") == workers


@pytest.mark.parametrize("method", METHODS)
def test_more_workers_than_cores_wait_for_a_cpu(tmp_path: Path, method: str) -> None:
    workers = 3 * (os.cpu_count() or 2)
    assert judge(tmp_path, Loop(workers, method), "cpu_queue") == workers


@pytest.mark.parametrize("method", METHODS)
def test_workers_started_anew_each_epoch_are_found_anew(tmp_path: Path, method: str) -> None:
    judge(tmp_path, Loop(1, method, persistent=False), "worker_cpu")


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_that_keeps_up_leaves_no_stall(tmp_path: Path, method: str) -> None:
    board = create(tmp_path / "board")
    loop = Loop(2, method, burn=0.001, step=0.05)
    busy, _, workers = measure(board, loop)
    assert busy >= 0.9
    assert workers == 2
