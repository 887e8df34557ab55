"""Loops next to something that must not be blamed: `... beside WHAT LOOP`."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stacks.loops import sockets
from stacks.loops.common import FOLDER, HOST, PORT, QUICK, WAIT, Load, burn, prefetched, workers
from stacks.loops.gpu import train


def connection() -> None:
    """A thread that waits on an open connection for messages that never come."""
    opened = sockets.connected("lines")
    threading.Thread(target=opened.recv, args=(1,), daemon=True).start()


def metrics() -> None:
    """A thread that serves metrics that nobody scrapes."""
    server = ThreadingHTTPServer((HOST, PORT), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def logger() -> None:
    """A child that logs: it wakes up regularly and reports to a server."""
    multiprocessing.get_context("fork").Process(target=_log, daemon=True).start()


def _log() -> None:
    with sockets.connected("lines") as opened:
        while True:
            time.sleep(2)
            opened.sendall(bytes(16))
            opened.recv(65536, socket.MSG_WAITALL)


def checkpoint_thread() -> None:
    """A thread that always writes to the disk, and that nobody waits for."""

    def write() -> None:
        with open(FOLDER / "written", "wb", buffering=0) as file:
            while True:
                file.seek(0)
                file.write(bytes(2**20))
                os.fsync(file.fileno())

    threading.Thread(target=write, daemon=True).start()


BESIDE: dict[str, Callable[[], object]] = {
    "connection": connection,
    "metrics": metrics,
    "workers": lambda: workers(lambda: partial(burn, QUICK)),  # for a loader that nobody reads
    "logger": logger,
    "child": lambda: subprocess.Popen(["sleep", "1000000"]),  # as of a progress bar
    "writer": checkpoint_thread,
}
LOOPS: dict[str, Callable[[], Load]] = {
    "main": lambda: partial(burn, WAIT),
    "worker": lambda: workers(lambda: partial(burn, WAIT), 1),
    "thread": lambda: prefetched(lambda: burn(WAIT)),
    "fetch": sockets.timeout,
    "sleep": lambda: partial(time.sleep, WAIT),
    "quick": lambda: partial(burn, QUICK),
}


def main(what: str, loop: str) -> None:
    """Train forever."""
    BESIDE[what]()
    train(LOOPS[loop]())
