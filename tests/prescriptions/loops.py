"""A training loop on a virtual GPU, until it is killed: `python -m prescriptions.loops GPU LOOP`.

GPU is the index on the board, LOOP what `settings.Loop` writes. The environment says where the rest
is, as for the loops of the suite with the loading libraries.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

import contextlib
import http.client
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
from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from prescriptions import libraries
from prescriptions.settings import CHECKPOINT_SECONDS, Batch, Loop
from scenarios.loops import Scene, reading
from stacks.loops.common import FOLDER, HOST, MEBIBYTE, Load, burn, port, workers
from stacks.loops.gpu import hold

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


def making(batch: Batch) -> Load:
    """Makes the batches; called in the process that does."""
    parts = [part(much) for name, part in PARTS.items() if (much := getattr(batch, name))]
    draw = random.Random(os.getpid())  # noqa: S311 - no secret

    def make() -> None:
        factor = batch.factor(draw)
        for part in parts:
            part(factor)

    return make


def working(batch: Batch, parent: int) -> Load:
    """The same in a worker, which ends with the main process."""
    die_with_parent(parent)
    return making(batch)


def queued(loop: Loop) -> Load:
    """Workers that share a queue: batches arrive as they are ready."""
    return workers(partial(working, loop.batch, os.getpid()), loop.workers)


def pooled(loop: Loop) -> Load:
    """multiprocessing.Pool.imap, two batches ahead per worker; in order, too."""
    context = multiprocessing.get_context("fork")
    pool = context.Pool(loop.workers, _enter_pool, (loop.batch, os.getpid()))
    room = threading.Semaphore(2 * loop.workers)

    def wanted() -> Iterator[int]:
        while True:
            room.acquire()
            yield 0

    batches = pool.imap(_made, wanted())

    def load() -> bytes:
        batch = next(batches)
        room.release()
        return batch

    return load


_of_pool: list[Load] = []
"""In a worker of the pool: what makes its batches."""


def _enter_pool(batch: Batch, parent: int) -> None:
    _of_pool.append(working(batch, parent))


def _made(_: int) -> bytes:
    _of_pool[0]()
    return bytes(64)


LOADERS: dict[str, Callable[[Loop], Load]] = {
    "queue": queued,
    "imap": pooled,
    "torch": partial(libraries.torch_loader, making=making),
    "webdataset": partial(libraries.webdataset, making=making),
    "datasets": partial(libraries.hugging_face, making=making),
    "tf.data": partial(libraries.tensorflow, making=making),
    "grain": partial(libraries.grain, making=making),
    "threads": partial(libraries.threads, making=making),
}
_IN_MAIN = frozenset({"queue", "imap"})
"""Without workers, these are not used at all."""


def checkpointing(mebibytes: float) -> Callable[[], None]:
    """To be called at each step: when a checkpoint is due, writes it and waits for the disk."""
    block = mmap.mmap(-1, _WRITTEN_BYTES)  # direct writes need whole pages
    block.write(os.urandom(_WRITTEN_BYTES))
    flags = os.O_WRONLY | os.O_CREAT | os.O_DIRECT
    descriptor = os.open(FOLDER / f"checkpoint-{os.getpid()}", flags, 0o600)
    due = time.monotonic() + CHECKPOINT_SECONDS

    def step() -> None:
        nonlocal due
        if time.monotonic() < due:
            return
        os.lseek(descriptor, 0, os.SEEK_SET)
        for _ in range(round(mebibytes * MEBIBYTE / _WRITTEN_BYTES)):
            os.write(descriptor, block)
        due = time.monotonic() + CHECKPOINT_SECONDS

    return step


def meeting() -> Callable[[], None] | None:
    """Waits for the other ranks of the job, as at the end of a step; None if there are none."""
    if "WORLD_SIZE" not in os.environ:
        return None
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if int(os.environ["RANK"]):
        others = [_connected(place)]
    else:
        with socket.create_server(place) as listening:
            others = [listening.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]

    def meet() -> None:
        try:
            for one in others:
                one.sendall(b"x")
            arrived = [one.recv(1) for one in others]
        except ConnectionError:
            arrived = [b""]
        if not all(arrived):
            sys.exit(0)  # another rank has ended

    return meet


def _connected(place: tuple[str, int]) -> socket.socket:
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection(place)
        time.sleep(0.05)


def main(gpu_index: str, text: str) -> None:
    """Train forever."""
    loop = Loop.parse(text)
    gpu = hold(int(gpu_index))
    in_main = loop.workers == 0 and loop.loader in _IN_MAIN
    load = making(loop.batch) if in_main else LOADERS[loop.loader](loop)
    save = checkpointing(loop.checkpoint) if loop.checkpoint else None
    meet = meeting()
    ends: deque[int] = deque()
    while True:
        load()
        burn(loop.host)
        ends.append(gpu.launch(loop.step))
        if len(ends) > (_LAUNCHED_AHEAD if loop.ahead else 0):
            gpu.synchronize(ends.popleft())
        if meet:
            meet()
        if save:
            save()


if __name__ == "__main__":
    main(*sys.argv[1:])
