"""The exporter's pods are replaced in the middle of incidents and stalls.

Their own labels are on each series: each GPU is there twice for a while, with what the old pod
last said, and with what the new one says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import STALE, Labels, Series

ROLLOUT = 35
"""By then every alert here has fired for long."""
MINUTES = ROLLOUT + 25
EACH_MINUTE = (ROLLOUT - 2, *range(ROLLOUT, MINUTES))
OPERATORS = {"container": "exporter", "endpoint": "metrics", "service": "gpu", "namespace": "ops"}
"""What the Prometheus operator tells of the pod that is scraped."""
OVERLAPS = (0, 3, 10)
"""Minutes for which both pods answer: each a case, with nodes and jobs of its own."""


def replaced(fleet: Fleet, node: str, gpu: Gpu, index: int = 0, *, overlap: int = 0) -> None:
    """`gpu` of `node`, whose exporter's pod is replaced; both answer for `overlap` minutes."""
    for pod in ("old", "new"):
        first = len(fleet._series)
        target = {**OPERATORS, "pod": f"exporter-{pod}"}
        add_gpu(fleet, node, replace(gpu, target=target), index)
        fleet.change(partial(of_pod, pod, overlap), first=first)


def of_pod(pod: str, overlap: int, one: Series) -> Iterator[float | None]:
    """The old pod's until it ends, `overlap` minutes after the new one has begun to count."""
    start = one.values[ROLLOUT] or 0.0 if one.is_counter else 0.0
    for minute, value in enumerate(one.values):
        since = minute - ROLLOUT
        if pod == "old":
            yield value if since < overlap else STALE if since == overlap else None
        else:
            yield None if since < 0 or value is None else value - start


def test_while_pods_are_replaced_everything_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(MINUTES)
    for overlap in OVERLAPS:
        for number, add in enumerate((stall, incident, healthy, compared)):
            add(fleet, overlap, {"slurm_job_id": f"{number}{overlap}", "user": "ann"})
    fleet.check(tmp_path)


def firing(fleet: Fleet, node: str, *alerts: str) -> None:
    for minute in EACH_MINUTE:
        fleet.expect_firing(node, minute, *alerts)


def stall(fleet: Fleet, overlap: int, owner: Labels) -> None:
    node = f"stall-{overlap}"
    starved = Gpu(busy=0.2, stalls={"host_code": 0.8}, main_cpu=1.0, owner=owner)
    replaced(fleet, node, starved, overlap=overlap)
    firing(fleet, node, "GpuHostLoopBound/warning")
    job = f'slurm_job_id="{owner["slurm_job_id"]}",user="ann",workload_pod=""'
    lost = f'gpu:bottleneck:lost_ratio{{cause="host_loop_bound",instance="{node}",{job}}}'
    for minute in EACH_MINUTE:
        fleet.expect(minute, f"count({lost})", {"{}": 1.0})


def incident(fleet: Fleet, overlap: int, owner: Labels) -> None:
    hot = Gpu(throttle={"sw_thermal": 0.6}, clock=0.7)
    replaced(fleet, f"hot-{overlap}", hot, overlap=overlap)
    firing(fleet, f"hot-{overlap}", "GpuThermalThrottle/warning")
    down = Gpu(up=0, busy=[(1, STALE), (MINUTES, None)], owner=owner)
    replaced(fleet, f"down-{overlap}", down, overlap=overlap)
    firing(fleet, f"down-{overlap}", "GpuTelemetryLost/warning")


def healthy(fleet: Fleet, overlap: int, owner: Labels) -> None:
    node = f"fine-{overlap}"
    for index in range(2):
        replaced(fleet, node, Gpu(owner=owner), index, overlap=overlap)
    firing(fleet, node)
    fleet.expect(ROLLOUT + 5, f'sum(gpu:tenants:count{{instance="{node}"}})', {"{}": 2.0})


def compared(fleet: Fleet, overlap: int, owner: Labels) -> None:
    """The GPUs of a job, all the time."""
    one, two = f"one-{overlap}", f"two-{overlap}"
    for index in range(2):
        replaced(fleet, one, Gpu(owner=owner), index, overlap=overlap)
    add_gpu(fleet, two, Gpu(busy=0.3, owner=owner, target={**OPERATORS, "pod": "other"}))
    firing(fleet, one)
    group = f'workload_group="slurm-{owner["slurm_job_id"]}"'
    for minute in EACH_MINUTE:
        fleet.expect(minute, f'max(gpu:group:size{{instance="{two}"}})', {"{}": 3.0})
        fleet.expect(minute, f"count(gpu:group_busy:max{{{group}}})", {"{}": 3.0})
        fleet.expect_cause(two, minute, "gpu_imbalance")
