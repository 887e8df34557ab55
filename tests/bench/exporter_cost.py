"""Measures what the exporter costs: CPU time, memory, and the size of a scrape.

    python tests/bench/exporter_cost.py

Each row is a separate exporter process with the default settings (a tick of 1 s, all collectors) on
virtual GPUs that are busy in bursts: through the driver in Python, and through pynvml on a stand-in
for the driver's library. The stand-in answers faster than a GPU, so the second shows what the
exporter itself spends. CPU time is that of the whole process as the kernel counts it, without
start-up: first without scrapes, then with some, which gives the share for one scrape every 15 s.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from bench.beside import cpu_seconds
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from support.beside import repeated
from support.board_exporter import Exporter, over_board, over_nvml
from support.daemon import get
from support.waiting import until

VIRTUAL, NVML = "virtual board", "NVML stand-in"
DRIVERS = (VIRTUAL, NVML)
GPU_COUNTS = (1, 8, 16)
WARM_UP_SECONDS = 3.0
QUIET_SECONDS = 20.0
SCRAPES = 8
SCRAPE_EVERY_SECONDS = 15.0
TICK_SECONDS = 1.0
BUSY_SECONDS, PERIOD_SECONDS = 0.15, 0.5
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
"""The Accept header of Prometheus 2.42."""


@contextlib.contextmanager
def boards(folder: Path, gpus: int) -> Iterator[Board]:
    """A board whose GPUs all work in bursts."""
    with create(folder / "board", [H100] * gpus) as board:

        def work() -> None:
            for gpu in board.gpus:
                gpu.launch(BUSY_SECONDS)

        with repeated(work, PERIOD_SECONDS):
            yield board


@contextlib.contextmanager
def exporter(driver: str, folder: Path, gpus: int) -> Iterator[Exporter]:
    """An exporter with its first readings."""
    with boards(folder, gpus) as board:
        if driver == VIRTUAL:
            started = over_board(board.path)
        else:
            started = over_nvml(build(folder / "library"), board.path)
        with started as running:
            until(
                lambda: get(running.port, "/-/ready")[0] == http.client.OK,
                "the exporter's first reading",
                unless=lambda: running.process.poll() is not None,
            )
            yield running


def row(driver: str, gpus: int) -> str:
    """Start an exporter, measure it, stop it: a line of the table."""
    with (
        tempfile.TemporaryDirectory() as folder,
        exporter(driver, Path(folder), gpus) as running,
    ):
        pid = running.process.pid
        scrape(running.port)  # part of start-up: the first one has more to do
        time.sleep(WARM_UP_SECONDS)
        before = cpu_seconds(pid)
        time.sleep(QUIET_SECONDS)
        ticks = (cpu_seconds(pid) - before) / QUIET_SECONDS
        before, began = cpu_seconds(pid), time.monotonic()
        for _ in range(SCRAPES):
            time.sleep(1.1 * TICK_SECONDS)  # scrapes within a tick share the rendering
            packed = scrape(running.port)
        spent = cpu_seconds(pid) - before - ticks * (time.monotonic() - began)
        resident = psutil.Process(pid).memory_info().rss
    a_scrape = max(spent, 0) / SCRAPES
    body = gzip.decompress(packed)
    cells = (
        driver,
        f"{gpus}",
        f"{ticks + a_scrape / SCRAPE_EVERY_SECONDS:.2%}",
        f"{resident / 2**20:.0f} MiB",
        f"{sum(not line.startswith(b'#') for line in body.splitlines())}",
        f"{len(body) / 1000:.0f} / {len(packed) / 1000:.0f} kB",
        f"{1e3 * a_scrape:.1f} ms",
    )
    return f"| {' | '.join(cells)} |"


def scrape(port: int) -> bytes:
    """What Prometheus is sent."""
    return get(port, "/metrics", {"Accept": ACCEPT, "Accept-Encoding": "gzip"})[1]


def main() -> None:
    """Print the table."""
    print("| driver | GPUs | CPU, of one core | RSS | series | a scrape, plain / gzip ", end="")
    print("| CPU per scrape |\n|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for driver in DRIVERS:
        for gpus in GPU_COUNTS:
            print(row(driver, gpus), flush=True)


if __name__ == "__main__":
    main()
