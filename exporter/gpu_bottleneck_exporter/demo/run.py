"""Starts the demo: a board and its jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.jobs import GPUS, JOBS
from gpu_bottleneck_exporter.driver.readings import Pod

BANNER = "\n".join(
    (
        "SIMULATED GPUs: a virtual board; the processes that feed it are real.",
        *(f"  GPU {index}  {job.name:15} {job.shows}" for job in JOBS for index in job.gpus),
    )
)


@contextmanager
def running() -> Iterator[Board]:
    """Run the demo's jobs on a board, which is removed at the end."""
    with ExitStack() as cleanup:
        folder = TemporaryDirectory(prefix="gpu-board-", dir="/dev/shm")
        path = Path(cleanup.enter_context(folder)) / "board"
        board = cleanup.enter_context(create(path, gpus=[H100] * GPUS))
        board.follows_load = True
        for job in JOBS:
            board.pods |= dict.fromkeys(job.gpus, Pod(*job.pod, "trainer"))
            arguments = [f"{path}", job.name, f"{os.getpid()}"]
            command = [sys.executable, "-m", __package__, *arguments]
            process = subprocess.Popen(command)  # noqa: S603 - our own module
            cleanup.callback(process.wait)
            cleanup.callback(process.kill)
        _wait_until_held(board)
        yield board


def _wait_until_held(board: Board) -> None:
    records = [board.gpus[index].record for job in JOBS for index in job.gpus]
    # Ten times the start on a busy laptop. One failed job is ignored.
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline and not all(gpu.processes[0].pid for gpu in records):
        time.sleep(0.05)
