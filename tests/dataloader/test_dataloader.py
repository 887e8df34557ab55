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

import psutil
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
RIGHT, WRONG = 0.8, 0.15
"""States are sampled some 90 times: a share of a tenth is 3 % uncertain by that alone."""
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


@dataclass(frozen=True)
class Found:
    """What was measured; `causes` and `main` (CPU time of the training process) as shares of
    the idle time."""

    busy: float
    causes: Mapping[str, float]
    main: float
    workers: int

    def wrong(self, expected: str) -> float:
        """The largest share of a cause that is not true.

        A batch costs the training process some CPU time: that much is host_code.
        """
        own = {expected: 1.0, "host_code": self.main}
        return max((part - own.get(name, 0.0) for name, part in self.causes.items()), default=0.0)


def measure(board: Board, loop: Loop) -> Found:
    """Let it train for a while, and account for its GPU's idle time."""
    with training(board, loop) as process:
        wait_for_work(board)
        sampler = Sampler(lambda: VirtualDriver(board), ALL, Settings(), lambda _: None)
        sampler.start()
        try:
            time.sleep(2)
            before, spent = sampler.state().gpus[0], cpu_seconds(process.pid)
            time.sleep(MEASURED_SECONDS)
            found = share(sampler.state().gpus[0], before.totals)
            spent = cpu_seconds(process.pid) - spent
            assert sampler._watch is not None
            feed = sampler._watch.feed(before.identity.uuid)
            workers = len(feed.workers) if feed else -1
        finally:
            sampler.stop()
    assert found is not None
    idle = 1 - found.busy
    causes = {name: part / idle for name, part in found.stalls.items()}
    return Found(found.busy, causes, spent / MEASURED_SECONDS / idle, workers)


def cpu_seconds(pid: int) -> float:
    """CPU time of the process, all threads, without its children."""
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system


def judge(tmp_path: Path, loop: Loop, cause: str) -> int:
    """Measure, once more if the machine's noise spoilt it; how many workers were seen."""
    for attempt in (1, 2):
        board = create(tmp_path / f"board{attempt}")
        found = measure(board, loop)
        print(loop, found)  # noqa: T201 - for the log
        if found.causes.get(cause, 0.0) >= RIGHT and found.wrong(cause) <= WRONG:
            return found.workers
    pytest.fail(f"{loop}: {cause} expected, twice; in the end {found}")


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
    found = measure(board, loop)
    assert found.busy >= 0.9
    assert found.workers == 2
