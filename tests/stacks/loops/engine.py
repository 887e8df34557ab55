"""A child that holds the GPU and runs the model for its parent, as in vLLM.

The parent serves HTTP and tokenises; they communicate by ZeroMQ over ipc.
"""

# ruff: noqa: PLC0415 - other servers' environments lack it
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import multiprocessing
import threading

from stacks.loops.common import FOLDER, Load
from stacks.loops.gpu import STEP, hold, ready, warm

_ADDRESS = f"ipc://{FOLDER}/engine"


def run() -> None:
    """Poll for requests, as engines do, and run each."""
    import zmq

    gpu = hold()
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(_ADDRESS)
    warm(gpu)
    ready()
    while True:
        socket.poll()
        socket.recv()
        gpu.run(STEP)
        socket.send(b"done")


def started() -> Load:
    """Start the engine; what asks it, one request at a time."""
    import zmq

    multiprocessing.get_context("spawn").Process(target=run).start()
    socket = zmq.Context().socket(zmq.REQ)
    socket.connect(_ADDRESS)
    one_at_a_time = threading.Lock()

    def ask() -> object:
        with one_at_a_time:
            socket.send(b"run")
            return socket.recv()

    return ask
