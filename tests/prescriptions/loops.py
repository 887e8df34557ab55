"""A training loop on a virtual GPU: `python -m prescriptions.loops GPU SETTING`.

GPU is the index on the board, SETTING a `settings.Setting` in JSON. The environment says where
the rest is, as for the loops of the suite with the loading libraries.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import math
import mmap
import multiprocessing
import os
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.demo.board.board import Board
from prescriptions import libraries
from prescriptions.libraries import Make
from prescriptions.settings import Setting
from scenarios.loops import Scene, reading
from stacks.loops.common import FOLDER, HOST, MEBIBYTE, Load, burn, port, prefetched, workers
from stacks.loops.gpu import hold

CHECKPOINT_SECONDS = 1.0
_LAUNCHED_AHEAD = 2
_ANSWER_BYTES = 65536
_READ_BYTES = MEBIBYTE // 8
_WRITTEN_BYTES = MEBIBYTE // 16

Part = Callable[[float], object]
"""Does its part of a batch; told how long the batch takes, where 1 is the mean."""


def fetching(seconds: float) -> Part:
    """Requests to the server, which answers when it is told to."""
    connection = http.client.HTTPConnection(HOST, port("http"))

    def fetch(factor: float) -> None:
        connection.request("GET", f"/late/{1000 * seconds * factor:.3f}/{_ANSWER_BYTES}")
        connection.getresponse().read()

    return fetch


def mounted(reads: int) -> Part:
    """Reads from the remote file system, which answers late."""
    port("fuse")  # once it is mounted
    descriptor = os.open(FOLDER / "mount" / "data", os.O_RDONLY)
    blocks = os.fstat(descriptor).st_size // MEBIBYTE
    draw = random.Random(os.getpid())  # noqa: S311 - no secret

    def read(factor: float) -> None:
        for _ in range(round(reads * factor)):
            os.pread(descriptor, _READ_BYTES, draw.randrange(blocks) * MEBIBYTE)

    return read


def from_disk(seconds: float) -> Part:
    """Direct reads of the data set."""
    read = reading(seconds, Scene(Board(Path(os.environ["STACKS_BOARD"])), (), FOLDER))()
    return lambda _: read()


PARTS: dict[str, Callable[[Any], Part]] = {
    "server": fetching,
    "sleep": lambda seconds: lambda factor: time.sleep(seconds * factor),
    "mount": mounted,
    "disk": from_disk,
    "burn": lambda seconds: lambda factor: burn(seconds * factor),
    "pil": libraries.with_pil,
    "opencv": libraries.with_opencv,
}


def making(setting: Setting) -> Load:
    """Makes batches in the process, and the thread, that calls it."""
    parts = [part(much) for name, part in PARTS.items() if (much := getattr(setting, name))]
    draw = random.Random(os.getpid())  # noqa: S311 - no secret
    variance = math.log1p(setting.spread**2)

    def make() -> None:
        factor = draw.lognormvariate(-variance / 2, math.sqrt(variance))  # its mean is 1
        for part in parts:
            part(factor)

    return make


_makers: dict[tuple[int, int], Load] = {}
"""Makers of batches by process and thread: each has its own connections and files."""


def made(setting: Setting, _: object = None) -> float:
    """A batch, made in whatever process a loader wants it."""
    here = os.getpid(), threading.get_ident()
    if here not in _makers:
        _makers[here] = making(setting)
    _makers[here]()
    return 0.0


def pooled(setting: Setting, make: Make) -> Iterator[object]:
    """multiprocessing.Pool.imap, two batches ahead per worker; in order, too."""
    room = threading.Semaphore(2 * setting.workers)

    def wanted() -> Iterator[None]:
        while True:
            room.acquire()
            yield

    pool = multiprocessing.get_context("fork").Pool(setting.workers)
    for batch in pool.imap(make, wanted()):
        room.release()
        yield batch


def queued(setting: Setting, make: Make) -> Iterator[object]:
    """Workers that share a queue: batches arrive as they are ready. Else the main makes them."""
    return iter(workers(lambda: make, setting.workers) if setting.workers else make, None)


def threads(setting: Setting, make: Make) -> Iterator[object]:
    """Threads of the main process, two batches ahead each."""
    return iter(prefetched(make, setting.workers, 2 * setting.workers), None)


LOADERS: dict[str, Callable[[Setting, Make], Iterator[object]]] = {
    "queue": queued,
    "imap": pooled,
    "threads": threads,
    "torch": libraries.torch_loader,
    "webdataset": libraries.webdataset,
    "datasets": libraries.hugging_face,
    "tf.data": libraries.tensorflow,
    "grain": libraries.grain,
}


def checkpoints(mebibytes: float) -> Iterator[None]:
    """Each step: if a checkpoint is due, writes it and waits for the disk."""
    block = mmap.mmap(-1, _WRITTEN_BYTES)  # direct writes need whole pages
    block.write(os.urandom(_WRITTEN_BYTES))
    flags = os.O_WRONLY | os.O_CREAT | os.O_DIRECT
    descriptor = os.open(FOLDER / f"checkpoint-{os.getpid()}", flags, 0o600)
    while True:
        due = time.monotonic() + CHECKPOINT_SECONDS
        while time.monotonic() < due:
            yield
        for _ in range(round(mebibytes * MEBIBYTE / _WRITTEN_BYTES)):
            os.pwrite(descriptor, block, 0)


def other_ranks() -> list[socket.socket]:
    """Connections to the other ranks of the job; none without any."""
    if "RANK" not in os.environ:
        return []
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        with socket.create_server(place) as listening:
            return [listening.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
    while True:
        with contextlib.suppress(OSError):
            return [socket.create_connection(place)]
        time.sleep(0.05)


def main(gpu_index: str, text: str) -> None:
    """Train until another rank ends: they meet at the end of each step."""
    setting = Setting(**json.loads(text))
    gpu = hold(int(gpu_index))
    make = partial(made, setting)
    batches = LOADERS[setting.loader](setting, make)
    saving = checkpoints(setting.checkpoint) if setting.checkpoint else itertools.repeat(None)
    next(batches)  # workers must not inherit the connections
    others = other_ranks()
    ends: deque[int] = deque()
    for _ in batches:
        burn(setting.host)
        ends.append(gpu.launch(setting.step))
        if len(ends) > (_LAUNCHED_AHEAD if setting.ahead else 0):
            gpu.synchronize(ends.popleft())
        for other in others:
            other.sendall(b"x")
        if not all(other.recv(1) for other in others):
            return
        next(saving)


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # so does a rank that has ended
        main(*sys.argv[1:])
