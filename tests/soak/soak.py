"""Runs the exporter for many accelerated ticks and checks whether it grows.

    PYTHONPATH=tests python -m soak.soak [TICKS]

The real server on pynvml and the stand-in for the driver's library, all waits divided by 100
(`hurried.py`). Meanwhile processes come and go and GPUs fail (`churn.py`), it is scraped without
pause, its page is loaded, clients hang up, and its web configuration changes. After the warm-up,
memory, descriptors and threads must be the same over the second half as over the first; at the end,
descriptors and threads must be as many as at the start. Prints the figures; the exit status is 1 if
one grew.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from support.beside import repeated
from support.daemon import HOST, daemon, free_port, get
from support.waiting import PATIENCE_SECONDS, until

TICKS = 100_000
GPUS = 4
HURRY = 100.0
SAMPLES = 60
_TICKS = re.compile(r"^\d+$", re.MULTILINE)
"""What it says of itself."""
_PATHS = os.pathsep.join([f"{Path(__file__).parents[1]}", *sys.path])
_SCRAPES = ("text/plain", "application/openmetrics-text;version=1.0.0")


class Figures(NamedTuple):
    """Figures of the process at one moment."""

    ticks: int
    mebibytes: float
    descriptors: int
    threads: int


ALLOWED = {"mebibytes": 3.0, "descriptors": 32, "threads": 1}
"""How much more in the second half does not count as growth. The allocator keeps the memory of a
peak; in a long run, 100 bytes a tick exceed this. Processes come and go, by chance more in one
half; a thread may start late, with the first process that it reads."""
CHURNED = 10
"""Descriptors that it has open of the processes, at least."""
SCRAPED = 10
"""At least as many scrapes, and changes of the configuration."""
LEFT = 2
"""How many more descriptors may be open at the end."""
BEGUN = 3
"""The threads that read processes' memory, borrow their sockets and look users up start with the
first process."""


class Result(NamedTuple):
    """The figures of one run."""

    quiet: Figures
    """Before the churn."""
    run: list[Figures]
    settled: Figures
    """After the churn."""
    scrapes: int
    reloads: int


def grown(result: Result, mebibytes: float = ALLOWED["mebibytes"]) -> list[str]:
    """What grew, in plain sentences; so many MiB more are no growth."""
    warm = result.run[len(result.run) // 3 :]
    halves = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    said = []
    for name, most in {**ALLOWED, "mebibytes": mebibytes}.items():
        before, after = (median(getattr(one, name) for one in half) for half in halves)
        if after > before + most:
            said.append(f"{name} grew from {before:.1f} to {after:.1f} while it ran")
    for name, left in (("descriptors", LEFT), ("threads", BEGUN)):
        before, after = getattr(result.quiet, name), getattr(result.settled, name)
        if after > before + left:
            said.append(f"{name}: {before} before, and {after} when all was over")
    return said


def soak(ticks: int, tell: Callable[[Figures], object] = lambda _: None) -> Result:
    """Run it for this many ticks, summed over GPUs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, config = build(folder / "lib"), folder / "web.yml"
        _configure(config, 0)
        with (
            create(folder / "board", gpus=[H100] * GPUS) as board,
            _served(library, board, config) as server,
        ):
            for path in ("/metrics", "/"):  # which start a thread each
                get(server.port, path)
            quiet = server.settled(None)
            with _churn(board), _clients(server.port, config) as done:
                # It takes its time to start, in which the ticks would be over.
                until(lambda: server.figures().descriptors > quiet.descriptors + CHURNED, "churn")
                run = list(_watched(server, ticks, tell, lambda: min(done()) > SCRAPED))
            return Result(quiet, run, server.settled(quiet), *done())


class Server:
    """The accelerated exporter."""

    def __init__(self, pid: int, port: int, log: Path) -> None:
        self.port = port
        self._log = log
        self._watched = psutil.Process(pid)

    def figures(self) -> Figures:
        """The figures now. Raises RuntimeError if it has ended."""
        said = self._log.read_text()
        with self._watched.oneshot():
            if self._watched.status() == psutil.STATUS_ZOMBIE:
                raise RuntimeError(f"the exporter ended: {said[-2000:]}")
            return Figures(
                max(map(int, _TICKS.findall(said)), default=0),
                self._watched.memory_info().rss / 2**20,
                self._watched.num_fds(),
                self._watched.num_threads(),
            )

    def settled(self, before: Figures | None) -> Figures:
        """The figures once idle: as `before`, or the last when patience ends."""
        found, deadline = self.figures(), time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.1)
            found, last = self.figures(), found
            if before:
                few = found.descriptors <= before.descriptors + 1
                if few and found.threads <= before.threads + BEGUN:
                    break
            elif found[2:] == last[2:] and found.ticks > last.ticks > 100:
                break
        return found


def _program(name: str, *arguments: object) -> list[str]:
    """The words that run a program of this folder."""
    return [sys.executable, f"{Path(__file__).with_name(name)}", *map(str, arguments)]


@contextlib.contextmanager
def _served(library: Path, board: Board, config: Path) -> Iterator[Server]:
    port, log = free_port(), board.path.with_name("log")
    places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board.path}"}
    command = _program("hurried.py", HURRY, port, config)
    with daemon(command, port, "/-/ready", log, places | {"PYTHONPATH": _PATHS}) as pid:
        yield Server(pid, port, log)


@contextlib.contextmanager
def _churn(board: Board) -> Iterator[None]:
    command = _program("churn.py", os.getpid(), board.path, 1)
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": _PATHS}) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def _clients(port: int, config: Path) -> Iterator[Callable[[], tuple[int, int]]]:
    """Scrape, load the page, hang up, change the configuration; counts scrapes and changes."""
    counts = [0, 0]

    def scrape() -> None:
        for accept in _SCRAPES:
            headers = {"Accept": accept, "Accept-Encoding": "gzip"}
            counts[0] += get(port, "/metrics", headers)[0] == http.client.OK
        get(port, "/")
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)) as one:
            one.send(b"GET /metrics HTTP/1.1\r\n")

    def reload() -> None:
        counts[1] += 1
        _configure(config, counts[1])

    with repeated(scrape, 0.02), repeated(reload, 0.2):
        yield lambda: (counts[0], counts[1])


def _configure(path: Path, turn: int) -> None:
    """Replace it atomically, as Kubernetes does."""
    new = path.with_suffix(".new")
    new.write_text(f"http_server_config:\n  headers:\n    X-Frame-Options: deny\n# {turn}\n")
    new.rename(path)


def _watched(
    server: Server, ticks: int, tell: Callable[[Figures], object], enough: Callable[[], bool]
) -> Iterator[Figures]:
    """Figures for `ticks`, and on until `enough`."""
    step = max(ticks // SAMPLES, 1)
    start = server.figures().ticks
    while (now := server.figures()).ticks < start + ticks or not enough():
        tell(now)
        yield now
        while server.figures().ticks < now.ticks + step:
            time.sleep(0.05)


def main(ticks: int) -> int:
    """Print the figures; returns the exit status."""
    print("| ticks | RSS, MiB | descriptors | threads |\n|---:|---:|---:|---:|", flush=True)

    def tell(now: Figures) -> None:
        cells = f"{now.ticks}", f"{now.mebibytes:.1f}", f"{now.descriptors}", f"{now.threads}"
        print(f"| {' | '.join(cells)} |", flush=True)

    said = grown(soak(ticks, tell))
    print("\n".join(said) or "nothing grew")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else TICKS))
