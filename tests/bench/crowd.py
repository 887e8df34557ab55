"""Real feeders for the benchmarks: mains that hold virtual GPUs, their workers and threads.

Workers wake twenty times a second and sleep on a pipe in between. A busy GPU always has work; a
starved one has none, so that the exporter looks closely at its feeders and finds nothing; one that
works and waits in turns works for 0.2 s of each half second, as most GPUs do in some way. In a
crowd it does so, too, but its main sleeps, and the workers wake by themselves; with two causes, the
main writes to the disk for 40 % of the time in which it waits. Where all sleep, the GPU is starved
and no process wakes.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

BUSY, STARVED, IN_TURNS, ASLEEP = "busy", "starved", "in turns", "asleep"
CROWD, MIXED = "in turns, a crowd", "in turns, two causes"
WAKE_SECONDS = 0.05
_AHEAD_NS = 2_000_000_000
_TURN_SECONDS, _WORK_SECONDS = 0.5, 0.2
_FORKED_SECONDS = 0.05
_PAUSES = {ASLEEP: 60.0, CROWD: _TURN_SECONDS}
_WRITTEN_SECONDS = 0.4 * (_TURN_SECONDS - _WORK_SECONDS)


class Node(NamedTuple):
    """A node: its GPUs and processes."""

    gpus: int
    workers: int = 0
    """Total over all GPUs."""
    others: int = 0
    """Processes unrelated to GPUs."""
    doing: str = BUSY
    threads: int = 0
    """Threads of each main process, beside the first."""
    forks: int = 0
    """Short-lived processes that each main process starts in a second."""
    mains: int = 0
    """0: one for each GPU."""


@contextlib.contextmanager
def feeders(board: Board, node: Node) -> Iterator[None]:
    """The processes of a node, once its GPUs are held."""
    node = node._replace(mains=node.mains or node.gpus)
    command = [sys.executable, __file__, f"{os.getpid()}", f"{board.path}", json.dumps(node)]
    commands = [[*command, f"{number}"] for number in range(node.mains)]
    with contextlib.ExitStack() as stack:
        for words in [*commands, *[["sleep", "3600"]] * node.others]:
            process = stack.enter_context(subprocess.Popen(words))
            stack.callback(process.kill)
        while not all(any(p.pid for p in gpu.record.processes) for gpu in board.gpus):
            time.sleep(0.1)
        yield


def _feed(parent: str, path: str, told: str, number: str) -> None:
    """A main process: hold its GPUs, keep them busy or not, and wake the workers regularly."""
    die_with_parent(int(parent))
    node = Node(*json.loads(told))
    pipes = [_worker(node.doing) for _ in range(node.workers // node.mains)]
    _start_threads(node.threads)
    gpus = Board(Path(path)).gpus[int(number) :: node.mains]
    for gpu in gpus:
        gpu.hold(os.getpid(), 2**30)
    turn = time.monotonic()
    while True:
        in_turn = node.doing in (IN_TURNS, CROWD, MIXED) and time.monotonic() >= turn
        turn += _TURN_SECONDS * in_turn
        for gpu in gpus:
            if in_turn:
                gpu.launch(_WORK_SECONDS)
            if node.doing == BUSY and gpu.record.free_at_ns < time.monotonic_ns() + _AHEAD_NS:
                gpu.launch(_AHEAD_NS / 1e9)
        for pipe in filter(None, pipes):
            pipe.send_bytes(b"batch")
        if node.forks:
            _come_and_go()
            time.sleep(1 / node.forks)
        elif node.doing == MIXED:
            time.sleep(_WORK_SECONDS)
            _write(_WRITTEN_SECONDS)
            time.sleep(max(turn - time.monotonic(), 0.0))
        else:
            time.sleep(_PAUSES.get(node.doing, WAKE_SECONDS))


def _write(seconds: float) -> None:
    """Write to the disk again and again."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        while time.monotonic() < end:
            os.pwrite(file.fileno(), bytes(2**16), 0)
            os.fdatasync(file.fileno())


def _worker(doing: str) -> Connection | None:
    """Start one, and return the pipe to wake it by; one that sleeps has none, and is small."""
    parent = os.getpid()
    if doing in (ASLEEP, CROWD):
        if os.fork() == 0:
            die_with_parent(parent)
            while True:
                time.sleep(3600 if doing == ASLEEP else WAKE_SECONDS)
        return None
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=_work, args=(theirs, parent), daemon=True).start()
    return ours


def _work(pipe: Connection, parent: int) -> None:
    die_with_parent(parent)
    while True:
        pipe.recv_bytes()


def _start_threads(number: int) -> None:
    threading.stack_size(65_536)
    locked = threading.Lock()
    locked.acquire()
    for _ in range(number):
        threading.Thread(target=locked.acquire, daemon=True).start()


def _come_and_go() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if os.fork() == 0:
        time.sleep(_FORKED_SECONDS)
        os._exit(0)


if __name__ == "__main__":
    _feed(*sys.argv[1:])
