"""One training loop on one virtual GPU; `demo` starts one per GPU."""

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
    """Give up the controlling terminal: a process that has one counts as interactive."""
    with suppress(OSError), open("/dev/tty", "rb") as terminal:
        fcntl.ioctl(terminal, termios.TIOCNOTTY)


if __name__ == "__main__":
    path, name, parent = sys.argv[1:]
    die_with_parent(int(parent))
    leave_terminal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C stops the exporter, which stops us
    job = next(job for job in JOBS if job.name == name)
    name_process(job.name)
    board = Board(Path(path))
    gpus = [board.gpus[index] for index in job.gpus]
    for gpu in gpus:
        gpu.hold(os.getpid(), job.memory_gib * 2**30)
    job.loop(*gpus)
