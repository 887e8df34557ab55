from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.driver.board import Board, VirtualGpu, create
from support.board_exporter import over_board
from support.daemon import free_port, get, wait_until
from support.prometheus import Prometheus, QueryError, prometheus
from support.tools import require

BUSY = "gpu_busy_seconds_total"
OBSERVED = "gpu_observed_seconds_total"
SCRAPED_EVERY = 0.5


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """A board with one GPU that works all the time."""
    with create(tmp_path / "board") as created, working(created.gpus[0]):
        yield created


@contextlib.contextmanager
def working(gpu: VirtualGpu) -> Iterator[None]:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            gpu.run(0.2)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def shows(server: Prometheus, promql: str, accept: Callable[[float], bool]) -> None:
    """Wait until `promql` has a value that `accept` likes."""

    def seen() -> bool:
        try:
            return accept(server.value(promql))
        except QueryError:  # not scraped yet
            return False

    wait_until(seen, promql, give_up=lambda: False)


def test_an_exporter_that_was_killed_and_restarted_is_one_counter_reset(
    tmp_path: Path, board: Board
) -> None:
    port = free_port()
    with prometheus(tmp_path, [("gpu", f"127.0.0.1:{port}", SCRAPED_EVERY)]) as server:
        shows(server, "up", lambda up: up == 0)
        began = time.monotonic()
        with over_board(board.path, port) as exporter:
            shows(server, BUSY, lambda seconds: seconds > 4)
            assert server.value("up") == 1
            exporter.process.kill()
            shows(server, "up", lambda up: up == 0)
        assert server.query(BUSY) == []
        with over_board(board.path, port):
            shows(server, BUSY, lambda seconds: seconds > 1)
            assert server.value("up") == 1
        elapsed = time.monotonic() - began
        assert server.value(f"resets({BUSY}[1m])") == 1
        busy = server.value(f"increase({BUSY}[1m])")
        assert 2 < busy < elapsed
        assert busy == pytest.approx(server.value(f"increase({OBSERVED}[1m])"), rel=0.1)


def test_promtool_finds_nothing_to_say_of_a_scrape(board: Board) -> None:
    promtool = require("promtool", "prometheus")
    with over_board(board.path) as exporter:
        wait_until(
            lambda: BUSY in scrape(exporter.port),
            BUSY,
            give_up=lambda: exporter.process.poll() is not None,
        )
        body = scrape(exporter.port)
    check = subprocess.run(
        [promtool, "check", "metrics"], input=body, capture_output=True, text=True, check=False
    )
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def scrape(port: int) -> str:
    """The format that promtool reads."""
    return get(port, "/metrics", {"Accept": "text/plain;version=0.0.4"})[1].decode()
