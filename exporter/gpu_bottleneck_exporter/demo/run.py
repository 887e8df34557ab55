"""Starting the demo: a board, and one process tree per GPU."""

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

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the board is shared on purpose
_PATIENCE_SECONDS = 10.0
"""For jobs to start: ten times what they take on a busy laptop. Without one, the demo goes on."""
_TITLE = "SIMULATED GPUs: a virtual board; the processes that feed it are real."
_ROWS = (f"  GPU {index}  {job.name:15} {job.shows}" for job in JOBS for index in job.gpus)
BANNER = "\n".join((_TITLE, *_ROWS))


@contextmanager
def running() -> Iterator[Board]:
    """The demo's board, until the end of the block: then its processes end and it is removed."""
    with ExitStack() as cleanup:
        folder = TemporaryDirectory(prefix="gpu-board-", dir=_SHARED_MEMORY)
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
    held = [board.gpus[index].record for job in JOBS for index in job.gpus]
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and not all(one.processes[0].pid for one in held):
        time.sleep(0.05)
