"""An inference engine like vLLM, with its metrics: `... inference [wait=spin] [NAME=NUMBER ...]`.

A front end serves HTTP and tokenizes; its child, the engine, holds the GPU and runs a kernel for
each step of a batch. They communicate by ZeroMQ over ipc.
"""

# ruff: noqa: PLC0415 - other loops' environments lack it
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from stacks.loops.common import FOLDER, HOST, PORT, burn
from stacks.loops.gpu import STEP, hold, ready, warm
from stacks.servers import http

_KV_BLOCKS = 1000
_ENGINE = f"ipc://{FOLDER}/engine"
_FRONT = f"ipc://{FOLDER}/front"


@dataclass(frozen=True, slots=True)
class Shape:
    """The requests and limits of an engine."""

    wait: str = "sleep"
    """How the engine waits for requests; the other way is `spin`."""
    tokenize: float = 0.0
    """CPU seconds per request, in the front end, one request at a time."""
    steps: int = 64
    """Of a request."""
    blocks: int = 4
    """Of the KV cache, for a request."""
    batch: int = 1024
    """Requests that run at most."""


def _run(shape: Shape, parent: int) -> None:
    """The engine: admit what fits, run a step, report what ended and what is left."""
    import zmq

    die_with_parent(parent)
    gpu = hold()
    requests, reports = _sockets(zmq.PULL, _ENGINE, zmq.PUSH, _FRONT)
    waiting: deque[bytes] = deque()
    running: dict[bytes, int] = {}
    most = min(shape.batch, _KV_BLOCKS // shape.blocks)
    warm(gpu)
    ready()
    while True:
        if not running and shape.wait != "spin":
            requests.poll()
        while requests.poll(0):
            waiting.append(requests.recv())
        while waiting and len(running) < most:
            running[waiting.popleft()] = shape.steps
        if not running:
            continue
        gpu.run(STEP)
        left = {request: steps - 1 for request, steps in running.items()}
        running = {request: steps for request, steps in left.items() if steps}
        used = len(running) * shape.blocks / _KV_BLOCKS
        reports.send_pyobj(([*(left.keys() - running.keys())], len(running), len(waiting), used))


def _sockets(kind: int, bound: str, other: int, connected: str) -> tuple[Any, Any]:
    import zmq

    context = zmq.Context()
    here, there = context.socket(kind), context.socket(other)
    here.bind(bound)
    there.connect(connected)
    return here, there


class _Front:
    """What tokenizes requests, gives them to the engine, and knows its last report."""

    def __init__(self, shape: Shape) -> None:
        import zmq

        self._shape = shape
        self._reports, self._requests = _sockets(zmq.PULL, _FRONT, zmq.PUSH, _ENGINE)
        self._one_at_a_time = threading.Lock()
        self._pending: dict[bytes, threading.Event] = {}
        self._tokenizing: set[threading.Event] = set()
        self._count = self._finished = 0
        self._running = self._waiting = 0
        self._used = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self) -> None:
        """Have the engine run a request, and wait for its end."""
        done = threading.Event()
        self._tokenizing.add(done)
        with self._one_at_a_time:
            burn(self._shape.tokenize)
            self._tokenizing.remove(done)
            self._count += 1
            request = b"%d" % self._count
            self._pending[request] = done
            self._requests.send(request)
        done.wait()

    def _read(self) -> None:
        while True:
            finished, self._running, self._waiting, self._used = self._reports.recv_pyobj()
            self._finished += len(finished)
            for request in finished:
                self._pending.pop(request).set()

    def metrics(self) -> str:
        """As vLLM names them."""
        values: dict[str, Callable[[], float]] = {
            "num_requests_running": lambda: self._running,
            "num_requests_waiting": lambda: self._waiting + len(self._tokenizing),
            "kv_cache_usage_perc": lambda: self._used,
            "request_success_total": lambda: self._finished,
            "generation_tokens_total": lambda: self._finished * self._shape.steps,
        }
        return "".join(
            f'vllm:{name}{{engine="0",model_name="tiny"}} {value()}\n'
            for name, value in values.items()
        )


def main(*words: str) -> None:
    """Serve until killed."""
    kinds = {"wait": str, "tokenize": float}
    given = (word.partition("=") for word in words)
    shape = Shape(**{name: kinds.get(name, int)(value) for name, _, value in given})
    front = _Front(shape)
    multiprocessing.get_context("spawn").Process(target=_run, args=(shape, os.getpid())).start()

    class Handler(http.Handler):
        def body(self) -> bytes:
            if self.path == "/metrics":
                return front.metrics().encode()
            front.ask()
            return b"done"

    http.Server((HOST, PORT), Handler).serve_forever()
