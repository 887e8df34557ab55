"""Measures the exporter next to nvitop-exporter.

    python tests/bench/beside.py [--seconds SECONDS] [--quota CORES]
    python tests/bench/beside.py --crowds

Each row is one run of both, at the same time, on one stand-in for the driver's library: the
exporter with its default settings, nvitop-exporter with its own (both read once a second). Each GPU
has its own real main process and workers (`crowd.py`). CPU time is that of the whole process as the
kernel counts it, without start-up, with a scrape of both every 4 s. Shares vary by half with the
machine's other load; the ratios within a row do not. With --quota, both share a CPU quota, as on a
slower machine (root).

With --crowds, it is the exporter alone, scraped once a second, next to a job with many processes or
threads whose GPUs starve: it looks closely at all of them, and finds nothing.

nvitop-exporter is installed into a separate virtual environment below this one. Both exporters map
the stand-in's board, which no real driver has: memory figures exclude it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from bench.crowd import ASLEEP, CROWD, IN_TURNS, MIXED, STARVED, Node, feeders
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.create import H100, create
from scenarios.cgroups import Limits, limited
from support.board_exporter import over_nvml
from support.daemon import HOST, daemon, free_port, get

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
    Node(8, 64, doing=CROWD),
    Node(8, 64, doing=MIXED),
    Node(1, 8),
    Node(2, 16),
    Node(4, 32),
    Node(16, 128),
    Node(8, 256),
    Node(8, 64, others=1000),
)
CROWDS = {
    "a main alone": Node(1, doing=ASLEEP),
    "512 workers": Node(1, 512, doing=ASLEEP),
    "2 000 threads": Node(1, threads=2000, doing=ASLEEP),
    "200 forks a second": Node(1, forks=200, doing=ASLEEP),
    "5 000 other processes": Node(1, others=5000, doing=ASLEEP),
    "5 000 workers": Node(1, 5000, doing=ASLEEP),
    "5 000 workers of a main on 8 GPUs": Node(8, 5000, mains=1, doing=ASLEEP),
}


_LOOPS = 10_000_000
"""Turns of an empty loop that measure the speed of a machine."""


class Cost(NamedTuple):
    """The cost of one process."""

    cpu: float
    """Share of one core."""
    switches: float
    """Context switches a second."""
    resident_bytes: int
    scrapes: Sequence[float]
    """Seconds that each of the exporter took."""


def main(seconds: float, quota: float | None) -> None:
    """Print the table; `quota`: CPUs that both may use together."""
    program = install()
    print(
        f"{os.cpu_count()} CPUs; {_loop_seconds():.2f} s for {_LOOPS:,} turns of a loop", end="\n\n"
    )
    head = "| GPUs | workers | other processes | GPUs are | of nvitop-exporter | exporter "
    head += "| nvitop-exporter | switches/s | RSS, exporter | RSS, nvitop-exporter |"
    print(head, "|---:|---:|---:|---|" + "---:|" * 6, sep="\n", flush=True)
    for node in NODES:
        ours, theirs = measure(node, seconds, program, quota=quota)
        cells = [f"{node.gpus} | {node.workers} | {node.others} | {node.doing}"]
        cells += [f"**{ours.cpu / theirs.cpu:.2f}** | {ours.cpu:.2%} | {theirs.cpu:.2%}"]
        cells += [f"{ours.switches:.0f}"]
        cells += [f"{cost.resident_bytes / 2**20:.1f} MiB" for cost in (ours, theirs)]
        print(f"| {' | '.join(cells)} |", flush=True)


def crowds() -> None:
    """Print the other table."""
    head = "| Of one starved GPU | Of a core | RSS | A scrape, median / longest |"
    print(head, "|---|---:|---:|---:|", sep="\n", flush=True)
    for name, node in CROWDS.items():
        (cost,) = measure(node, 30.0, None, every=1.0)
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
    every: float = SCRAPE_EVERY_SECONDS,
    quota: float | None = None,
) -> list[Cost]:
    """The cost of the exporter and, if there is one, of `nvitop` at the same time."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        library = build(folder / "lib")
        board = stack.enter_context(create(folder / "board", gpus=[H100] * node.gpus))
        stack.enter_context(feeders(board, node))
        exporter = stack.enter_context(over_nvml(library, board.path))
        pids, ports = [exporter.process.pid], [exporter.port]
        if nvitop:
            ports.append(free_port())
            places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board.path}"}
            command = [f"{nvitop}", "--bind-address", HOST, "--port", f"{ports[-1]}"]
            log = folder / "nvitop.log"
            pids.append(stack.enter_context(daemon(command, ports[-1], "/metrics", log, places)))
        for group in stack.enter_context(limited(Limits(cpu_cores=quota), folder)):
            for pid in pids:
                (group / "cgroup.procs").write_text(f"{pid}")
        time.sleep(WARM_UP_SECONDS)
        before, began = [*map(_used, pids)], time.monotonic()
        scrapes = list(_scraped(ports, seconds, every))
        after, elapsed = [*map(_used, pids)], time.monotonic() - began
        return [
            Cost(
                (now[0] - then[0]) / elapsed,
                (now[1] - then[1]) / elapsed,
                _resident_bytes(pid),
                scrapes,
            )
            for pid, then, now in zip(pids, before, after, strict=True)
        ]


def _loop_seconds() -> float:
    began = time.thread_time()
    for _ in range(_LOOPS):
        pass
    return time.thread_time() - began


def _scraped(ports: Sequence[int], seconds: float, every: float) -> Iterator[float]:
    """Scrape all for this time; yields the durations of the first scrapes."""
    began = due = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        if now >= due:
            due += every
            get(ports[0], "/metrics", ACCEPT)
            yield time.monotonic() - now
            for port in ports[1:]:
                get(port, "/metrics", ACCEPT)
        time.sleep(min(0.5, seconds / 4))


def _used(pid: int) -> tuple[float, int]:
    """CPU seconds of process `pid`, and context switches of its threads.

    CPU time has ns resolution: it is that of its clock (clock_getcpuclockid(3)).
    """
    cpu = time.clock_gettime((~pid << 3) | 2)
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    lines = [line for text in texts for line in text.splitlines() if "ctxt_switches" in line]
    return cpu, sum(int(line.split()[1]) for line in lines)


def _resident_bytes(pid: int) -> int:
    """Memory of process `pid`, without the stand-in's board."""
    maps = psutil.Process(pid).memory_maps()
    return sum(item.rss for item in maps if Path(item.path).name != "board")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=MEASURED_SECONDS)
    parser.add_argument("--quota", type=float, metavar="CORES")
    parser.add_argument("--crowds", action="store_true")
    wanted = parser.parse_args()
    if wanted.crowds:
        crowds()
    else:
        main(wanted.seconds, wanted.quota)
