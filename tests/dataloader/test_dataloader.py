"""Stall accounting with PyTorch's own DataLoader: `make test-torch`.

Two cores are assumed: six workers crowd them, one and two do not.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.nodeview.build import moment_of
from gpu_bottleneck_exporter.nodeview.history import between
from gpu_bottleneck_exporter.settings import Settings
from support.samplers import sampling
from support.waiting import settled, until

pytest.importorskip("torch", reason="pip install torch==2.13.0 (or `make test-torch`)")

MEASURED_SECONDS = 4.0
TRAIN = Path(__file__).parent / "train.py"
RIGHT, WRONG, BUSY = 0.8, 0.15, 0.9
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
    until(lambda: board.gpus[0].record.submitted[1] >= 100_000_000, "the loop's first work")


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
        with sampling(lambda: VirtualDriver(board), Settings()) as sampler:
            time.sleep(2)
            ((key, before),) = moment_of(sampler.state()).gpus.items()
            spent = cpu_seconds(process.pid)
            time.sleep(MEASURED_SECONDS)
            found = between(before, moment_of(sampler.state()).gpus[key])
            spent = cpu_seconds(process.pid) - spent
            assert sampler._watch is not None
            feed = sampler._watch.feed(key.uuid)
            workers = len(feed.workers) if feed else -1
    assert found is not None
    idle = 1 - found.busy or math.inf
    causes = {name: part / idle for name, part in found.stalls.items()}
    return Found(found.busy, causes, spent / MEASURED_SECONDS / idle, workers)


def cpu_seconds(pid: int) -> float:
    """CPU time of the process, all threads, without its children."""
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system


def judge(tmp_path: Path, loop: Loop, wrong: Callable[[Found], str | None]) -> None:
    """Fails if what was measured is wrong, twice: the machine's noise may spoil one."""
    boards = (create(tmp_path / name) for name in ("first", "again"))
    found = settled(lambda: measure(next(boards), loop), wrong)
    print(loop, found)  # noqa: T201 - for the log
    assert not wrong(found), found


def starved_by(cause: str, workers: int | None = None) -> Callable[[Found], str | None]:
    """What is wrong unless the GPU waits for `cause`, with that many workers if given."""

    def wrong(found: Found) -> str | None:
        right = found.causes.get(cause, 0.0) >= RIGHT and found.wrong(cause) <= WRONG
        if right and workers in (None, found.workers):
            return None
        return f"not {cause} with {workers} workers: {found}"

    return wrong


def kept_up(found: Found) -> str | None:
    return None if found.busy >= BUSY and found.workers == 2 else f"it does not keep up: {found}"


def test_loading_in_the_main_process_is_host_code(tmp_path: Path) -> None:
    judge(tmp_path, Loop(workers=0), starved_by("host_code", workers=0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("workers", [1, 2])
def test_few_busy_workers_are_worker_cpu(tmp_path: Path, workers: int, method: str) -> None:
    judge(tmp_path, Loop(workers, method), starved_by("worker_cpu", workers=workers))


@pytest.mark.parametrize("method", METHODS)
def test_more_workers_than_cores_wait_for_a_cpu(tmp_path: Path, method: str) -> None:
    workers = 3 * (os.cpu_count() or 2)
    judge(tmp_path, Loop(workers, method), starved_by("cpu_queue", workers=workers))


@pytest.mark.parametrize("method", METHODS)
def test_workers_started_anew_each_epoch_are_found_anew(tmp_path: Path, method: str) -> None:
    judge(tmp_path, Loop(1, method, persistent=False), starved_by("worker_cpu"))


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_that_keeps_up_leaves_no_stall(tmp_path: Path, method: str) -> None:
    judge(tmp_path, Loop(2, method, burn=0.001, step=0.05), kept_up)
