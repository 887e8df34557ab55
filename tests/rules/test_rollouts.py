"""The exporter's pods are replaced in the middle of incidents and stalls.

Their own labels are on each series: each GPU is there twice for a while, with what the old pod
last said, and with what the new one says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import STALE

ROLLOUT = 35
"""By then every alert here has fired for long."""
MINUTES = ROLLOUT + 25
EACH_MINUTE = (ROLLOUT - 2, *range(ROLLOUT, MINUTES))
OPERATORS = {"container": "exporter", "endpoint": "metrics", "service": "gpu", "namespace": "ops"}
"""What the Prometheus operator tells of the pod that is scraped."""
OVERLAPS = (0, 3, 10)
"""Minutes for which both pods answer: each a case, with nodes and jobs of its own."""


def job(overlap: int) -> Mapping[str, str]:
    return {"slurm_job_id": f"7{overlap}", "user": "ann"}


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


def test_a_stall_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    for overlap in OVERLAPS:
        starved = Gpu(busy=0.2, stalls={"host_code": 0.8}, main_cpu=1.0, owner=job(overlap))
        node = f"stall-{overlap}"
        replaced(fleet, node, starved, overlap=overlap)
        firing(fleet, node, "GpuHostLoopBound/warning")
        owner = f'instance="{node}",slurm_job_id="7{overlap}",user="ann",workload_pod=""'
        query = f'count(gpu:bottleneck:lost_ratio{{cause="host_loop_bound",{owner}}})'
        for minute in EACH_MINUTE:
            fleet.expect(minute, query, {"{}": 1.0})
    fleet.check(tmp_path)


def test_an_incident_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    hot = Gpu(throttle={"sw_thermal": 0.6}, clock=0.7)
    down = Gpu(up=0, busy=[(1, STALE), (MINUTES, None)])
    for overlap in OVERLAPS:
        replaced(fleet, f"hot-{overlap}", hot, overlap=overlap)
        firing(fleet, f"hot-{overlap}", "GpuThermalThrottle/warning")
        replaced(fleet, f"down-{overlap}", down, overlap=overlap)
        firing(fleet, f"down-{overlap}", "GpuTelemetryLost/warning")
    fleet.check(tmp_path)


def test_the_gpus_of_a_job_are_compared_all_the_time(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    for overlap in OVERLAPS:
        one, two, owner = f"one-{overlap}", f"two-{overlap}", job(overlap)
        replaced(fleet, one, Gpu(owner=owner), overlap=overlap)
        add_gpu(fleet, two, Gpu(busy=0.3, owner=owner, target={**OPERATORS, "pod": "other"}))
        replaced(fleet, one, Gpu(owner=owner), 1, overlap=overlap)
        firing(fleet, one)
        group = f'workload_group="slurm-7{overlap}"'
        for minute in EACH_MINUTE:
            fleet.expect(minute, f'max(gpu:group:size{{instance="{two}"}})', {"{}": 3.0})
            fleet.expect(minute, f"count(gpu:group_busy:max{{{group}}})", {"{}": 3.0})
            fleet.expect_cause(two, minute, "gpu_imbalance")
    fleet.check(tmp_path)


def test_healthy_gpus_stay_quiet(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    for overlap in OVERLAPS:
        node = f"fine-{overlap}"
        replaced(fleet, node, Gpu(owner=job(overlap)), overlap=overlap)
        replaced(fleet, node, Gpu(owner=job(overlap)), 1, overlap=overlap)
        firing(fleet, node)
        fleet.expect(ROLLOUT + 5, f'sum(gpu:tenants:count{{instance="{node}"}})', {"{}": 2.0})
    fleet.check(tmp_path)
