"""Real feeders for the benchmarks: for each virtual GPU a main process and its workers.

They wake twenty times a second and sleep on a pipe in between. A busy GPU always has work; a
starved one has none, so that the exporter looks closely at its feeders and finds nothing; one that
works and waits in turns works for 0.2 s of each half second, as most GPUs do in some way.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

BUSY, STARVED, IN_TURNS = "busy", "starved", "in turns"
WAKE_SECONDS = 0.05
_AHEAD_NS = 2_000_000_000
_TURN_SECONDS, _WORK_SECONDS = 0.5, 0.2


@contextlib.contextmanager
def feeders(board: Board, workers_per_gpu: int, doing: str) -> Iterator[None]:
    """One main per GPU of `board`, with this many workers."""
    command = [sys.executable, __file__, str(os.getpid()), str(board.path)]
    with contextlib.ExitStack() as stack:
        for index in range(len(board.gpus)):
            words = [*command, str(index), str(workers_per_gpu), doing]
            process = stack.enter_context(subprocess.Popen(words))
            stack.callback(process.kill)
        while not all(any(p.pid for p in gpu.record.processes) for gpu in board.gpus):
            time.sleep(0.1)
        yield


@contextlib.contextmanager
def bystanders(count: int) -> Iterator[None]:
    """Sleeping processes on the node, unrelated to GPUs."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(["sleep", "3600"]))
            stack.callback(process.kill)
        yield


def _feed(parent: str, path: str, index: str, workers: str, doing: str) -> None:
    """A main process: hold the GPU, keep it busy or not, and wake the workers regularly."""
    die_with_parent(int(parent))
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    for _ in range(int(workers)):
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(theirs, os.getpid()), daemon=True).start()
        pipes.append(ours)
    gpu = Board(Path(path)).gpus[int(index)]
    gpu.hold(os.getpid(), 2**30)
    turn = time.monotonic()
    while True:
        if doing == IN_TURNS and time.monotonic() >= turn:
            turn += _TURN_SECONDS
            gpu.launch(_WORK_SECONDS)
        if doing == BUSY and gpu.record.free_at_ns < time.monotonic_ns() + _AHEAD_NS:
            gpu.launch(_AHEAD_NS / 1e9)
        for pipe in pipes:
            pipe.send_bytes(b"batch")
        time.sleep(WAKE_SECONDS)


def _work(pipe: Connection, parent: int) -> None:
    die_with_parent(parent)
    while True:
        pipe.recv_bytes()


if __name__ == "__main__":
    _feed(*sys.argv[1:])
