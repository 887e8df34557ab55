"""A process that holds virtual GPUs and runs work on them, or a client of one.

    python tests/causes/holder.py ROLE PARENT JOB

JOB is a `Job` in JSON. What holds the GPUs is a child that is born when all begin: the exporter
takes its age for that of the job. It runs until it is killed or PARENT ends. It launches kernels
without waiting for them, so that it takes little CPU time.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.demo.orphans import die_with_parent

_PERIODS_SECONDS = 0.2, 0.6
"""Random, so that it never runs in step with the exporter."""
_ASKS_SECONDS = 0.8, 1.6
"""Long enough to see when a server waits for its GPU and when for a client."""
_KERNEL_SECONDS = 0.5
_AHEAD_NS = 1_500_000_000
"""Queued on a GPU that must have no gap, however late this process runs."""
_HOST = "127.0.0.1"
_PR_SET_PTRACER, _PR_SET_PTRACER_ANY = 0x59616D61, -1
"""Arguments of prctl; without the Yama module, the call does not exist and is not needed."""
_QUESTION = struct.Struct("d")


Job = Mapping[str, Any]
"""The job of a process: the path of the `board`, the monotonic time at which all `began`, the
`folder` where a server writes its port, and its `shares`: on each GPU, by `index`, what it holds of
the memory (`held`), the growth of that per second, and `phases`: (from second, busy share, `Work`).
"""


class Held:
    """One GPU that this process holds."""

    def __init__(self, gpu: VirtualGpu, share: Mapping[str, Any]) -> None:
        self._gpu = gpu
        self._share = share

    def hold(self, elapsed: float) -> None:
        """Allocate as much memory as is due."""
        held = min(self._share["held"] + self._share["growth"] * elapsed, 0.999)
        self._gpu.hold(os.getpid(), int(held * self._gpu.record.memory_total))

    def launch(self, elapsed: float, period: float) -> int:
        """Launch this many seconds of work; returns when it will end."""
        _, busy, work = [phase for phase in self._share["phases"] if phase[0] <= elapsed][-1]
        if busy >= 1:
            return self._launch_ahead(Work(**work))
        if busy > 0:
            return self._gpu.launch(busy * period, Work(**work))
        return 0

    def _launch_ahead(self, work: Work) -> int:
        end = 0
        while self._gpu.record.free_at_ns < time.monotonic_ns() + _AHEAD_NS:
            end = self._gpu.launch(_KERNEL_SECONDS, work)
        return end


def trains(job: Job, held: list[Held]) -> None:
    """Launch, and sleep until the next period."""
    for period in _periods(_PERIODS_SECONDS):
        elapsed = max(time.monotonic() - job["began"], 0.0)
        for gpu in held:
            gpu.hold(elapsed)
            gpu.launch(elapsed, period)


def serves(job: Job, held: list[Held]) -> None:
    """Run work on the GPU when a client asks, then answer."""
    with socket.create_server((_HOST, 0)) as listening:
        port = Path(job["folder"]) / "port"
        unfinished = port.with_suffix(".new")
        unfinished.write_text(str(listening.getsockname()[1]))
        unfinished.rename(port)
        while True:
            connection, _ = listening.accept()
            with connection:
                while request := connection.recv(_QUESTION.size):
                    elapsed = max(time.monotonic() - job["began"], 0.0)
                    VirtualGpu.synchronize(held[0].launch(elapsed, *_QUESTION.unpack(request)))
                    connection.sendall(b"!")


def asks(job: Job, _: list[Held]) -> None:
    """Ask the server once per period for that period's work."""
    port = Path(job["folder"]) / "port"
    while not port.exists():
        time.sleep(0.05)
    with socket.create_connection((_HOST, int(port.read_text()))) as connection:
        for period in _periods(_ASKS_SECONDS):
            connection.sendall(_QUESTION.pack(period))
            connection.recv(1)


def _periods(between: tuple[float, float]) -> Iterator[float]:
    """Lengths of periods, each yielded when it begins."""
    draw = random.Random(os.getpid())  # noqa: S311 - no secret
    begins = time.monotonic()
    while True:
        period = draw.uniform(*between)
        yield period
        begins += period
        time.sleep(max(begins - time.monotonic(), 0.0))


ROLES: dict[str, Callable[[Job, list[Held]], None]] = {
    "trains": trains,
    "notebook": trains,
    "serves": serves,
    "asks": asks,
}


def _begin() -> float:
    """Say that we are ready; the time at which all began. No pipe is left that would make kin."""
    os.write(1, b"!")
    began = float(sys.stdin.readline())
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return began


def main(role: str, parent: str, told: str) -> None:
    """Have a child hold the GPUs and run forever."""
    die_with_parent(int(parent))
    job = json.loads(told)
    board = Board(Path(job["board"]))
    job["began"] = _begin()
    me = os.getpid()
    if child := os.fork():
        os.waitpid(child, 0)
        return
    die_with_parent(me)
    # With Yama, only an ancestor or root may trace: the exporter is not always one.
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_PR_SET_PTRACER_ANY))
    held = [Held(board.gpus[share["index"]], share) for share in job["shares"]]
    for gpu in held:
        gpu.hold(0.0)
    ROLES[role](job, held)


if __name__ == "__main__":
    main(*sys.argv[1:])
