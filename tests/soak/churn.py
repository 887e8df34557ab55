"""What happens on a node over weeks: processes come and go, GPUs fail and recover.

    python tests/soak/churn.py PARENT BOARD SEED

A separate process, as it forks and so must have one thread. It ends with its parent, and so does
everything that it started.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pynvml import NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_SUPPORTED

from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from support.board import CALLS, Board, VirtualGpu

STEP_SECONDS = 0.03
MOST_MAINS = 6
HANGS_SECONDS = 0.8
"""Longer than the deadline."""
XIDS = (13, 31, 48, 63, 79)
_UNKNOWN, _NO_PERMISSION, _TIMEOUT = 999, 4, 10
_RESULTS = (NVML_ERROR_NOT_SUPPORTED, _UNKNOWN, _NO_PERMISSION, _TIMEOUT)
_GIGABYTE = 2**30
_CALLS = [call for call in CALLS if call.startswith(("DeviceGet", "Gpm"))]


class Churn:
    """Churn on the whole GPUs of `board`."""

    def __init__(self, board: Board, seed: int) -> None:
        self._board = board
        self._chance = random.Random(seed)  # noqa: S311 - to be the same again
        self._mains: dict[int, tuple[VirtualGpu, float]] = {}
        self._repairs: list[tuple[float, Callable[[], None]]] = []
        self._gpus = [*board.gpus]

    def step(self, now: float) -> None:
        """Do one thing at random."""
        for pid, (gpu, until) in list(self._mains.items()):
            if now > until:
                self._end(pid, gpu)
        for due, repair in [one for one in self._repairs if one[0] < now]:
            repair()
            self._repairs.remove((due, repair))
        if len(self._mains) < MOST_MAINS:
            self._start(now)
        self._chance.choice((self._work, self._work, self._break, self._refuse, self._xid))(now)

    def end(self) -> None:
        """Repair everything, and end all processes."""
        for _, repair in self._repairs:
            repair()
        for pid, (gpu, _) in list(self._mains.items()):
            self._end(pid, gpu)

    def _start(self, now: float) -> None:
        gpu, parent = self._chance.choice(self._gpus), os.getpid()
        pid = os.fork()
        if pid == 0:
            _main(parent, self._chance.randrange(4))
        os.setpgid(pid, pid)  # by its parent, as it may be killed before it runs
        gpu.hold(pid, _GIGABYTE)
        self._mains[pid] = gpu, now + self._chance.uniform(0.1, 2.0)

    def _end(self, pid: int, gpu: VirtualGpu) -> None:
        del self._mains[pid]
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        gpu.release(pid)

    def _work(self, _: float) -> None:
        gpu = self._chance.choice(self._gpus)
        if gpu.record.free_at_ns < time.monotonic_ns() + 1e9:
            gpu.launch(self._chance.uniform(0.01, 0.5))

    def _break(self, now: float) -> None:
        record = self._chance.choice(self._gpus).record
        if self._chance.random() < 0.9:
            return
        if self._chance.random() < 0.5:
            record.hang = 1
            self._repairs.append((now + HANGS_SECONDS, lambda: setattr(record, "hang", 0)))
        else:
            record.device_result = NVML_ERROR_GPU_IS_LOST
            self._repairs.append((now + 0.2, lambda: setattr(record, "device_result", 0)))

    def _refuse(self, now: float) -> None:
        gpu, call = self._chance.choice(self._gpus), self._chance.choice(_CALLS)
        gpu.fail(call, self._chance.choice(_RESULTS))
        self._repairs.append((now + 0.1, lambda: gpu.fail(call, 0)))

    def _xid(self, _: float) -> None:
        if self._chance.random() < 0.1:
            self._board.raise_xid(0, self._chance.choice(XIDS))


def _main(parent: int, workers: int) -> None:
    """Hold a GPU: listen, answer requests, have workers that burn a little CPU."""
    die_with_parent(parent)
    pid = os.getpid()
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    for _ in range(workers):
        if os.fork() == 0:
            die_with_parent(pid)
            while True:
                sum(range(10_000))
                time.sleep(0.02)
    while True:
        client.send(b"x" * 100)
        time.sleep(0.05)


def main(parent: int, path: Path, seed: int) -> None:
    """Churn until SIGTERM."""
    die_with_parent(parent)
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, end)
    churn = Churn(Board(path), seed)
    while not ended:
        churn.step(time.monotonic())
        time.sleep(STEP_SECONDS)
    churn.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
