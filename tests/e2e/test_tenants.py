"""Real processes that share virtual GPUs: each has its own time, which adds up to the GPU's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e import loop_in_turns
from fake_nvml.build import build
from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, create
from support.board_exporter import Exporter, over_nvml
from support.daemon import get
from support.tools import require
from support.waiting import until

ALONE, CHURN = 2, 3
TURNS = {
    0: {1001: 0.03, 1002: 0.07},
    1: dict.fromkeys(range(2001, 2005), 0.05),
    ALONE: {3001: 0.05},
    CHURN: {4001: 0.02, 4002: 0.05, 4003: 0.05},
}
"""Seconds of a kernel by Slurm job, by GPU."""
SECONDS = 60.0


BUSY, IDLE = "gpu_busy_seconds_total", "gpu_stall_seconds_total"
TENANTS_BUSY, TENANTS_IDLE = "gpu_tenant_busy_seconds_total", "gpu_tenant_stall_seconds_total"
Seconds = dict[tuple[str, str], float]
"""Seconds by metric and GPU, and those of each tenant by GPU and tenant."""


def scrape(exporter: Exporter) -> Seconds:
    _, text = get(exporter.port or 0, "/metrics")
    sums = defaultdict[tuple[str, str], float](float)
    for family in text_string_to_metric_families(text.decode()):
        for name, labels, value, *_ in family.samples:
            if name in {BUSY, IDLE, TENANTS_BUSY, TENANTS_IDLE}:
                sums[name, labels["gpu"]] += value
            if name == TENANTS_BUSY:
                sums[labels["gpu"], labels["tenant"]] += value
    return sums


class Loops:
    """Loops on the GPUs of a board, each of which is a Slurm job."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, gpu: int, job: int, seconds: float) -> None:
        words = [
            sys.executable,
            loop_in_turns.__file__,
            f"{self._board.path}",
            f"{gpu}",
            f"{seconds}",
        ]
        self._running[job] = subprocess.Popen(words, env={**os.environ, "SLURM_JOB_ID": f"{job}"})

    def stop(self, job: int) -> None:
        loop = self._running.pop(job)
        loop.kill()
        loop.wait()

    def stop_all(self) -> None:
        for job in [*self._running]:
            self.stop(job)


@pytest.fixture(scope="module")
def minute(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seconds]:
    """Seconds that a minute added, in which two jobs of the last GPU restart in turn."""
    require("cc", "gcc libc6-dev")
    folder = tmp_path_factory.mktemp("tenants")
    library = build(folder / "library")
    with create(folder / "board", [H100] * len(TURNS)) as board, ExitStack() as ends:
        faulty = board.gpus[CHURN].record
        faulty.ring_samples, faulty.process_zombies, faulty.process_means = 4, 3, 1
        loops = Loops(board)
        ends.callback(loops.stop_all)
        for gpu, jobs in TURNS.items():
            for job, seconds in jobs.items():
                loops.start(gpu, job, seconds)
        exporter = ends.enter_context(over_nvml(library, board.path))
        named = sum(len(jobs) for gpu, jobs in TURNS.items() if gpu != ALONE)
        until(lambda: sum("slurm" in name for _, name in scrape(exporter)) == named, "all tenants")
        before, end = scrape(exporter), time.monotonic() + SECONDS
        for job in cycle([*TURNS[CHURN]][1:]):
            loops.stop(job)
            time.sleep(random.uniform(0.1, 3.0))  # noqa: S311
            loops.start(CHURN, job, TURNS[CHURN][job])
            time.sleep(random.uniform(0.5, 4.0))  # noqa: S311
            if time.monotonic() > end:
                break
        yield {key: value - before.get(key, 0.0) for key, value in scrape(exporter).items()}


def shares(minute: Seconds, gpu: str) -> dict[str, float]:
    busy = minute[BUSY, gpu]
    return {name: value / busy for (of, name), value in minute.items() if of == gpu}


def test_turns_of_30_and_70_percent(minute: Seconds) -> None:
    by_tenant = shares(minute, "0")
    assert sum(by_tenant.values()) == pytest.approx(1, abs=1e-6)
    by_job = {name.split("-")[1]: share for name, share in by_tenant.items() if "-" in name}
    assert by_job == pytest.approx({"1001": 0.3, "1002": 0.7}, abs=0.01)


def test_four_of_a_quarter_are_one_gpu(minute: Seconds) -> None:
    by_tenant = shares(minute, "1")
    assert [by_tenant[name] for name in by_tenant if "-" in name] == pytest.approx(
        [0.25] * 4, abs=0.01
    )
    assert minute[BUSY, "1"] + minute[IDLE, "1"] >= 0.9 * SECONDS


@pytest.mark.parametrize("gpu", ["0", "1", "3"])
def test_sums_over_tenants_are_the_time_of_the_gpu(minute: Seconds, gpu: str) -> None:
    assert minute[TENANTS_BUSY, gpu] == pytest.approx(minute[BUSY, gpu], abs=1e-6)
    assert minute.get((TENANTS_IDLE, gpu), 0.0) == pytest.approx(minute[IDLE, gpu], abs=1e-6)


def test_no_tenant_that_comes_and_goes_loses_seconds(minute: Seconds) -> None:
    by_tenant = shares(minute, "3")
    assert all(share > 0 for name, share in by_tenant.items() if "-" in name)
    assert sum("-" in name for name in by_tenant) == len(TURNS[CHURN])


def test_a_gpu_with_one_tenant_has_no_series_of_tenants(minute: Seconds) -> None:
    assert minute[BUSY, "2"] > 0
    assert not {(TENANTS_BUSY, "2"), (TENANTS_IDLE, "2")} & minute.keys()
