"""Starting the demo: a board, and one process tree per GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.jobs import JOBS

_PATIENCE_SECONDS = 10.0
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the board is shared on purpose


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo."""

    board: Board
    banner: str


@contextmanager
def running() -> Iterator[Demo]:
    """The demo, until the end of the block: then its processes end and its board is removed."""
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as cleanup:
        memory = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        folder = cleanup.enter_context(TemporaryDirectory(prefix="gpu-board-", dir=memory))
        board = cleanup.enter_context(create(Path(folder) / "board", gpus=[H100] * len(JOBS)))
        cleanup.callback(_end, processes)
        for index, job in enumerate(JOBS):
            job_arguments = [str(board.path), str(index), job.name, str(os.getpid())]
            command = [sys.executable, "-m", __package__, *job_arguments]
            processes.append(subprocess.Popen(command))  # noqa: S603 - our own module
        _wait_until_held(board)
        yield Demo(board, _banner())


def _wait_until_held(board: Board) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if all(any(p.pid for p in gpu.record.processes) for gpu in board.gpus):
            return
        time.sleep(0.05)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def _banner() -> str:
    lines = [
        "SIMULATED GPUs: a virtual board; the processes that feed it are real.",
        *(f"  GPU {index}  {job.name:18} {job.shows}" for index, job in enumerate(JOBS)),
    ]
    return "\n".join(lines)
