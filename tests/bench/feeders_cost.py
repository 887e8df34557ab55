"""Measures what watching feeders costs: CPU time and memory, by GPUs and workers.

    python tests/bench/feeders_cost.py

Each row is an exporter process of its own (1 s tick, all collectors, pynvml on the
stand-in library) beside real feeders: for each virtual GPU a main process and its
workers, which wake twenty times a second and sleep in a pipe meanwhile. A busy GPU has work all
the time; a starved one has none, so that its feeders are looked at closely and nothing is found.
CPU time is that of the exporter's process, start-up excluded.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from gpu_bottleneck_exporter.driver.board import H100, Board, create
from support.board_exporter import over_nvml

BUSY, STARVED = "busy", "starved"
ROWS = ((8, 0, BUSY), (8, 64, BUSY), (8, 64, STARVED), (16, 256, BUSY), (16, 256, STARVED))
"""GPUs, workers over all of them, and what the GPUs do."""
WARM_UP_SECONDS = 6.0
MEASURED_SECONDS = 30.0
WAKE_SECONDS = 0.05
_AHEAD_NS = 2_000_000_000


def main() -> None:
    """Print the table."""
    print("| GPUs | workers | GPUs are | CPU, of one core | RSS |")
    print("|---:|---:|---|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder) / "lib")
        for gpus, workers, doing in ROWS:
            share, resident = measure(library, Path(folder), gpus, workers, doing)
            cells = f"| {gpus} | {workers} | {doing} | {share:.2%} | {resident / 2**20:.0f} MiB |"
            print(cells, flush=True)


def measure(library: Path, folder: Path, gpus: int, workers: int, doing: str) -> tuple[float, int]:
    """Share of a core, and resident bytes, of an exporter with so many GPUs and workers."""
    path = folder / f"board-{gpus}-{workers}-{doing}"
    with (
        create(path, gpus=[H100] * gpus) as board,
        _feeders(board, workers // gpus, doing),
        over_nvml(library, path) as exporter,
    ):
        process = psutil.Process(exporter.process.pid)
        time.sleep(WARM_UP_SECONDS)
        before, began = _cpu_seconds(process), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        share = (_cpu_seconds(process) - before) / (time.monotonic() - began)
        return share, process.memory_info().rss


@contextlib.contextmanager
def _feeders(board: Board, workers_per_gpu: int, doing: str) -> Iterator[None]:
    command = [sys.executable, __file__, str(os.getpid()), str(board.path)]
    with contextlib.ExitStack() as stack:
        for index in range(len(board.gpus)):
            words = [*command, str(index), str(workers_per_gpu), doing]
            process = stack.enter_context(subprocess.Popen(words))
            stack.callback(process.kill)
        while not all(any(p.pid for p in gpu.record.processes) for gpu in board.gpus):
            time.sleep(0.1)
        yield


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _feed(parent: str, path: str, index: str, workers: str, doing: str) -> None:
    """A main process: hold the GPU, keep it busy or not, and wake its workers now and then."""
    die_with_parent(int(parent))
    context = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    for _ in range(int(workers)):
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(theirs, os.getpid()), daemon=True).start()
        pipes.append(ours)
    gpu = Board(Path(path)).gpus[int(index)]
    gpu.hold(os.getpid(), 2**30)
    while True:
        if doing == BUSY and gpu.record.free_at_ns < time.monotonic_ns() + _AHEAD_NS:
            gpu.launch(_AHEAD_NS / 1e9)
        for pipe in pipes:
            pipe.send_bytes(b"batch")
        time.sleep(WAKE_SECONDS)


def _work(pipe: Connection, parent: int) -> None:
    die_with_parent(parent)
    while True:
        pipe.recv_bytes()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _feed(*sys.argv[1:])
    else:
        main()
