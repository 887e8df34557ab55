"""Cost of each abuse; another user's GPU and job, and a restart, lose nothing by it."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from faults.abuses import ABUSES, SLEEPS, Abuse, Node
from gpu_bottleneck_exporter.commands.serve import ExporterContent
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.host import aside
from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.sampling import sampler as sampling
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.server import WebServer
from jobs.held import jobs, keeping
from support.board import Board
from support.disks import small_disk
from support.drivers import Libraries
from support.logged import logged
from support.rights import NOBODY, as_user
from support.samplers import EVERY_TICK
from support.waiting import PATIENCE_SECONDS, until

Log = Callable[[], list[str]]


@contextmanager
def running(settings: Settings, board: Board, libraries: Libraries, log: Log) -> Iterator[Node]:
    """A node that serves until the end of the block."""
    fatal: list[str] = []
    ledger, listener = Ledger(settings), bind("127.0.0.1:0")
    sampler = Sampler(
        lambda: libraries.open(board), EVERY_TICK, settings, fatal.append, [ledger.enqueue]
    )
    server = WebServer(ExporterContent(sampler, settings, ledger), listener)
    thread = threading.Thread(target=server.serve)
    port = listener.getsockname()[1]
    ledger.start(sampler)
    sampler.start()
    thread.start()
    try:
        yield Node(board, sampler, port, Path(settings.jobs_state_file), log)
    finally:
        server.stop()
        thread.join(PATIENCE_SECONDS)
        sampler.stop()
        ledger.stop(PATIENCE_SECONDS)
    assert fatal == []


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    """Warnings and errors so far, without those about a busy machine."""

    def lines() -> list[str]:
        result = logged(caplog, logging.WARNING)
        return [line for line in result if not line.startswith("starved of CPU")]

    return lines


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of a node whose file of jobs is on a small disk."""
    for calls in (aside.memory_reads, aside.socket_queries, aside.proc_reads):
        monkeypatch.setattr(calls, "_timeout", aside.CALL_TIMEOUT_SECONDS)
    brief = replace(CADENCE, event_timeout_seconds=0.1)  # its thread ends that much later
    monkeypatch.setattr(sampling, "CADENCE", brief)
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, 8192):
        yield Settings(
            interval_seconds=0.2,
            deadline_seconds=PATIENCE_SECONDS / 4,
            jobs_state_file=f"{folder / 'jobs'}",
        )


@pytest.mark.parametrize("abuse", ABUSES, ids=lambda abuse: abuse.name)
def test_an_abuse_costs_the_documented_loss_and_others_nothing(
    abuse: Abuse,
    settings: Settings,
    make_board: Callable[..., Board],
    libraries: Libraries,
    log: Log,
) -> None:
    board = make_board(gpus=[H100, H100])
    with (
        running(settings, board, libraries, log) as node,
        node.holding(SLEEPS, gpu=1, way=as_user(NOBODY)),
    ):
        with abuse.provoke(node):
            before = times(node)
            until(lambda: all(map(operator.lt, before, times(node))), "time of the other")
        ids = {job["id"] for job in node.jobs()}
    with keeping(jobs_state_file=settings.jobs_state_file) as ledger:
        assert {job["id"] for job in jobs(ledger)} >= ids
    assert len(log()) <= 1, log()


def times(node: Node) -> tuple[float, float]:
    """Observed seconds of GPU 1, scraped and in its job; 0.0 while its feeders are not shown."""
    job = node.runs(1)
    assert job is not None
    assert node.document(1)["up"]
    metrics, gpu = node.metrics(), {"gpu": "1"}
    fed = metrics.total("gpu_feeder_processes", **gpu) == 1
    seconds = metrics.total("gpu_observed_seconds_total", **gpu) if fed else None
    return seconds or 0.0, float(job["gpus"][0].get("observed_seconds") or 0.0)
