"""A training loop on virtual GPUs, as a process of the demo."""

import fcntl
import os
import signal
import sys
import termios
from contextlib import suppress
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.jobs import JOBS
from gpu_bottleneck_exporter.demo.orphans import die_with_parent, name_process


def leave_terminal() -> None:
    """Detach from the terminal, which would mark the process as interactive."""
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)


if __name__ == "__main__":
    path, name, parent = sys.argv[1:]
    die_with_parent(int(parent))
    leave_terminal()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C stops the exporter, which kills this process
    job = next(job for job in JOBS if job.name == name)
    name_process(job.name)
    board = Board(Path(path))
    gpus = [board.gpus[index] for index in job.gpus]
    for gpu in gpus:
        gpu.hold(os.getpid(), job.memory_gib * 2**30)
    job.loop(*gpus)
