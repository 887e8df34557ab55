"""Measures how well the busy time that Prometheus computes agrees with the truth.

    python tests/e2e/accuracy.py

Two exporters, one over the driver in Python and one over pynvml and a stand-in for the
driver's library, watch one virtual GPU that works in bursts. One real Prometheus scrapes
each every 5 s and every 15 s. For comparison: what an exporter would say that asks the
driver at each scrape for its current utilization, the mean of the last 1/6 s.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

if __name__ == "__main__":  # pytest has the folder of all tests in its path
    sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import VirtualGpu
from gpu_bottleneck_exporter.demo.board.create import create
from gpu_bottleneck_exporter.demo.board.layout import SLOT_NS
from support.beside import repeated
from support.board_exporter import over_board, over_nvml
from support.prometheus import Prometheus, Samples, prometheus
from support.tools import require

SECONDS = 75.0
INTERVALS = (5.0, 15.0)
BUSY_SECONDS, IDLE_SECONDS = 0.15, 0.35
JITTER = 0.3
"""Bursts and pauses vary by this share; of a fixed length they would beat with the scrapes."""


class Result(NamedTuple):
    """One driver, scraped at one interval; errors are absolute, in shares of time."""

    driver: str
    interval: float
    truth: float
    """Share of the time between the first and the last scrape in which the GPU was busy."""
    accounted: float
    """Share of the elapsed time that the exporter calls either observed or unobserved."""
    mean: float
    """Error of the mean over all scrapes."""
    worst: float
    """Largest error of a single scrape, for the interval that ends with it."""
    snapshots_mean: float
    snapshots_worst: float


class Bursts:
    """Runs bursts of work on a GPU and keeps book of them."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self._gpu = gpu
        self._random = random.Random(20)  # noqa: S311 - no secret
        self._bursts: list[tuple[int, int]] = []

    def run(self) -> None:
        """A pause and a burst."""
        time.sleep(self._about(IDLE_SECONDS))
        duration = round(self._about(BUSY_SECONDS) * 1e9)
        end = self._gpu.launch(duration / 1e9)
        self._bursts.append((end - duration, end))
        self._gpu.synchronize(end)

    def share(self, start_ns: int, end_ns: int) -> float:
        """Share of the time from `start_ns` to `end_ns` in which the GPU was busy."""
        parts = (min(end, end_ns) - max(start, start_ns) for start, end in self._bursts)
        return sum(part for part in parts if part > 0) / (end_ns - start_ns)

    def _about(self, seconds: float) -> float:
        return seconds * self._random.uniform(1 - JITTER, 1 + JITTER)


def measure(folder: Path) -> list[Result]:
    """Let bursts run and be watched; `folder` is left as it was."""
    require("prometheus", "prometheus")
    with tempfile.TemporaryDirectory(dir=folder) as name:
        home = Path(name)
        library = build(home / "library")
        with (
            create(home / "board") as board,
            over_board(board.path) as virtual,
            over_nvml(library, board.path) as nvml,
        ):
            exporters = {"virtual board": virtual, "NVML stand-in": nvml}
            bursts = Bursts(board.gpus[0])
            pairs = [*product(exporters, INTERVALS)]
            jobs = [(_job(*pair), exporters[pair[0]].target, pair[1]) for pair in pairs]
            with repeated(bursts.run), prometheus(home, jobs) as server:
                time.sleep(SECONDS)
                window_ns = int(board.gpus[0].record.period_slots) * SLOT_NS
                return [_result(server, bursts, window_ns, *pair) for pair in pairs]


def _job(driver: str, interval: float) -> str:
    return f"{driver} {interval:g} s"


def _result(
    server: Prometheus, bursts: Bursts, window_ns: int, driver: str, interval: float
) -> Result:
    selector = f'{{job="{_job(driver, interval)}"}}'
    # In one query: between two, there may be a scrape.
    both = server.matrix(f'{{__name__=~"gpu_(busy|observed)_seconds_total",{selector[1:]}')
    fields = {labels["__name__"]: samples for labels, samples in both}
    busy, observed = fields["gpu_busy_seconds_total"], fields["gpu_observed_seconds_total"]
    # Monotonic time of each scrape: Prometheus notes it by the wall clock.
    wall_ns = time.time_ns() - time.monotonic_ns()
    scrapes = [round(at * 1e9) - wall_ns for at, _ in busy]
    truth = bursts.share(scrapes[0], scrapes[-1])
    elapsed = busy[-1][0] - busy[0][0]
    # A millisecond more than elapsed: since Prometheus 3 a range is open on its left.
    span, end = f"[{round(elapsed * 1000) + 1}ms]", busy[-1][0]

    def increase(what: str) -> float:
        return server.value(f"increase(gpu_{what}_seconds_total{selector}{span})", end)

    truths = [bursts.share(start, end) for start, end in pairwise(scrapes)]
    windows = [_last_window(bursts, at, window_ns) for at in scrapes[1:]]
    return Result(
        driver,
        interval,
        truth,
        accounted=(increase("observed") + increase("unobserved")) / elapsed,
        mean=abs(increase("busy") / increase("observed") - truth),
        worst=_worst(_rates(busy, observed), truths),
        snapshots_mean=abs(fmean(windows) - truth),
        snapshots_worst=_worst(windows, truths),
    )


def _rates(busy: Samples, observed: Samples) -> list[float]:
    steps = zip(pairwise(busy), pairwise(observed), strict=True)
    return [(b1 - b0) / (o1 - o0) for ((_, b0), (_, b1)), ((_, o0), (_, o1)) in steps]


def _last_window(bursts: Bursts, at_ns: int, window_ns: int) -> float:
    """Current utilization at `at_ns` as the driver reports it: that of its last window."""
    end = at_ns // window_ns * window_ns
    return bursts.share(end - window_ns, end)


def _worst(estimates: Sequence[float], truths: Sequence[float]) -> float:
    return max(abs(e - t) for e, t in zip(estimates, truths, strict=True))


def table(results: Sequence[Result]) -> str:
    """The results in Markdown, errors in percentage points."""
    head = "| driver | scraped every | busy in truth | exporter: mean | worst | snapshots: mean |"
    rows = [f"{head} worst |", "|---" * 7 + "|"]
    for result in results:
        points = " | ".join(f"{100 * error:.2f}" for error in result[4:])
        rows.append(f"| {result.driver} | {result.interval:g} s | {result.truth:.2%} | {points} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(measure(Path(tempfile.gettempdir()))))  # noqa: T201 - a script prints
