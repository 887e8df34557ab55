"""`check` where parts of the exporter are switched off."""

from __future__ import annotations

from collections.abc import Callable

from gpu_bottleneck_exporter.check import COMPLETE, check
from gpu_bottleneck_exporter.driver.board import H100, Board
from gpu_bottleneck_exporter.driver.virtual import VirtualDriver
from gpu_bottleneck_exporter.settings import Settings

READERS = frozenset(
    {
        *("utilization", "activity", "power", "throttle", "processes", "xid"),
        *("stall", "feeders", "workload", "host"),
    }
)
"""Collectors that read a signal, of the GPU or of the host."""


def test_what_no_collector_reads_is_no_gap(make_board: Callable[..., Board]) -> None:
    board = make_board(gpus=[H100])
    settings = Settings(interval_seconds=0.2, disabled_collectors=READERS)
    report = check(settings, lambda: VirtualDriver(board))
    driver, gpu, *rest = report.lines
    assert driver.startswith("driver ")
    assert gpu.startswith("gpu 0 ")
    assert (report.status, rest) == (COMPLETE, ["everything is available"])
