from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import create
from support.beside import repeated
from support.board_exporter import over_board
from support.daemon import free_port
from support.prometheus import Prometheus, prometheus
from support.waiting import until

BUSY = "gpu_busy_seconds_total"
OBSERVED = "gpu_observed_seconds_total"
SCRAPED_EVERY = 0.5


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """A board with one GPU that works all the time."""
    with create(tmp_path / "board") as created:
        (gpu,) = created.gpus

        def work() -> None:
            if gpu.record.free_at_ns < time.monotonic_ns() + 10 * 10**9:
                gpu.launch(1.0)

        with repeated(work, 0.1):
            yield created


def await_value(server: Prometheus, comparison: str) -> None:
    """Wait until a comparison in PromQL holds of something."""
    until(lambda: server.query(comparison), comparison)


def test_an_exporter_that_was_killed_and_restarted_is_one_counter_reset(
    tmp_path: Path, board: Board
) -> None:
    port = free_port()
    with prometheus(tmp_path, [("gpu", f"127.0.0.1:{port}", SCRAPED_EVERY)]) as server:
        await_value(server, "up == 0")
        began = time.monotonic()
        with over_board(board.path, port) as exporter:
            await_value(server, f"{BUSY} > 4")
            await_value(server, "up == 1")
            exporter.process.kill()
            await_value(server, "up == 0")
        assert server.query(BUSY) == []
        with over_board(board.path, port):
            await_value(server, f"{BUSY} > 1")
            await_value(server, "up == 1")
        elapsed = time.monotonic() - began
        assert server.value(f"resets({BUSY}[1h])") == 1
        busy = server.value(f"increase({BUSY}[1h])")
        assert 2 < busy < elapsed
        assert busy == pytest.approx(server.value(f"increase({OBSERVED}[1h])"), rel=0.1)
