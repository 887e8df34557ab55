"""Measures what the exporter costs: CPU time, memory, and the size and latency of a scrape.

    python tests/bench/exporter_cost.py

Each row is a separate exporter process with the default settings (a tick of 1 s, all collectors) on
virtual GPUs that are busy in bursts: through the driver in Python, and through pynvml on a stand-in
for the driver's library. The stand-in answers faster than a GPU, so the second shows what the
exporter itself spends. CPU time is that of the whole process as the kernel counts it, without
start-up: first without scrapes, then with some, which gives the share for one scrape every 15 s.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import http.client
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from fake_nvml.build import build
from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.exposition.render import Families
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from support.beside import repeated
from support.board_exporter import HOST, Exporter, over_board, over_nvml
from support.daemon import get
from support.samplers import sampling
from support.waiting import until

VIRTUAL, NVML = "virtual board", "NVML stand-in"
DRIVERS = (VIRTUAL, NVML)
GPU_COUNTS = (1, 8, 16)
RENDERED_GPUS = 8
WARM_UP_SECONDS = 3.0
QUIET_SECONDS = 20.0
SCRAPES = 8
SCRAPE_EVERY_SECONDS = 15.0
TICK_SECONDS = 1.0
BUSY_SECONDS, PERIOD_SECONDS = 0.15, 0.5
RENDERINGS = 50
ACCEPT_TEXT = "text/plain;version=0.0.4"
ACCEPT = f"application/openmetrics-text;version=1.0.0,{ACCEPT_TEXT};q=0.5,*/*;q=0.1"
"""The Accept header of Prometheus 2.42."""


@dataclass(frozen=True)
class Scrape:
    """One response."""

    seconds: float
    packed_bytes: int
    plain_bytes: int
    series: int


@dataclass(frozen=True)
class Cost:
    """What one exporter process took."""

    ticks_share: float
    """Share of one core, without scrapes."""
    scrape_seconds: float
    """CPU time of one scrape."""
    resident_bytes: int
    scrape: Scrape
    """The one with the median latency."""

    @property
    def share(self) -> float:
        """Share of one core, with a scrape every `SCRAPE_EVERY_SECONDS`."""
        return self.ticks_share + self.scrape_seconds / SCRAPE_EVERY_SECONDS


class Meter:
    """CPU time of a process since this object was created or last read."""

    def __init__(self, pid: int) -> None:
        # As clock_getcpuclockid(3): utime + stime of /proc/PID/stat, but in nanoseconds
        # instead of steps of 10 ms.
        self._clock = (~pid << 3) | 2
        self._last = time.clock_gettime(self._clock)

    def seconds(self) -> float:
        """CPU seconds since the last call."""
        before, self._last = self._last, time.clock_gettime(self._clock)
        return self._last - before


class Scraper:
    """Scrapes as Prometheus does: one connection, gzip, OpenMetrics."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection(HOST, port)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def scrape(self) -> Scrape:
        """One scrape."""
        began = time.perf_counter()
        headers = {"Accept": ACCEPT, "Accept-Encoding": "gzip"}
        self._connection.request("GET", "/metrics", headers=headers)
        packed = self._connection.getresponse().read()
        seconds = time.perf_counter() - began
        body = gzip.decompress(packed)
        series = sum(not line.startswith(b"#") for line in body.splitlines())
        return Scrape(seconds, len(packed), len(body), series)


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


def measure(driver: str, gpus: int) -> Cost:
    """Start an exporter, measure it, stop it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        exporter(driver, Path(folder), gpus) as running,
        contextlib.closing(Scraper(running.port)) as scraper,
    ):
        scraper.scrape()  # part of start-up: the first one has more to do
        time.sleep(WARM_UP_SECONDS)
        meter = Meter(running.process.pid)
        time.sleep(QUIET_SECONDS)
        ticks_share = meter.seconds() / QUIET_SECONDS
        began = time.monotonic()
        scrapes = [_scrape_of_a_new_tick(scraper) for _ in range(SCRAPES)]
        scraping = meter.seconds() - ticks_share * (time.monotonic() - began)
        resident = psutil.Process(running.process.pid).memory_info().rss
    middle = sorted(scrapes, key=lambda scrape: scrape.seconds)[SCRAPES // 2]
    return Cost(ticks_share, max(scraping, 0) / SCRAPES, resident, middle)


def _scrape_of_a_new_tick(scraper: Scraper) -> Scrape:
    time.sleep(1.1 * TICK_SECONDS)  # scrapes within a tick share the rendering
    return scraper.scrape()


def cost_rows() -> list[list[str]]:
    """The costs as the rows of a table."""
    head = ["driver", "GPUs", "CPU, scrape every 15 s", "of it ticks", "CPU per scrape"]
    head += ["RSS", "scrape, plain", "gzip", "series", "latency, median"]
    rows = [head]
    for driver in DRIVERS:
        for gpus in GPU_COUNTS:
            cost = measure(driver, gpus)
            row = [driver, f"{gpus}", f"{cost.share:.2%}", f"{cost.ticks_share:.2%}"]
            row += [f"{1e3 * cost.scrape_seconds:.1f} ms", f"{cost.resident_bytes / 2**20:.1f} MiB"]
            row += [f"{cost.scrape.plain_bytes} B", f"{cost.scrape.packed_bytes} B"]
            row += [f"{cost.scrape.series}", f"{1e3 * cost.scrape.seconds:.1f} ms"]
            rows.append(row)
    return rows


def rendering_rows() -> list[list[str]]:
    """CPU time of rendering alone, without the server and gzip."""
    with (
        tempfile.TemporaryDirectory() as folder,
        boards(Path(folder), RENDERED_GPUS) as board,
        sampling(lambda: VirtualDriver(board), Settings()) as sampler,
    ):
        until(lambda: _has_data(sampler), "a reading", unless=lambda: not sampler.alive)
        # Ticks continue in their threads: only this thread's time counts.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Families(sampler, ALL))
        rows = [["rendering, 8 GPUs", "CPU, median"]]
        for name, accept in (("text", ACCEPT_TEXT), ("OpenMetrics", ACCEPT)):
            encoder, _ = choose_encoder(accept)
            rows.append([name, f"{_median_ms(functools.partial(encoder, registry)):.1f} ms"])
    return rows


def _has_data(sampler: Sampler) -> bool:
    gpus = sampler.state().gpus
    return len(gpus) == RENDERED_GPUS and all(gpu.totals.observed_ns for gpu in gpus)


def _median_ms(render: Callable[[], bytes]) -> float:
    times = []
    for _ in range(RENDERINGS):
        began = time.thread_time()
        render()
        times.append(1e3 * (time.thread_time() - began))
    return median(times)


def table(rows: list[list[str]]) -> str:
    """A Markdown table; the first row is the header."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def main() -> None:
    """Print both tables."""
    if shutil.which("cc") is None:
        sys.exit("no C compiler for the stand-in: apt-get install gcc libc6-dev")
    sys.stdout.write(table(rendering_rows()) + "\n\n")
    sys.stdout.flush()
    sys.stdout.write(table(cost_rows()) + "\n")


if __name__ == "__main__":
    main()
