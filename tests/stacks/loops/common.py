"""What the loops share: their servers, and ways of getting batches.

A loop runs with its library's Python, and needs only the virtual board apart from it. The
environment says where things are: STACKS_BOARD, STACKS_GPU (the first of its GPUs on it, if not 0),
STACKS_FOLDER, STACKS_PORT.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import queue
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.demo.jobs import burn
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

WAIT = 0.12
"""Seconds that a slow batch takes, whatever the reason."""
QUICK = 0.002
"""Seconds that a batch takes if the GPU is to stay busy."""
MEBIBYTE = 2**20
FOLDER = Path(os.environ.get("STACKS_FOLDER", ""))
PORT = int(os.environ.get("STACKS_PORT", "0"))
"""Free for the loop to listen on."""
HOST = "127.0.0.1"
FORK: Any = multiprocessing.get_context("fork")
_AHEAD = 4

Load = Callable[[], object]

__all__ = ["FOLDER", "FORK", "HOST", "MEBIBYTE", "PORT", "QUICK", "WAIT", "Load", "burn"]


def port(server: str) -> int:
    """Where `server` listens, once it does."""
    announced = FOLDER / f"{server}.port"
    while not announced.exists():
        time.sleep(0.05)
    return int(announced.read_text())


def url(path: str, server: str = "http", *, scheme: str = "http") -> str:
    """The URL of `path` at `server`; servers/http.py lists the paths."""
    return f"{scheme}://{HOST}:{port(server)}/{path}"


def slow(seconds: float = WAIT, size: int = 65536) -> str:
    """The path for `size` bytes that arrive after `seconds`."""
    return f"late/{round(seconds * 1000)}/{size}"


def fetch(seconds: float = WAIT) -> bytes:
    """What a server answers after `seconds`."""
    with urllib.request.urlopen(url(slow(seconds)), timeout=30) as answer:
        return bytes(answer.read())


WORKS: dict[str, Load] = {"burn": partial(burn, WAIT), "upstream": fetch, "infer": lambda: None}
"""What a request makes a server do before it runs the model: tokenise, ask another, nothing."""


def epochs(batches: Iterable[object]) -> Load:
    """These batches, over and over."""
    return itertools.chain.from_iterable(itertools.repeat(batches)).__next__


def awaited(start: Callable[[], Coroutine[Any, Any, Callable[[], Awaitable[object]]]]) -> Load:
    """Batches that an event loop awaits; `start` is awaited before, and says how."""
    loop = asyncio.new_event_loop()
    load = loop.run_until_complete(start())
    return lambda: loop.run_until_complete(load())


def of_two(load: Load) -> Load:
    """A batch is two samples, one after the other."""
    return lambda: [load(), load()]


def for_a_while(load: Load, seconds: float = WAIT) -> Load:
    """A batch is as many samples as take `seconds`, however fast the machine is."""

    def batch() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            load()

    return batch


def together(load: Load, count: int = 4) -> Load:
    """A batch is `count` samples that as many threads load at the same time."""
    pool = ThreadPoolExecutor(count)

    def batch() -> object:
        return [sample.result() for sample in [pool.submit(load) for _ in range(count)]]

    return batch


def prefetched(load: Load, threads: int = 1, ahead: int = _AHEAD) -> Load:
    """Batches that `threads` load, `ahead` of them in advance."""
    batches: queue.Queue[object] = queue.Queue(ahead)

    def fill() -> None:
        while True:
            batches.put(load())

    for _ in range(threads):
        threading.Thread(target=_or_exit, args=(fill,), daemon=True).start()
    get: Load = batches.get
    return get


def workers(start: Callable[[], Load], count: int = 2) -> Load:
    """Batches that worker processes load; `start` is called in each of them."""
    batches = FORK.Queue(_AHEAD)
    started_workers(batches, start, count)
    get: Load = batches.get
    return get


def started_workers(
    batches: multiprocessing.queues.Queue[bytes], start: Callable[[], Load], count: int
) -> list[multiprocessing.process.BaseProcess]:
    """The processes; they end with this one."""
    arguments = batches, start, os.getpid()
    started = [FORK.Process(target=_work, args=arguments, daemon=True) for _ in range(count)]
    for process in started:
        process.start()
    return started


def placed(start: Callable[[], Load], where: str = "main") -> Load:
    """Batches that are loaded in the main thread, or in another of these places."""
    if where == "workers":
        return workers(lambda: of_two(start()))
    load = start()
    places: dict[str, Callable[[], Load]] = {
        "main": lambda: load,
        "thread": lambda: prefetched(load),
        "threads": lambda: together(load),
        "prefetched": lambda: prefetched(load, threads=8, ahead=16),
    }
    return places[where]()


def _work(
    batches: multiprocessing.queues.Queue[bytes], start: Callable[[], Load], parent: int
) -> None:
    die_with_parent(parent)
    load = start()
    while True:
        load()
        batches.put(bytes(64))


def _or_exit(run: Callable[[], None]) -> None:
    """A failing thread ends the process, instead of leaving it asleep."""
    try:
        run()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        sys.stderr.write(f"{error!r}\n")
        os._exit(1)
