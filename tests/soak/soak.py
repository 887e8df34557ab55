"""Runs the exporter for many accelerated ticks and checks whether it grows.

    PYTHONPATH=tests python -m soak.soak [TICKS]

The real server on pynvml and the stand-in for the driver's library, all waits divided by 100
(`hurried.py`), with stacks and a ledger on disk. Meanwhile processes come and go and GPUs fail
(`churn.py`), fifty hostile processes take turns on the GPUs (`hostile.py`), it is scraped without
pause, its pages are loaded, clients hang up or do not read, and its web configuration changes.
After the warm-up, memory, descriptors and threads must be the same over the second half as over the
first; at the end, descriptors and threads must be as many as at the start. Prints the figures, and
fails if one grew.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from support.beside import repeated
from support.daemon import HOST, daemon, free_port, get, post
from support.waiting import until

TICKS = 100_000
GPUS = 4
HURRY = 100.0
SAMPLES = 60
_TICKS = re.compile(r"^\d+$", re.MULTILINE)
"""The number of ticks, in its output."""
_PATHS = os.pathsep.join([f"{Path(__file__).parents[1]}", *sys.path])
_SCRAPES = ("text/plain", "application/openmetrics-text;version=1.0.0")


class Figures(NamedTuple):
    """Figures of the process at one moment."""

    ticks: int
    mebibytes: float
    descriptors: int
    threads: int


ALLOWED = {"mebibytes": 3.0, "descriptors": 32, "threads": 4}
"""Rise from the first to the second half that does not count as growth. The allocator keeps the
memory of a peak; in a long run, 100 bytes a tick exceed this. Processes come and go, by chance more
in one half; helper threads follow the number of calls at a time."""
FIRST_TICKS = 1000
"""Ticks after which it has started."""
CHURNED = 10
"""Descriptors that it has open of the processes, at least."""
SCRAPED = 10
"""Least number of scrapes, changes of the configuration, and lists of jobs."""
UNREAD = 12
"""Clients at a time that ask for all jobs and do not read the answer."""
LEFT = 2
"""How many more descriptors may be open at the end."""
BEGUN = 10
"""Helper threads that stay: of three pools (memory, sockets, stacks) one for each caller at a time,
and those that look users up."""


def grown(run: list[Figures], allowed: Mapping[str, float] = ALLOWED) -> list[str]:
    """Growth of more than `allowed`, in plain sentences."""
    warm = run[len(run) // 3 :]
    halves = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    values = []
    for name, most in allowed.items():
        before, after = (median(getattr(item, name) for item in half) for half in halves)
        if after > before + most:
            values.append(f"{name} grew from {before:.1f} to {after:.1f} while it ran")
    return values


def soak(ticks: int, tell: Callable[[Figures], object] = lambda _: None) -> list[Figures]:
    """The figures while it runs for these ticks, summed over GPUs, under some load."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, port = Path(name), free_port()
        config, log = folder / "web.yml", folder / "log"
        _configure(config, 0)
        board = stack.enter_context(create(folder / "board", gpus=[H100] * GPUS))
        library = build(folder / "lib")
        places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board.path}"}
        command = _program("hurried.py", HURRY, port, config, folder / "jobs.sqlite")
        places |= {"PYTHONPATH": _PATHS}
        pid = stack.enter_context(daemon(command, port, "/-/ready", log, places))
        server = psutil.Process(pid)

        def figures() -> Figures:
            """The figures now. Raises if it has ended."""
            result = log.read_text()
            assert server.status() != psutil.STATUS_ZOMBIE, result[-2000:]
            count = max(map(int, _TICKS.findall(result)), default=0)
            resident = server.memory_info().rss / 2**20
            return Figures(count, resident, server.num_fds(), server.num_threads())

        for path in ("/metrics", "/"):  # which start a thread each
            get(port, path)
        until(lambda: figures().ticks > FIRST_TICKS, "the first ticks")
        quiet = figures()

        def settled() -> bool:
            now = figures()
            few = now.descriptors <= quiet.descriptors + LEFT
            return few and now.threads <= quiet.threads + BEGUN

        with _churn(board), _clients(port, config) as done:
            # It takes its time to start, in which the ticks would be over.
            until(lambda: figures().descriptors > quiet.descriptors + CHURNED, "churn")
            run = [figures()]
            while run[-1].ticks < run[0].ticks + ticks or min(done[:2]) <= SCRAPED:
                tell(run[-1])
                due = run[-1].ticks + max(ticks // SAMPLES, 1)
                until(lambda: figures().ticks >= due, "more ticks")  # noqa: B023
                run.append(figures())
        until(settled, lambda: f"{quiet} before, and {figures()} when all was over")
        return run


def _program(name: str, *arguments: object) -> list[str]:
    """The words that run a program of this folder."""
    return [sys.executable, f"{Path(__file__).with_name(name)}", *map(str, arguments)]


@contextlib.contextmanager
def _churn(board: Board) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in ("churn.py", "hostile.py"):
            command = _program(name, os.getpid(), board.path, 1)
            places = {**os.environ, "PYTHONPATH": _PATHS}
            process = stack.enter_context(subprocess.Popen(command, env=places))
            stack.callback(process.terminate)
        yield


@contextlib.contextmanager
def _clients(port: int, config: Path) -> Iterator[list[int]]:
    """Scrape, load pages, hang up, do not read, change the configuration.

    Yields counts of scrapes, of changes, and of lists of jobs.
    """
    counts = [0, 0, 0]

    def scrape() -> None:
        for accept in _SCRAPES:
            headers = {"Accept": accept, "Accept-Encoding": "gzip"}
            counts[0] += get(port, "/metrics", headers)[0] == http.client.OK
        get(port, "/")
        with contextlib.suppress(OSError), socket.create_connection((HOST, port)) as client:
            client.send(b"GET /metrics HTTP/1.1\r\n")

    def crowd() -> None:
        if gpus := _json(port, "/api/v1/node").get("gpus"):
            post(port, f"/api/v1/stacks?gpu={random.choice(gpus)['uuid']}", "")  # noqa: S311
        with contextlib.ExitStack() as stack:
            for number in range(UNREAD):
                client = stack.enter_context(socket.create_connection((HOST, port)))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.send(b"GET /api/v1/jobs?since=%d HTTP/1.1\r\nHost: x\r\n\r\n" % number)
            counts[2] += len(_json(port, "/api/v1/jobs").get("jobs", ())) > 0

    def reload() -> None:
        counts[1] += 1
        _configure(config, counts[1])

    with repeated(scrape, 0.02), repeated(reload, 0.2), repeated(crowd, 0.5):
        yield counts


def _json(port: int, path: str) -> Mapping[str, Any]:
    """The document at `path`; empty if the server was too busy for it."""
    status, body = get(port, path)
    return json.loads(body) if status == http.client.OK else {}


def _configure(path: Path, turn: int) -> None:
    """Replace it atomically, as Kubernetes does."""
    new = path.with_suffix(".new")
    new.write_text(f"http_server_config:\n  headers:\n    X-Frame-Options: deny\n# {turn}\n")
    new.rename(path)


def main(ticks: int) -> None:
    """Print the figures; ends with status 1 if one grew."""
    print("| ticks | RSS, MiB | descriptors | threads |\n|---:|---:|---:|---:|", flush=True)

    def tell(now: Figures) -> None:
        print(
            f"| {now.ticks} | {now.mebibytes:.1f} | {now.descriptors} | {now.threads} |", flush=True
        )

    if result := grown(soak(ticks, tell)):
        sys.exit("\n".join(result))
    print("nothing grew")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TICKS)
