"""Small training loops as separate processes, and what runs next to them.

    python tests/scenarios/loops.py BOARD GPUS LOOP FOLDER PARENT [CGROUP ...]

drives the virtual GPUs with the indices in GPUS (`-`: none) until it is killed or PARENT ends.
Everything except the GPU is real: workers, queues, disks, sockets. CGROUP are folders of control
groups that it enters first.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import mmap
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.jobs import burn
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

DATA = "data"
"""The file that direct and buffered readers read, below FOLDER."""
SECOND_HALF = "second-half"
"""Once this file appears below FOLDER, the loop `changing` changes."""
MEBIBYTE = 2**20
STEP_SECONDS = 0.025
CORES = len(os.sched_getaffinity(0))
MANY = 3 * CORES
"""Three times as many as fit."""
_GIB = 2**30
_BLOCK = MEBIBYTE
_QUEUE_LENGTH = 4
_LAUNCHED_AHEAD = 2
_REQUEST_BYTES, _REPLY_BYTES = 16, 65536
_REPLY_SECONDS = 0.02
_LOCKED_AFTER_SECONDS = 2.5
_SHM, _SHM_MEBIBYTES = "/dev/shm", 32  # noqa: S108 - the mount, no file in it
_NEW_MOUNTS = 0x00020000
"""CLONE_NEWNS of sched.h; the mounts end with the processes."""
_HOST = "127.0.0.1"

Prepare = Callable[[], None]
Worker = Callable[[], Prepare]
"""Called once in the worker; returns what is called for every batch."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a loop works with."""

    board: Board
    gpus: tuple[VirtualGpu, ...]
    folder: Path

    @property
    def data(self) -> Path:
        """The data set."""
        return self.folder / DATA


def burning(seconds: float, _: Scene) -> Worker:
    """A batch costs this much CPU time."""
    return lambda: partial(burn, seconds)


def reading(seconds: float, scene: Scene, *, cpu_seconds: float = 0.0) -> Worker:
    """A batch is what the disk reads in `seconds`, bypassing the page cache, plus CPU time."""

    def start() -> Prepare:
        descriptor = os.open(scene.data, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, _BLOCK)
        blocks = os.fstat(descriptor).st_size // _BLOCK
        draw = random.Random(os.getpid())  # noqa: S311 - no secret

        def prepare() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                os.preadv(descriptor, [buffer], draw.randrange(blocks) * _BLOCK)
            burn(cpu_seconds)

        return prepare

    return start


