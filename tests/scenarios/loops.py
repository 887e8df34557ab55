"""Small training loops as separate processes, and what runs next to them.

    python -m scenarios.loops LOOP GPUS PARENT [CGROUP ...]

drives these virtual GPUs until it is killed or PARENT ends. Everything except the GPU is real:
workers, queues, disks, sockets. CGROUP are folders of control groups that it enters first. The
environment says where the rest is, as for `stacks.loops`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.jobs import burn
from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from scenarios import asynchronous
from stacks.loops import sockets
from stacks.loops.common import FOLDER, FORK, Load, started_workers, workers
from stacks.loops.files import reader
from stacks.loops.gpu import hold, train
from stacks.servers import sockets as servers

DATA = "data"
"""The file that direct and buffered readers read, below FOLDER."""
SECOND_HALF = "second-half"
"""Once this file appears below FOLDER, the loop `changing` changes."""
MEBIBYTE = 2**20
STEP_SECONDS = 0.025
CORES = len(os.sched_getaffinity(0))
MANY = 3 * CORES
"""Three times as many as fit."""
_LOCKED_AFTER_SECONDS, _FOREVER = 2.5, 1e9
_SHM, _SHM_MEBIBYTES = "/dev/shm", 32  # noqa: S108 - the mount, no file in it
_NEW_MOUNTS = 0x00020000
"""CLONE_NEWNS of sched.h; the mounts end with the processes."""

Worker = Callable[[], Load]
"""Called once in the worker; returns what is called for every batch."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The surroundings of a loop."""

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

    def start() -> Load:
        read = reader(scene.data, os.O_DIRECT)

        def prepare() -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                read()
            burn(cpu_seconds)

        return prepare

    return start


def reading_cached(mebibytes: int, scene: Scene) -> Worker:
    """A batch is this much data, read through the page cache."""

    def start() -> Load:
        read = reader(scene.data, size=MEBIBYTE // 4)
        return lambda: [read() for _ in range(4 * mebibytes)]

    return start


def fetching(requests: int, _: Scene) -> Worker:
    """A batch is this many requests to a server that answers late."""

    def start() -> Load:
        ask = sockets.asking("server")
        return lambda: [ask() for _ in range(requests)]

    return start


def fed(count: int, worker: Callable[[Scene], Worker], scene: Scene) -> None:
    """Train on batches that workers prepare, or without one the main process."""
    start = worker(scene)
    train(workers(start, count) if count else start(), STEP_SECONDS)


def healthy(scene: Scene) -> None:
    """Two workers keep the GPU busy with little to do."""
    fed(2, partial(burning, 0.001), scene)


def slow_main(scene: Scene) -> None:
    """The main loop itself takes the time; its two workers finish long before it."""
    batch = workers(burning(0.001, scene))
    while True:
        batch()
        burn(8 * STEP_SECONDS)
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


def respawning(_: Scene) -> None:
    """Every epoch of a few steps has new workers, which take a while to start."""

    def start() -> Load:
        burn(0.1)
        return partial(burn, 0.02)

    def batches() -> Iterator[object]:
        while True:
            queue = FORK.Queue(4)
            started = started_workers(queue, start, 4)
            for _ in range(6):
                yield queue.get()
            for worker in started:
                worker.kill()
                worker.join()

    train(batches().__next__, STEP_SECONDS)


def checkpointing(scene: Scene) -> None:
    """Every few steps, the main thread writes the model and forces it to disk.

    Each phase takes most of a tick: with several per tick, chance decides how samples split.
    """
    batch = workers(burning(0.001, scene))
    model = memoryview(os.urandom(16 * MEBIBYTE))
    while True:
        for _ in range(25):
            batch()
            scene.gpus[0].run(STEP_SECONDS)
        with open(scene.folder / "checkpoint", "wb", buffering=0) as file:
            for _ in range(30):
                file.write(model)
            os.fsync(file.fileno())


def locked_up(scene: Scene) -> None:
    """The workers end up waiting for a lock that is never released, the main loop for them."""
    lock = FORK.Lock()
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
    batch = workers(fetching(16, scene))

    def load() -> None:
        batch()
        if (scene.folder / SECOND_HALF).exists():
            slow_main(scene)

    train(load, STEP_SECONDS)


def server(_: Scene) -> None:
    """Answers each request after a while, as an object store does."""
    servers.main("server", "answers", "0.02")


def datagram_server(_: Scene) -> None:
    """Sends datagrams to the first process that sends one."""
    servers.main("datagrams", "datagrams")


def waiting(load: Callable[[Path], Load], scene: Scene) -> None:
    """Train on batches that the main thread waits for."""
    train(load(scene.data), STEP_SECONDS)


def beside(count: int, worker: Callable[[Scene], Worker], scene: Scene) -> None:
    """Processes that never have a batch ready."""
    started_workers(FORK.Queue(), worker(scene), count)
    threading.Event().wait()


LOOPS: dict[str, Callable[[Scene], None]] = {
    "healthy": healthy,
    "prep_inline": partial(fed, 0, partial(burning, 6 * STEP_SECONDS)),
    "inline_reading": partial(fed, 0, partial(reading, 0.001, cpu_seconds=6 * STEP_SECONDS)),
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
    "datagram_server": datagram_server,
    **{name: partial(waiting, load) for name, load in asynchronous.LOADS.items()},
    "hog": partial(beside, 1, partial(burning, _FOREVER)),
    "hogs": partial(beside, CORES + 1, partial(burning, _FOREVER)),
    "disk_hogs": partial(beside, 2, partial(reading, _FOREVER)),
}


def main(loop: str, gpus: str, parent: str, *cgroups: str) -> None:
    """Enter the control groups, hold the GPUs, and loop forever."""
    die_with_parent(int(parent))
    for cgroup in cgroups:
        (Path(cgroup) / "cgroup.procs").write_text("0")
    held = tuple(hold(index) for index in range(int(gpus)))
    LOOPS[loop](Scene(Board(Path(os.environ["STACKS_BOARD"])), held, FOLDER))


if __name__ == "__main__":
    main(*sys.argv[1:])
