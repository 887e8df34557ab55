"""Measures the exporter next to nvitop-exporter and next to a loop that only sleeps.

    python tests/bench/beside.py [SECONDS]
    python tests/bench/beside.py --crowds

Each row is one run of all three, at the same time, on one stand-in for the driver's library: the
exporter with its default settings, nvitop-exporter with its own (both read once a second), and a
loop that only wakes, a thread per GPU once a second. Each GPU has its own real main process and
workers (`crowd.py`). CPU time is that of the whole process as the kernel counts it, without
start-up, with a scrape of both every 4 s. Shares vary by half with the machine's other load; the
ratios within a row do not.

With --crowds, it is the exporter alone, scraped once a second, next to a job with many processes or
threads whose GPUs starve: it looks closely at all of them, and finds nothing.

nvitop-exporter is installed into a separate virtual environment below this one. Both exporters map
the stand-in's board, which no real driver has: memory figures exclude it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from bench.crowd import ASLEEP, IN_TURNS, STARVED, Node, feeders
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.sampling.watching import STEADY_PASS_SECONDS
from support.board_exporter import over_nvml
from support.daemon import HOST, daemon, free_port, get

FLOOR = """
import sys, threading, time
def wake(seconds):
    while True: time.sleep(seconds)
for _ in range(int(sys.argv[1])): threading.Thread(target=wake, args=[1.0], daemon=True).start()
wake(float(sys.argv[2]))
"""
NVITOP = "nvitop-exporter==1.7.2"
WARM_UP_SECONDS = 20.0
"""A GPU must stay the same for 10 s before its feeders are read less often."""
MEASURED_SECONDS = 45.0
SCRAPE_EVERY_SECONDS = 4.0
ACCEPT = {"Accept-Encoding": "gzip"}
NODES = (
    Node(8, 0),
    Node(8, 64),
    Node(8, 64, doing=IN_TURNS),
    Node(8, 64, doing=STARVED),
    Node(1, 8),
    Node(2, 16),
    Node(4, 32),
    Node(16, 128),
    Node(8, 256),
    Node(8, 64, others=1000),
)
CROWDS = {
    "a main alone": Node(1, doing=ASLEEP),
    "mains of 8 GPUs": Node(8, doing=ASLEEP),
    "512 workers": Node(1, 512, doing=ASLEEP),
    "2 000 threads": Node(1, threads=2000, doing=ASLEEP),
    "200 forks a second": Node(1, forks=200, doing=ASLEEP),
    "5 000 other processes": Node(1, others=5000, doing=ASLEEP),
    "5 000 workers": Node(1, 5000, doing=ASLEEP),
    "5 000 workers of a main on 8 GPUs": Node(8, 5000, mains=1, doing=ASLEEP),
}


class Cost(NamedTuple):
    """The cost of one process."""

    cpu: float
    """Share of one core."""
    resident_bytes: int
    scrapes: Sequence[float] = ()
    """Seconds that each took, if it was scraped."""


class Costs(NamedTuple):
    """The costs of all three, in one run."""

    ours: Cost
    nvitop: Cost | None
    floor: Cost


def main(seconds: float) -> None:
    """Print the table."""
    program = install()
    head = "| GPUs | workers | other processes | GPUs are | of nvitop-exporter | exporter "
    head += "| nvitop-exporter | bare loop | RSS, exporter | RSS, nvitop-exporter |"
    print(head, "|---:|---:|---:|---|" + "---:|" * 6, sep="\n", flush=True)
    for node in NODES:
        print(row(node, measure(node, seconds, program)), flush=True)


def row(node: Node, costs: Costs) -> str:
    """One line of the table."""
    assert costs.nvitop is not None
    mebibytes = [f"{c.resident_bytes / 2**20:.1f} MiB" for c in (costs.ours, costs.nvitop)]
    shares = [f"{cost.cpu:.2%}" for cost in (costs.ours, costs.nvitop, costs.floor)]
    ratio = f"**{costs.ours.cpu / costs.nvitop.cpu:.2f}**"
    cells = [f"{node.gpus}", f"{node.workers}", f"{node.others}", node.doing, ratio]
    return f"| {' | '.join([*cells, *shares, *mebibytes])} |"


def crowds() -> None:
    """Print the other table."""
    head = "| Of one starved GPU | Of a core | RSS | A scrape, median / longest |"
    print(head, "|---|---:|---:|---:|", sep="\n", flush=True)
    for name, node in CROWDS.items():
        cost = measure(node, 30.0, None, every=1.0).ours
        took = f"{1000 * median(cost.scrapes):.0f} / {1000 * max(cost.scrapes):.0f} ms"
        used = f"{cost.cpu:.1%} | {cost.resident_bytes / 2**20:.0f} MiB"
        print(f"| {name} | {used} | {took} |", flush=True)


def install() -> Path:
    """Nvitop-exporter's program, in a separate environment that is created if missing."""
    folder = Path(sys.prefix) / "nvitop"
    program = folder / "bin" / "nvitop-exporter"
    if not program.exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [f"{folder / 'bin' / 'python'}", "-m", "pip", "install", "-q"]
        subprocess.run([*pip, NVITOP], check=True)
    return program


