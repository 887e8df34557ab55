"""Measures the exporter next to nvitop-exporter and next to a loop that only sleeps.

    python tests/bench/beside.py [SECONDS]

Each row is one run of all three, at the same time, on one stand-in for the driver's library: the
exporter with its default settings, nvitop-exporter with its own (both read once a second), and
`floor.py`. Each GPU has its own real main process and workers (`crowd.py`). CPU time is that of the
whole process as the kernel counts it, without start-up, with a scrape of both every 4 s. Shares
vary by half with the machine's other load; the ratios within a row do not.

nvitop-exporter is installed into a separate virtual environment below this one. Both exporters map
the stand-in's board, which no real driver has: memory figures exclude it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from bench.crowd import BUSY, IN_TURNS, STARVED, bystanders, feeders
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.create import H100, create
from gpu_bottleneck_exporter.sampling.watching import STEADY_PASS_SECONDS
from support.board_exporter import over_nvml
from support.daemon import HOST, daemon, free_port, get

NVITOP = "nvitop-exporter==1.7.2"
WARM_UP_SECONDS = 20.0
"""A GPU must stay the same for 10 s before its feeders are read less often."""
MEASURED_SECONDS = 45.0
SCRAPE_EVERY_SECONDS = 4.0
ACCEPT = {"Accept-Encoding": "gzip"}


class Node(NamedTuple):
    """What is measured."""

    gpus: int
    workers: int
    """In total, over all GPUs."""
    others: int = 0
    """Processes unrelated to GPUs."""
    doing: str = BUSY


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


class Cost(NamedTuple):
    """The cost of one process."""

    cpu: float
    """Share of one core."""
    resident_bytes: int


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
    node: Node, seconds: float, nvitop: Path | None, warm_up: float = WARM_UP_SECONDS
) -> Costs:
    """Run all at the same time; without `nvitop`, only the others."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        library = build(folder / "lib")
        board = stack.enter_context(create(folder / "board", gpus=[H100] * node.gpus))
        stack.enter_context(bystanders(node.others))
        stack.enter_context(feeders(board, node.workers // node.gpus, node.doing))
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
        ours, slept, *theirs = _costs(pids, ports, seconds)
        return Costs(ours, theirs[0] if theirs else None, slept)


def _costs(pids: list[int], ports: list[int], seconds: float) -> list[Cost]:
    before, began = [cpu_seconds(pid) for pid in pids], time.monotonic()
    due = began
    while (now := time.monotonic()) < began + seconds:
        if now >= due:
            due += SCRAPE_EVERY_SECONDS
            for port in ports:
                get(port, "/metrics", ACCEPT)
        time.sleep(min(0.5, seconds / 4))
    elapsed = time.monotonic() - began
    used = [cpu_seconds(pid) - first for pid, first in zip(pids, before, strict=True)]
    return [Cost(u / elapsed, resident_bytes(pid)) for u, pid in zip(used, pids, strict=True)]


def cpu_seconds(pid: int) -> float:
    """CPU time of process `pid`, with ns resolution: its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def resident_bytes(pid: int) -> int:
    """Memory of process `pid`, without the stand-in's board."""
    maps = psutil.Process(pid).memory_maps()
    return sum(one.rss for one in maps if Path(one.path).name != "board")


@contextlib.contextmanager
def _floor(gpus: int) -> Iterator[int]:
    command = [sys.executable, f"{Path(__file__).with_name('floor.py')}"]
    command += [f"{gpus}", f"{STEADY_PASS_SECONDS}"]
    with subprocess.Popen(command, env=dict(os.environ)) as process:
        try:
            yield process.pid
        finally:
            process.kill()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else MEASURED_SECONDS)
