"""The name of the node, as alerts use it, in the ledger, the reports, the page and the document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_bottleneck_exporter.demo.board.create import H100
from jobs.held import process
from support.board import Board, create
from support.board_exporter import Exporter, over_nvml
from support.command import run
from support.drivers import Libraries
from support.waiting import until

NAME = ".".join(["node-7", *["gpu" * 20] * 4])
"""Nearly as long as the name of a node may be: 253 characters."""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    with create(tmp_path / "board", (H100, H100)) as created:
        yield created


def document(exporter: Exporter, path: str) -> dict[str, Any]:
    status, text = exporter.get(path)
    assert status == 200
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def work(exporter: Exporter, board: Board, count: int) -> None:
    """Let a process hold GPU 1 until `count` jobs have observed time."""
    with process() as holder:
        board.gpus[1].hold(holder.pid, 2**30)
        until(lambda: len(jobs(exporter)) == count, lambda: jobs(exporter))
        board.gpus[1].release(holder.pid)


def jobs(exporter: Exporter) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = document(exporter, "/api/v1/jobs")["jobs"]
    return [job for job in listed if job["observed_seconds"]]


def reported(exporter: Exporter, folder: Path, gpu: str) -> int:
    """The number of jobs that `report --gpu` finds."""
    done = run(folder, "report", "--gpu", gpu, "--url", exporter.target, "--format", "json")
    return len(json.loads(done.stdout)["jobs"]) if done.stdout else 0


def test_a_gpu_is_found_by_the_name_that_alerts_use_also_in_an_earlier_ledger(
    libraries: Libraries, board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = libraries.path(int(board.header.driver_branch))
    monkeypatch.setenv("GPU_EXPORTER_JOBS_STATE_FILE", f"{tmp_path / 'jobs'}")
    with over_nvml(library, board.path) as exporter:
        work(exporter, board, 1)
        assert exporter.terminate() == 0
    monkeypatch.setenv("GPU_EXPORTER_NODE_NAME", NAME)
    with over_nvml(library, board.path) as exporter:
        work(exporter, board, 2)
        assert document(exporter, "/api/v1/jobs")["node"] == NAME
        assert document(exporter, "/api/v1/node")["node"] == NAME
        assert NAME in exporter.get("/")[1]
        assert reported(exporter, tmp_path, f"{NAME}/1") == 2
        assert reported(exporter, tmp_path, f"{NAME}/0") == 0
