"""Events on a node over weeks: processes come and go, GPUs fail and recover.

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
from functools import partial
from pathlib import Path

from pynvml import NVML_ERROR_GPU_IS_LOST

from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from support.board import CALLS, Board, VirtualGpu

STEP_SECONDS = 0.03
MOST_AT_ONCE = 8
HANGS_SECONDS = 0.8
"""Longer than the deadline."""
XIDS = (13, 31, 48, 63, 79)
_RESULTS = 3, 4, 10, 999
"""NOT_SUPPORTED, NO_PERMISSION, TIMEOUT, UNKNOWN."""
_CALLS = [call for call in CALLS if call.startswith(("DeviceGet", "Gpm"))]
Passing = tuple[float, Callable[[], object]]
"""How many seconds it lasts, and what ends it."""


def happens(board: Board, chance: random.Random) -> Passing | None:
    """Do one thing at random to a GPU of `board`; returns what passes."""
    gpu, what = chance.choice(board.gpus), chance.random()
    if what < 0.01:
        gpu.record.hang = 1
        return HANGS_SECONDS, partial(setattr, gpu.record, "hang", 0)
    if what < 0.02:
        gpu.record.device_result = NVML_ERROR_GPU_IS_LOST
        return 0.2, partial(setattr, gpu.record, "device_result", 0)
    if what < 0.22:
        call = chance.choice(_CALLS)
        gpu.fail(call, chance.choice(_RESULTS))
        return 0.1, partial(gpu.fail, call, 0)
    if what < 0.24:
        board.raise_xid(0, chance.choice(XIDS))
    elif what < 0.64 and gpu.record.free_at_ns < time.monotonic_ns() + 1e9:
        gpu.launch(chance.uniform(0.01, 0.5))
    return None


def comes(gpu: VirtualGpu, workers: int, seconds: float) -> Passing:
    """A process that holds a GPU for this time."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _main(parent, workers)
    os.setpgid(pid, pid)  # by its parent, as it may be killed before it runs
    gpu.hold(pid, 2**30)

    def goes() -> None:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        gpu.release(pid)

    return seconds, goes


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
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    board, chance = Board(path), random.Random(seed)  # noqa: S311 - to be the same again
    passing: list[Passing] = []
    while not ended:
        now = time.monotonic()
        for entry in [item for item in passing if item[0] < now]:
            entry[1]()
            passing.remove(entry)
        gpu = chance.choice(board.gpus)
        few = len(passing) < MOST_AT_ONCE
        came = comes(gpu, chance.randrange(4), chance.uniform(0.1, 2.0)) if few else None
        for new in (came, happens(board, chance)):
            passing += [(now + new[0], new[1])] if new else []
        time.sleep(STEP_SECONDS)
    for _, end in passing:
        end()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
