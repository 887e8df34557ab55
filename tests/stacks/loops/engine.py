"""An API server and its child, the engine that holds the GPU: `... engine JOINT WORK`.

The layout of vLLM: the parent serves HTTP and tokenises, the child runs the model. JOINT is how
they communicate: zmq (over ipc) or pipe (multiprocessing's). WORK is what the parent does for a
request: burn, upstream or infer (nothing).
"""

# ruff: noqa: PLC0415 - each case imports its own library and no other
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

from stacks.loops.asgi import serve
from stacks.loops.common import FOLDER, WORKS
from stacks.loops.gpu import STEP, hold, ready, warm

Ask = Callable[[], object]


def zmq_engine(_joint: object) -> None:
    """Polls for requests, as engines do, and runs each."""
    import zmq

    gpu = hold()
    socket = zmq.Context().socket(zmq.REP)
    socket.bind(f"ipc://{FOLDER}/engine")
    warm(gpu)
    ready()
    while True:
        socket.poll()
        socket.recv()
        gpu.run(STEP)
        socket.send(b"done")


def pipe_engine(joint: Connection) -> None:
    """Waits for requests on a pipe."""
    gpu = hold()
    warm(gpu)
    ready()
    while True:
        joint.recv()
        gpu.run(STEP)
        joint.send("done")


def start_zmq() -> Ask:
    """Start the engine; what asks it."""
    import zmq

    multiprocessing.get_context("spawn").Process(target=zmq_engine, args=(None,)).start()
    socket = zmq.Context().socket(zmq.REQ)
    socket.connect(f"ipc://{FOLDER}/engine")

    def ask() -> object:
        socket.send(b"run")
        return socket.recv()

    return ask


def start_pipe() -> Ask:
    """Start the engine; what asks it."""
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=pipe_engine, args=(there,)).start()

    def ask() -> object:
        here.send("run")
        return here.recv()

    return ask


def main(joint: str, work: str) -> None:
    """Serve until killed."""
    ask = {"zmq": start_zmq, "pipe": start_pipe}[joint]()
    pool = ThreadPoolExecutor(8)
    one_at_a_time = threading.Lock()

    def run() -> None:
        WORKS[work]()
        with one_at_a_time:
            ask()

    def answer() -> Awaitable[object]:
        return asyncio.get_running_loop().run_in_executor(pool, run)

    serve(answer)
