"""The exporter's pods are replaced in the middle of incidents and stalls.

Their own labels are on each series: each GPU is there twice for a while, with what the old pod
last said, and with what the new one says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rules.fleet import STALE, Fleet, Gpu, add_gpu

MINUTES = 90
ROLLOUT = 50
EACH_MINUTE = (ROLLOUT - 2, *range(ROLLOUT, ROLLOUT + 25))
OPERATORS = {"container": "exporter", "endpoint": "metrics", "service": "gpu", "namespace": "ops"}
"""What the Prometheus operator tells of the pod that is scraped."""
JOB = {"slurm_job_id": "7", "user": "ann"}
STARVED = Gpu(busy=0.2, stalls={"host_code": 0.8}, main_cpu=1.0, owner=JOB)


def replaced(fleet: Fleet, node: str, gpu: Gpu, index: int = 0, *, overlap: int = 0) -> None:
    """`gpu` of `node`, whose exporter's pod is replaced; both answer for `overlap` minutes."""
    for pod in ("old", "new"):
        first = len(fleet._series)
        target = {**OPERATORS, "pod": f"exporter-{pod}"}
        add_gpu(fleet, node, replace(gpu, target=target), index)
        for at, one in enumerate(fleet._series[first:], first):
            before, after = one.values[:ROLLOUT], one.values[ROLLOUT:]
            if pod == "old":
                ended = (*before, *after[:overlap], STALE)
                values = (*ended, *[None] * (len(one.values) - len(ended)))[: len(one.values)]
            else:
                counted = one.name.endswith("_total")
                start = (after[0] or 0.0) if counted else 0.0
                anew = [None if value is None else value - start for value in after]
                values = (*[None] * ROLLOUT, *anew)
            fleet._series[at] = replace(one, values=values)


def firing(fleet: Fleet, node: str, *alerts: str, minutes: tuple[int, ...] = EACH_MINUTE) -> None:
    for minute in minutes:
        fleet.expect_firing(node, minute, *alerts)


@pytest.mark.parametrize("overlap", [0, 3, 10])
def test_a_stall_goes_on(tmp_path: Path, overlap: int) -> None:
    fleet = Fleet(MINUTES)
    replaced(fleet, "stall", STARVED, overlap=overlap)
    firing(fleet, "stall", "GpuHostLoopBound/warning")
    for minute in EACH_MINUTE:
        owner = 'slurm_job_id="7",user="ann",workload_pod=""'
        fleet.expect(
            minute,
            f'count(gpu:bottleneck:lost_ratio{{cause="host_loop_bound",{owner}}})',
            {"{}": 1.0},
        )
    fleet.check(tmp_path)


@pytest.mark.parametrize("overlap", [0, 10])
def test_an_incident_goes_on(tmp_path: Path, overlap: int) -> None:
    fleet = Fleet(MINUTES)
    hot = Gpu(throttle={"sw_thermal": 0.6}, clock=0.7)
    replaced(fleet, "hot", hot, overlap=overlap)
    firing(fleet, "hot", "GpuThermalThrottle/warning")
    replaced(fleet, "down", Gpu(up=0, busy=[(1, STALE), (MINUTES, None)]), overlap=overlap)
    firing(fleet, "down", "GpuTelemetryLost/warning")
    fleet.check(tmp_path)


@pytest.mark.parametrize("overlap", [0, 10])
def test_the_gpus_of_a_job_are_compared_all_the_time(tmp_path: Path, overlap: int) -> None:
    fleet = Fleet(MINUTES)
    replaced(fleet, "one", Gpu(owner=JOB), overlap=overlap)
    add_gpu(fleet, "two", Gpu(busy=0.3, owner=JOB, target={**OPERATORS, "pod": "other"}))
    replaced(fleet, "one", Gpu(owner=JOB), 1, overlap=overlap)
    firing(fleet, "one")
    for minute in EACH_MINUTE:
        fleet.expect(minute, 'max(gpu:group:size{instance="two"})', {"{}": 3.0})
        fleet.expect(minute, "count(gpu:group_busy:max)", {"{}": 3.0})
        fleet.expect(minute, 'sum by (cause) (gpu:bottleneck:primary{instance="two"})', IMBALANCE)
    fleet.check(tmp_path)


IMBALANCE: Mapping[str, float] = {'{cause="gpu_imbalance"}': 1.0}


@pytest.mark.parametrize("overlap", [0, 10])
def test_healthy_gpus_stay_quiet(tmp_path: Path, overlap: int) -> None:
    fleet = Fleet(MINUTES)
    replaced(fleet, "fine", Gpu(owner=JOB), overlap=overlap)
    replaced(fleet, "fine", Gpu(owner=JOB), 1, overlap=overlap)
    firing(fleet, "fine")
    fleet.expect(ROLLOUT + 5, "sum(gpu:tenants:count)", {"{}": 2.0})
    fleet.check(tmp_path)
