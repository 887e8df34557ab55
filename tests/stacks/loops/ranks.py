"""Two ranks that wait for each other over plain sockets: `... ranks KIND`.

Started by a process that holds no GPU, as by launchers. KIND is what the second rank does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from stacks.loops.common import HOST, PORT, QUICK, WAIT, Load, burn, fetch, workers
from stacks.loops.gpu import STEP, hold

KINDS: dict[str, Callable[[], Load]] = {
    "main": lambda: partial(burn, WAIT),
    "workers": lambda: workers(lambda: partial(burn, WAIT), 1),
    "fetch": lambda: workers(lambda: fetch, 1),
    "healthy": lambda: partial(burn, QUICK),
}


def main(kind: str, rank: str = "") -> None:
    """A rank, or their launcher."""
    if rank:
        _train(int(rank), kind)
    group = {"MASTER_ADDR": HOST, "MASTER_PORT": f"{PORT}", "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "stacks.loops", "ranks", kind, f"{number}"],
            env={**os.environ, **group, "RANK": f"{number}", "LOCAL_RANK": f"{number}"},
        )
        for number in range(2)
    ]
    for process in ranks:
        process.wait()


def _train(rank: int, kind: str) -> None:
    gpu = hold(rank)
    load = KINDS[kind if rank else "healthy"]()
    other = _joined(rank)
    while True:
        load()
        gpu.run(3 * STEP if kind == "healthy" else STEP)
        other.sendall(b"x")
        other.recv(1)


def _joined(rank: int) -> socket.socket:
    if rank == 0:
        with socket.create_server((HOST, PORT)) as listening:
            return listening.accept()[0]
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection((HOST, PORT))
        time.sleep(0.05)
