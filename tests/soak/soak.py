"""Runs the exporter for many ticks in a hurry and looks whether it grows.

    PYTHONPATH=tests python -m soak.soak [TICKS]

The real server on pynvml and the stand-in for the driver's library, all waits divided by 100
(`hurried.py`), while processes come and go and GPUs fail (`churn.py`), it is scraped without pause,
its page is looked at, clients hang up, and its web configuration changes. Memory, descriptors
and threads must be the same over the second half as over the first, but for the warm-up; and when
all is over, descriptors and threads must be as many as at the start. Prints the figures; the exit
status is 1 where one grew.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psutil

from fake_nvml.build import build
from gpu_bottleneck_exporter.driver.board import H100, Board, create
from support.daemon import HOST, free_port, get, wait_until

TICKS = 100_000
GPUS = 4
HURRY = 100.0
SAMPLES = 60
SETTLED_TRIES = 100
_SCRAPES = ("text/plain", "application/openmetrics-text;version=1.0.0")
_POLICIES = ("no-referrer", "same-origin")


class Figures(NamedTuple):
    """Of the process, at one moment."""

    ticks: int
    mebibytes: float
    descriptors: int
    threads: int


class Allowed(NamedTuple):
    """How much more over the second half is no growth."""

    mebibytes: float = 3.0
    """The allocator keeps what a peak took, in steps; of a long run, 100 bytes a tick are more."""
    descriptors: float = 32
    """Processes come and go, by chance more of them in one half."""
    threads: float = 0


LEFT = 2
"""So many more descriptors may be open when all is over."""
BEGUN = 1
"""The thread that reads the memory of processes begins with the first of them."""


class Result(NamedTuple):
    """Of one run."""

    quiet: Figures
    """Before the churn."""
    run: list[Figures]
    settled: Figures
    """When it was over."""
    scrapes: int
    reloads: int


def grown(result: Result, allowed: Allowed) -> list[str]:
    """What grew, in plain sentences."""
    first, second = _halves(result.run)
    said = []
    for name, most in allowed._asdict().items():
        before, after = (median(getattr(one, name) for one in half) for half in (first, second))
        if after > before + most:
            said.append(f"{name} grew from {before:.1f} to {after:.1f} while it ran")
    for name, most in (("descriptors", LEFT), ("threads", BEGUN)):
        before, after = getattr(result.quiet, name), getattr(result.settled, name)
        if after > before + most:
            said.append(f"{name}: {before} before, and {after} when all was over")
    return said


def _halves(run: Sequence[Figures]) -> tuple[Sequence[Figures], Sequence[Figures]]:
    """Without the first third, in which it warms up."""
    warm = run[len(run) // 3 :]
    return warm[: len(warm) // 2], warm[len(warm) // 2 :]


def soak(ticks: int, tell: Callable[[Figures], object] = lambda _: None) -> Result:
    """Run it for so many ticks, summed over GPUs."""
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
                run = list(_watched(server, ticks, tell))
            return Result(quiet, run, server.settled(quiet), *done())


class Server:
    """The exporter in a hurry."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.port = port
        self._ticks = 0
        self._process = process
        self._watched = psutil.Process(process.pid)
        threading.Thread(target=self._listen, daemon=True).start()

    def figures(self) -> Figures:
        """Now. Raises RuntimeError when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the exporter ended with status {self._process.returncode}")
        with self._watched.oneshot():
            return Figures(
                self._ticks,
                self._watched.memory_info().rss / 2**20,
                self._watched.num_fds(),
                self._watched.num_threads(),
            )

    def settled(self, before: Figures | None) -> Figures:
        """When nothing happens any more: as it was `before`, or the last of many tries."""
        found = self.figures()
        for _ in range(SETTLED_TRIES):
            time.sleep(0.1)
            found, last = self.figures(), found
            if before and found.descriptors <= before.descriptors + 1:
                if found.threads <= before.threads + BEGUN:
                    break
            elif not before and found[2:] == last[2:] and found.ticks > last.ticks > 100:
                break
        return found

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._ticks = int(line)


@contextlib.contextmanager
def _served(library: Path, board: Board, config: Path) -> Iterator[Server]:
    port = free_port()
    command = [sys.executable, f"{Path(__file__).with_name('hurried.py')}", f"{HURRY}", f"{port}"]
    places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board.path}"}
    places["PYTHONPATH"] = os.pathsep.join([f"{Path(__file__).parents[1]}", *sys.path])
    log = board.path.with_name("log")
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, f"{config}"],
            env={**os.environ, **places},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            wait_until(
                lambda: get(port, "/-/ready")[0] == http.client.OK,
                "the exporter",
                give_up=lambda: process.poll() is not None,
            )
            yield Server(process, port)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {log.read_text()[-2000:]}") from error
        finally:
            process.kill()


@contextlib.contextmanager
def _churn(board: Board) -> Iterator[None]:
    command = [sys.executable, f"{Path(__file__).with_name('churn.py')}"]
    with subprocess.Popen([*command, f"{os.getpid()}", f"{board.path}", "1"]) as process:
        try:
            yield
        finally:
            process.terminate()


@contextlib.contextmanager
def _clients(port: int, config: Path) -> Iterator[Callable[[], tuple[int, int]]]:
    """Scrape, look at the page, hang up, change the configuration; how often the first and last."""
    stop, counts = threading.Event(), [0, 0]

    def scrape() -> None:
        while not stop.wait(0.02):
            for accept in _SCRAPES:
                headers = {"Accept": accept, "Accept-Encoding": "gzip"}
                counts[0] += get(port, "/metrics", headers)[0] == http.client.OK
            get(port, "/")
            with contextlib.suppress(OSError), socket.create_connection((HOST, port)) as one:
                one.send(b"GET /metrics HTTP/1.1\r\n")

    def reload() -> None:
        while not stop.wait(0.2):
            counts[1] += 1
            _configure(config, counts[1])

    threads = [threading.Thread(target=scrape), threading.Thread(target=reload)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: (counts[0], counts[1])
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _configure(path: Path, turn: int) -> None:
    """Replaced at once, as Kubernetes does it."""
    new = path.with_suffix(".new")
    policy = _POLICIES[turn % len(_POLICIES)]
    new.write_text(f"http_server_config:\n  headers:\n    X-Frame-Options: deny\n# {policy}\n")
    new.rename(path)


def _watched(server: Server, ticks: int, tell: Callable[[Figures], object]) -> Iterator[Figures]:
    step = max(ticks // SAMPLES, 1)
    start = server.figures().ticks
    while (now := server.figures()).ticks < start + ticks:
        tell(now)
        yield now
        while server.figures().ticks < now.ticks + step:
            time.sleep(0.05)


def main(ticks: int) -> int:
    """Print the figures; the exit status."""
    print("| ticks | RSS, MiB | descriptors | threads |\n|---:|---:|---:|---:|", flush=True)

    def tell(now: Figures) -> None:
        print(
            f"| {now.ticks} | {now.mebibytes:.1f} | {now.descriptors} | {now.threads} |", flush=True
        )

    result = soak(ticks, tell)
    for word, one in (("before", result.quiet), ("after", result.settled)):
        print(f"{word}: {one.descriptors} descriptors, {one.threads} threads")
    print(f"{result.scrapes} scrapes, {result.reloads} changes of the configuration")
    said = grown(result, Allowed())
    print("\n".join(said) or "nothing grew")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else TICKS))
