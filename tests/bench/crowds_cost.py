"""Measures what jobs with crowds of processes and threads cost the exporter.

    python tests/bench/crowds_cost.py [SITUATION...]

Each row is a separate exporter process (1 s tick, all collectors, pynvml on the stand-in library)
next to one job that holds starved GPUs, so that the exporter looks closely at its feeders and finds
nothing. CPU time and log are those of the exporter after a warm-up; it is scraped once a second.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from bench.beside import cpu_seconds
from bench.crowd import bystanders
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.orphans import die_with_parent
from support.board_exporter import Exporter, over_nvml
from support.daemon import get


@dataclass(frozen=True)
class Situation:
    """What the job does, in addition to holding `gpus`."""

    gpus: int = 1
    children: int = 0
    threads: int = 0
    forks_per_second: int = 0
    strangers: int = 0
    """Unrelated processes on the node."""


SITUATIONS = {
    "a main alone": Situation(),
    "512 workers": Situation(children=512),
    "2 000 threads": Situation(threads=2_000),
    "200 forks a second": Situation(forks_per_second=200),
    "5 000 other processes on the node": Situation(strangers=5_000),
    "5 000 workers": Situation(children=5_000),
    "5 000 workers of a main on 8 GPUs": Situation(gpus=8, children=5_000),
}
WARM_UP_SECONDS = 20.0
MEASURED_SECONDS = 30.0
_FORKED_SECONDS = 0.05


def main() -> None:
    """Print the table."""
    wanted = sys.argv[1:] or [*SITUATIONS]
    print("| job | CPU, of one core | RSS | open files | a scrape, median / longest | log |")
    print("|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder) / "lib")
        for number, name in enumerate(wanted):
            board = Path(folder) / f"board-{number}"
            print(f"| {name} | {measure(library, board, SITUATIONS[name])} |", flush=True)


def measure(library: Path, path: Path, job: Situation) -> str:
    """The cells of a row."""
    with (
        create(path, gpus=[H100] * job.gpus) as board,
        _running(board, job),
        over_nvml(library, path) as exporter,
    ):
        process = psutil.Process(exporter.process.pid)
        time.sleep(WARM_UP_SECONDS)
        before, began = cpu_seconds(process.pid), time.monotonic()
        logged = _log_bytes(exporter)
        scrapes = []
        while time.monotonic() < began + MEASURED_SECONDS:
            scrapes.append(_scrape_seconds(exporter))
            time.sleep(1.0)
        share = (cpu_seconds(process.pid) - before) / (time.monotonic() - began)
        cells = (
            f"{share:.1%}",
            f"{process.memory_info().rss / 2**20:.0f} MiB",
            f"{process.num_fds()}",
            f"{statistics.median(scrapes) * 1000:.0f} / {max(scrapes) * 1000:.0f} ms",
            f"{_log_bytes(exporter) - logged} B",
        )
        return " | ".join(cells)


def _scrape_seconds(exporter: Exporter) -> float:
    began = time.monotonic()
    get(exporter.port, "/metrics")
    return time.monotonic() - began


def _log_bytes(exporter: Exporter) -> int:
    """Size of the file that receives its standard error."""
    return Path(f"/proc/{exporter.process.pid}/fd/2").stat().st_size


@contextlib.contextmanager
def _running(board: Board, job: Situation) -> Iterator[None]:
    numbers = (job.gpus, job.children, job.threads, job.forks_per_second)
    words = [sys.executable, __file__, "--job", str(os.getpid()), str(board.path)]
    with bystanders(job.strangers), subprocess.Popen([*words, *map(str, numbers)]) as process:
        try:
            while not any(p.pid for p in board.gpus[-1].record.processes):
                time.sleep(0.1)
            yield
        finally:
            process.kill()


def _job(path: str, *numbers: str) -> None:
    gpus, children, threads, forks = map(int, numbers)
    for _ in range(children):
        _child()
    if threads:
        _start_threads(threads)
    board = Board(Path(path))
    for gpu in board.gpus[:gpus]:
        gpu.hold(os.getpid(), 2**30)
    while True:
        if forks:
            _come_and_go()
            time.sleep(1 / forks)
        else:
            time.sleep(60)


def _start_threads(number: int) -> None:
    import threading  # noqa: PLC0415 - crowds of children are to be small

    threading.stack_size(65_536)
    locked = threading.Lock()
    locked.acquire()
    for _ in range(number):
        threading.Thread(target=locked.acquire, daemon=True).start()


def _come_and_go() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if os.fork() == 0:
        time.sleep(_FORKED_SECONDS)
        os._exit(0)


def _child() -> None:
    parent = os.getpid()
    if os.fork() == 0:
        die_with_parent(parent)
        time.sleep(3600)
        os._exit(0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--job"]:
        die_with_parent(int(sys.argv[2]))
        _job(*sys.argv[3:])
    else:
        main()