def reading_cached(mebibytes: int, scene: Scene) -> Worker:
    """A batch is this much data, read through the page cache."""

    def start() -> Prepare:
        descriptor = os.open(scene.data, os.O_RDONLY)
        buffer = bytearray(_BLOCK // 4)
        blocks = os.fstat(descriptor).st_size // len(buffer)
        draw = random.Random(os.getpid())  # noqa: S311 - no secret

        def prepare() -> None:
            for _ in range(4 * mebibytes):
                os.preadv(descriptor, [buffer], draw.randrange(blocks) * len(buffer))

        return prepare

    return start


def fetching(requests: int, scene: Scene) -> Worker:
    """A batch is this many requests to `server`, which answers late."""

    def start() -> Prepare:
        connection = _connect(scene.folder / "port")

        def prepare() -> None:
            for _ in range(requests):
                connection.sendall(bytes(_REQUEST_BYTES))
                left = _REPLY_BYTES
                while left:
                    left -= len(connection.recv(left))

        return prepare

    return start


def fed(workers: int, worker: Callable[[Scene], Worker], scene: Scene) -> None:
    """Train on batches that workers prepare."""
    batches = _start(workers, worker(scene))
    train = _Training(scene.gpus[0])
    while True:
        batches.get()
        train.step()


def healthy(scene: Scene) -> None:
    """Two workers keep the GPU busy with little to do."""
    fed(2, partial(burning, 0.001), scene)


def slow_main(scene: Scene) -> None:
    """The main loop itself takes the time; its two workers finish long before it."""
    batches = _start(2, burning(0.001, scene))
    while True:
        batches.get()
        burn(8 * STEP_SECONDS)
        scene.gpus[0].run(STEP_SECONDS)


def inline(worker: Callable[[Scene], Worker], scene: Scene) -> None:
    """Batches are prepared in the main process."""
    prepare = worker(scene)()
    while True:
        prepare()
        scene.gpus[0].run(STEP_SECONDS)


def crowded(scene: Scene) -> None:
    """The batches of its workers nearly fill its shared memory, which is a separate mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    options = f"size={_SHM_MEBIBYTES}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", _SHM], check=True)
    Path(_SHM, "batches").write_bytes(bytes((_SHM_MEBIBYTES - 1) * MEBIBYTE))
    healthy(scene)


def respawning(scene: Scene) -> None:
    """Every epoch of a few steps has new workers, which take a while to start."""

    def start() -> Prepare:
        burn(0.1)
        return partial(burn, 0.02)

    train = _Training(scene.gpus[0])
    while True:
        context = multiprocessing.get_context("fork")
        batches: Queue[bytes] = context.Queue(_QUEUE_LENGTH)
        workers = [
            context.Process(target=_produce, args=(batches, start, os.getpid())) for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for _ in range(6):
            batches.get()
            train.step()
        for worker in workers:
            worker.kill()
            worker.join()
        batches.close()


def checkpointing(scene: Scene) -> None:
    """Every few steps, the main thread writes the model and forces it to disk.

    Each phase takes most of a tick: with several per tick, chance decides how samples split.
    """
    batches = _start(2, burning(0.001, scene))
    model = memoryview(os.urandom(16 * MEBIBYTE))
    while True:
        for _ in range(25):
            batches.get()
            scene.gpus[0].run(STEP_SECONDS)
        with open(scene.folder / "checkpoint", "wb", buffering=0) as file:
            for _ in range(30):
                file.write(model)
            os.fsync(file.fileno())


def locked_up(scene: Scene) -> None:
    """The workers end up waiting for a lock that is never released, the main loop for them."""
    lock = multiprocessing.get_context("fork").Lock()
    lock.acquire()
    locked_at = time.monotonic() + _LOCKED_AFTER_SECONDS

    def prepare() -> None:
        if time.monotonic() >= locked_at:
            lock.acquire()

    fed(2, lambda _: lambda: prepare, scene)


def held(scene: Scene) -> None:
    """A notebook that ran one cell and was left open."""
    scene.gpus[0].run(STEP_SECONDS)
    threading.Event().wait()


def changing(scene: Scene) -> None:
    """Waits for the network at first, later for its own main loop."""
    batches = _start(2, fetching(16, scene))
    train = _Training(scene.gpus[0])
    while not (scene.folder / SECOND_HALF).exists():
        batches.get()
        train.step()
    slow_main(scene)


def server(scene: Scene) -> None:
    """Answers each request after a while, as an object store does."""
    asyncio.run(_serve(scene.folder / "port"))


def hog(_: Scene) -> None:
    """Burns a core."""
    while True:
        burn(1)


def disk_hog(scene: Scene) -> None:
    """Reads the disk as fast as it can."""
    read = reading(1, scene)()
    while True:
        read()


LOOPS: dict[str, Callable[[Scene], None]] = {
    "healthy": healthy,
    "prep_inline": partial(inline, partial(burning, 6 * STEP_SECONDS)),
    "inline_reading": partial(inline, partial(reading, 0.001, cpu_seconds=6 * STEP_SECONDS)),
    "crowded": crowded,
    "prep_1": partial(fed, 1, partial(burning, 0.15)),
    "prep_2": partial(fed, 2, partial(burning, 0.15)),
    "prep_many": partial(fed, MANY, partial(burning, 0.15)),
    "prep_4": partial(fed, 4, partial(burning, 0.05)),
    "disk_1": partial(fed, 1, partial(reading, 0.15)),
    "disk_4": partial(fed, 4, partial(reading, 0.5)),
    "disk_trickle": partial(fed, 2, partial(reading, 0.1)),
    "disk_heavy_prep": partial(fed, 2, partial(reading, 0.03, cpu_seconds=0.2)),
    "disk_light_prep": partial(fed, 2, partial(reading, 0.15, cpu_seconds=0.02)),
    "cached": partial(fed, 4, partial(reading_cached, 128)),
    "fetch_2": partial(fed, 2, partial(fetching, 16)),
    "fetch_8": partial(fed, 8, partial(fetching, 32)),
    "slow_main": slow_main,
    "respawning": respawning,
    "checkpointing": checkpointing,
    "locked_up": locked_up,
    "held": held,
    "changing": changing,
    "server": server,
    "hog": hog,
    "disk_hog": disk_hog,
}


class _Training:
    """Launches steps a little ahead of the GPU, as asynchronous launches do."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._ends: deque[int] = deque()

    def step(self) -> None:
        self._ends.append(self._gpu.launch(STEP_SECONDS))
        if len(self._ends) > _LAUNCHED_AHEAD:
            self._gpu.synchronize(self._ends.popleft())


def _start(count: int, worker: Worker) -> Queue[bytes]:
    context = multiprocessing.get_context("fork")
    batches: Queue[bytes] = context.Queue(_QUEUE_LENGTH)
    for _ in range(count):
        context.Process(target=_produce, args=(batches, worker, os.getpid()), daemon=True).start()
    return batches


def _produce(batches: Queue[bytes], worker: Worker, parent: int) -> None:
    die_with_parent(parent)
    prepare = worker()
    while True:
        prepare()
        batches.put(bytes(64))


def _connect(port: Path) -> socket.socket:
    while not port.exists():
        time.sleep(0.05)
    return socket.create_connection((_HOST, int(port.read_text())))


async def _serve(port: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readexactly(_REQUEST_BYTES):
                await asyncio.sleep(_REPLY_SECONDS)
                writer.write(bytes(_REPLY_BYTES))
                await writer.drain()

    listening = await asyncio.start_server(answer, _HOST)
    unfinished = port.with_suffix(".new")
    unfinished.write_text(str(listening.sockets[0].getsockname()[1]))
    unfinished.rename(port)
    await listening.serve_forever()


def main(board: str, gpus: str, loop: str, folder: str, parent: str, *cgroups: str) -> None:
    """Enter the control groups, hold the GPUs, and loop forever."""
    die_with_parent(int(parent))
    for cgroup in cgroups:
        (Path(cgroup) / "cgroup.procs").write_text("0")
    indices = [int(index) for index in gpus.split(",") if index != "-"]
    opened = Board(Path(board))
    scene = Scene(opened, tuple(opened.gpus[index] for index in indices), Path(folder))
    for gpu in scene.gpus:
        gpu.hold(os.getpid(), 4 * _GIB)
    LOOPS[loop](scene)


if __name__ == "__main__":
    main(*sys.argv[1:])
