"""Short real loops back to back: what the ledger has of each is what the loop itself recorded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from e2e import loop_of_a_job
from gpu_bottleneck_exporter.demo.board.create import create
from support.board_exporter import Exporter, over_board
from support.judging import settled
from support.waiting import until

SECONDS = (5, 3, 8, 4, 6, 3, 5, 4, 7, 5)
WITHIN = 0.01
TICKS_SECONDS = 0.02
"""A process starts at a tick of 10 ms, and it takes as long to see that it has ended."""


@dataclass
class Record:
    """The record of a loop, by itself or by the ledger."""

    pid: int
    lasted: float
    busy: float
    causes: tuple[str, ...] = ()


def jobs(exporter: Exporter) -> list[dict[str, Any]]:
    with urlopen(f"http://{exporter.target}/api/v1/jobs") as answer:
        values: list[dict[str, Any]] = json.load(answer)["jobs"]
    return values[::-1]


def loop(board: Path, seconds: float) -> Record:
    began = time.monotonic()
    command = [sys.executable, loop_of_a_job.__file__, f"{board}", f"{seconds}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        busy = float(process.stdout.read())
        process.wait()
        return Record(process.pid, time.monotonic() - began, busy)


def recorded(job: dict[str, Any]) -> Record:
    (gpu,) = job["gpus"]
    stalls = gpu["stall_seconds"]
    assert gpu["observed_seconds"] == pytest.approx(gpu["busy_seconds"] + sum(stalls.values()))
    largest = sorted(stalls, key=lambda cause: -stalls[cause])
    return Record(0, gpu["observed_seconds"], gpu["busy_seconds"], tuple(largest))


def measure(folder: Path) -> list[tuple[Record, Record]]:
    with create(folder / "board") as board, over_board(board.path) as exporter:
        until(lambda: not jobs(exporter), "it serves")
        time.sleep(3)  # the driver's clock is known well after some ticks
        own = [loop(board.path, seconds) for seconds in SECONDS]

        def all_charged() -> list[dict[str, Any]] | None:
            job_rows = jobs(exporter)
            ended = all(job["end_seconds"] for job in job_rows)
            return job_rows if len(job_rows) == len(SECONDS) and ended else None

        until(all_charged, lambda: jobs(exporter))
        time.sleep(3)  # until the last windows are in
        return list(zip(own, map(recorded, jobs(exporter)), strict=True))


def off(pairs: list[tuple[Record, Record]]) -> list[str]:
    """Jobs with wrong busy or idle seconds."""
    values = []
    for own, ledger in pairs:
        busy, idle = ledger.busy - own.busy, ledger.lasted - ledger.busy - own.lasted + own.busy
        line = f"{own.lasted:6.2f} s: busy {own.busy:.3f} {busy:+.3f}, idle {idle:+.3f}, {ledger}"
        print(line)  # noqa: T201 - for `pytest -s` and for failures
        allowed = WITHIN * own.lasted + TICKS_SECONDS
        if max(abs(busy), abs(idle)) > allowed:
            values.append(line)
    return values


@pytest.mark.alone
def test_each_of_ten_short_jobs_is_charged_its_own_record(tmp_path: Path) -> None:
    assert off(settled(lambda: measure(tmp_path), off)) == []
