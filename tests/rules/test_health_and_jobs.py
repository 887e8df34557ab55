"""What is wrong with the GPU itself, what nobody uses, and jobs that do not start or move.

Each row is a GPU on a node of its own and what is told of it, minute by minute. promtool names
the node in what it says of a failure: that is the row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.cases import fleets_of, gpu_of, gpus, node_of, rows, table
from rules.fleet import FILES, GROUPS, JOB, Fleet, add_gpu, changed, job

MINUTES = 90
USUAL = (20, 45, 75)
"""Asked at these minutes, it is no matter of one minute more or less."""
QUIET = "20,45,75 -"
BASES = gpus("bases")
LEAN, IDLE, FREE = (BASES[name] for name in ("lean", "idle", "free"))
"""Busy, and without what these causes do not ask for; held, and nothing moves; nobody's."""
HALF = pytest.mark.parametrize("half", [0, 1], ids=["each minute", "every other minute"])
"""Each of the two fleets takes promtool long enough to be a test."""


@HALF
def test_what_is_wrong_with_the_gpu(half: int, tmp_path: Path) -> None:
    rows = table("telemetry", "faults", "clocks", "links", told=QUIET)
    fleets_of(rows, MINUTES, USUAL)[half].check(tmp_path)


@HALF
def test_who_holds_it_and_does_not_use_it(half: int, tmp_path: Path) -> None:
    rows = table("starts", "holders", "servers", "stops", told=QUIET)
    fleet = fleets_of(rows, MINUTES, USUAL)[half]
    if half == 1:
        add_blind(fleet)
        fleet.gauge("up", 0, job=JOB, instance="no-gpu-exporter")
        fleet.expect_firing("no-gpu-exporter", 30)
    fleet.check(tmp_path)


def add_blind(fleet: Fleet) -> None:
    """Nodes on which some causes cannot be determined, and such as only look like it."""
    for name, row in rows("blind").items():
        node = node_of(name)
        add_gpu(fleet, node, gpu_of(row))
        fleet.expect_firing(node, 85)
        fired = f'ALERTS{{alertname="GpuCausesBlind",alertstate="firing",instance="{node}"}}'
        kinds = {f'{{blind="{kind}",severity="info"}}': 1.0 for kind in row.get("told", "").split()}
        for minute, answer in ((59, {}), (85, kinds)):
            fleet.expect(minute, f"sum by (blind, severity) ({fired})", answer)
        fleet.end(node, 85)


def test_without_thresholds_only_that_is_told(tmp_path: Path) -> None:
    fleet = Fleet(30, files=FILES[1:], groups=GROUPS[2:], thresholds_evaluated=True)
    add_gpu(fleet, "starved", changed(BASES["fed"], busy=0.1, stalls={"host_code": 0.9}))
    add_gpu(fleet, "hot", HOT)
    add_gpu(fleet, "idle", changed(IDLE, owner=job(1)))
    add_gpu(fleet, "free", FREE)
    query = 'count by (alertname, severity) (ALERTS{alertstate="firing"})'
    expected = {'{alertname="GpuThresholdsMissing",severity="warning"}': 1.0}
    fleet.expect(4, query, {})
    fleet.expect(6, query, expected)
    fleet.expect(30, query, expected)
    fleet.expect(30, "gpu:held:bool", {})  # not: nobody holds one
    fleet.check(tmp_path)


HOT = changed(LEAN, throttle={"hw_thermal": 0.5, "sw_thermal": 0.5}, clock=0.4)


def test_with_thresholds_nothing_is_missing(tmp_path: Path) -> None:
    """Other fleets have the same numbers as series."""
    fleet = Fleet(10, thresholds_evaluated=True)
    add_gpu(fleet, "hot", HOT)
    fleet.expect(9, 'ALERTS{alertname="GpuThresholdsMissing"}', {})
    fleet.expect_firing("hot", 9, "GpuHardwareSlowdown/warning")
    fleet.check(tmp_path)