def measure(
    node: Node,
    seconds: float,
    nvitop: Path | None,
    warm_up: float = WARM_UP_SECONDS,
    every: float = SCRAPE_EVERY_SECONDS,
) -> Costs:
    """Run all at the same time; without `nvitop`, only the others."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        library = build(folder / "lib")
        board = stack.enter_context(create(folder / "board", gpus=[H100] * node.gpus))
        stack.enter_context(feeders(board, node))
        exporter = stack.enter_context(over_nvml(library, board.path))
        floor = stack.enter_context(_floor(node.gpus))
        pids, ports = [exporter.process.pid, floor], [exporter.port]
        if nvitop:
            ports.append(free_port())
            places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board.path}"}
            command = [f"{nvitop}", "--bind-address", HOST, "--port", f"{ports[-1]}"]
            log = folder / "nvitop.log"
            pids.append(stack.enter_context(daemon(command, ports[-1], "/metrics", log, places)))
        time.sleep(warm_up)
        scrapes: list[float] = []
        shares = cpu_shares(pids, lambda: scrapes.extend(_scraped(ports, seconds, every)))
        ours, slept, *theirs = map(Cost, shares, map(_resident_bytes, pids))
        return Costs(ours._replace(scrapes=scrapes), theirs[0] if theirs else None, slept)


def cpu_shares(pids: Sequence[int], work: Callable[[], object]) -> list[float]:
    """Shares of one core that processes take during `work`."""
    before, began = [_cpu_seconds(pid) for pid in pids], time.monotonic()
    work()
    elapsed = time.monotonic() - began
    return [(_cpu_seconds(p) - first) / elapsed for p, first in zip(pids, before, strict=True)]


def _scraped(ports: Sequence[int], seconds: float, every: float) -> Iterator[float]:
    """Scrape all for so long; yields how long the first ones take."""
    began = due = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if now >= due:
            due += every
            get(ports[0], "/metrics", ACCEPT)
            yield time.monotonic() - now
            for port in ports[1:]:
                get(port, "/metrics", ACCEPT)
        time.sleep(min(0.5, seconds / 4))


def _cpu_seconds(pid: int) -> float:
    """CPU time of process `pid`, with ns resolution: its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def _resident_bytes(pid: int) -> int:
    """Memory of process `pid`, without the stand-in's board."""
    maps = psutil.Process(pid).memory_maps()
    return sum(one.rss for one in maps if Path(one.path).name != "board")


@contextlib.contextmanager
def _floor(gpus: int) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", FLOOR, f"{gpus}", f"{STEADY_PASS_SECONDS}"]
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


if __name__ == "__main__":
    if sys.argv[1:] == ["--crowds"]:
        crowds()
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else MEASURED_SECONDS)
