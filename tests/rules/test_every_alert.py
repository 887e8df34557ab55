"""What holds for every alert: it names the guilty GPU, tells its owner, outlives disturbances.

When each fires, and when it must not, is in the tables that its GPU is taken from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rules import causes_table
from rules.fleet import GROUPS, JOB, Fleet, Gpu, add_gpu, told_of
from rules.parsed import Rule
from rules.series import Labels
from rules.test_health_and_jobs import BURSTS, ages, free, idle, lean, stops
from rules.test_input_pipeline import FIRING, WRITING, starved
from rules.test_on_the_gpu import (
    BERT,
    CAPPED,
    COLLECTIVES,
    FP32,
    HEALTHY,
    PEER,
    SEQUENTIAL,
    SHARED,
    SLEEPING,
    SLOW_CLOCK,
    SPINNING,
    STREAMING,
    UNEVEN,
    changed,
    ramp,
)

RESTART = 1
"""The exporter is restarted this many minutes after the alert fires."""
SILENCE = (8, 12)
"""Then Prometheus does not scrape for as long, and finds the last samples at first."""
FAILURE = (20, 23)
"""Then scrapes fail: all series have ended."""
ASKED = (0, 2, 6, 10, 14, 18, 22, 26, 30)
"""Before, during and after each of them."""
SOON, HOST, USUAL, LONG = 4, 18, 22, 36
"""Minutes after which alerts fire: of a minute, of 10, of a quarter and of half an hour."""


@dataclass(frozen=True, slots=True)
class Firing:
    """GPUs of one job, the first of which is guilty; and after how many minutes that is told."""

    after: int
    gpu: Gpu
    siblings: tuple[Gpu, ...] = ()
    alike: bool = False
    """Whether the siblings are guilty, too."""
    lasts: int = ASKED[-1]
    """For so many minutes more; then another alert follows."""
    beside: tuple[Gpu, ...] = ()
    """GPUs that nobody has."""
    labels: Labels = field(default_factory=dict)
    """More that the alert has."""


def owner(node: str) -> dict[str, str]:
    """All labels that an owner can have."""
    names = ("workload_namespace", "workload_pod", "workload_container", "pod_uid")
    return {name: f"{node}-{name}" for name in (*names, "container_id", "slurm_job_id", "user")}


def host_of(guilty: Gpu) -> dict[str, Any]:
    """What a node tells of itself, which is written with its first GPU."""
    names = ("host_cpus", "host_busy_cores", "host_iowait_cores", "disk_busy")
    return {name: getattr(guilty, name) for name in names}


def gpu(**changes: object) -> Gpu:
    """A healthy GPU, but for these."""
    return changed(HEALTHY, **changes)


TURNS = 0.3
TAKING_TURNS = {
    "host_code": [(8, 0.7 if phase % 2 else 0.0) for phase in range(15)],
    "worker_cpu": [(8, 0.0 if phase % 2 else 0.7) for phase in range(15)],
}
"""Two causes, each of which is over before it is told."""

ALERTS: Mapping[str, Firing] = {
    "GpuTelemetryLost/warning": Firing(HOST, gpu(up=0)),
    "GpuFault/critical": Firing(SOON, gpu(row_remap_failed=1)),
    "GpuFault/warning": Firing(SOON, gpu(row_remap_pending=1)),
    "GpuHardwareSlowdown/warning": Firing(HOST, gpu(throttle={"hw_thermal": 0.1}, clock=0.5)),
    "GpuThermalThrottle/warning": Firing(USUAL, gpu(throttle={"sw_thermal": 0.3}, clock=0.8)),
    "GpuThermalThrottle/info": Firing(USUAL, gpu(throttle={"sw_thermal": 0.1}, clock=0.8)),
    "GpuNearThermalLimit/info": Firing(USUAL, gpu(celsius=86)),
    "GpuPowerCapped/info": Firing(USUAL, gpu(throttle={"power_cap": 0.8}, clock=0.7)),
    "GpuClockLimited/warning": Firing(USUAL, gpu(clock=0.6)),
    "GpuPcieLinkDegraded/warning": Firing(USUAL, gpu(link_width=8)),
    "GpuCollectiveHang/warning": Firing(HOST, SPINNING, (SPINNING,), alike=True),
    "GpuJobStalled/warning": Firing(54, stops(30)),
    # Of that age for as long as it is asked: else it is one for ten minutes only.
    "GpuStartupStall/info": Firing(8, idle(age_seconds=900.0)),
    "GpuStartupStall/warning": Firing(24, idle(age_seconds=ages(0))),
    "GpuAllocatedNeverUsed/warning": Firing(USUAL, free()),
    "GpuInteractiveSession/info": Firing(45, idle(interactive=1, busy=BURSTS)),
    "GpuAllocatedIdle/info": Firing(48, stops(12, busy=0.25, age_seconds=ages(8)), lasts=22),
    "GpuAllocatedIdle/warning": Firing(70, idle()),
    "GpuWaitsForRequests/info": Firing(LONG, idle(stalls={"requests": 1.0})),
    "GpuImbalance/warning": Firing(USUAL, UNEVEN, (HEALTHY,)),
    "GpuStraggler/warning": Firing(30, SLOW_CLOCK, (PEER, PEER, PEER)),
    "GpuSharingContention/info": Firing(USUAL, changed(SHARED, target={"cluster": "full"})),
    "GpuSharingContention/warning": Firing(
        USUAL,
        changed(SHARED, target={"cluster": "half-empty"}),
        beside=(free(target={"cluster": "half-empty"}),),
    ),
    "GpuRestartLoop/warning": Firing(80, idle(age_seconds=ages(*range(0, 150, 8)))),
    "GpuUnderused/warning": Firing(
        84,
        gpu(busy=TURNS, sm=0.5, stalls=TAKING_TURNS),
        labels={"cause": "cpu_preprocessing_bound"},
    ),
    "GpuUnderused/info": Firing(
        84, gpu(busy=0.6, sm=0.55, stalls={"host_code": 0.4}), labels={"cause": "host_loop_bound"}
    ),
    **{
        f"Gpu{cause.title().replace('_', '')}/warning": Firing(HOST, guilty)
        for cause, guilty in FIRING.items()
    },
    "GpuShmExhausted/info": Firing(HOST, gpu(shm_size_bytes=6.7e7, shm_used=0.6)),
    "GpuCheckpointStall/info": Firing(
        HOST, Gpu(busy=0.8, stalls={"storage": 0.14, "asleep": 0.06}, **WRITING)
    ),
    "GpuPcieTransferBound/info": Firing(HOST, starved({"asleep": 0.75}, pcie_bytes=1e9)),
    "GpuCommunicationBound/info": Firing(USUAL, COLLECTIVES, (COLLECTIVES,), alike=True),
    "GpuMemoryCapped/info": Firing(LONG, changed(CAPPED, busy=0.75)),
    "GpuSmallBatch/info": Firing(LONG, BERT),
    "GpuMemoryBandwidthBound/info": Firing(LONG, STREAMING),
    "GpuTensorCoresIdle/info": Firing(LONG, FP32),
    "GpuLowParallelism/info": Firing(LONG, SEQUENTIAL),
    "GpuUnexplainedLowUtilization/warning": Firing(LONG, SLEEPING),
    "GpuNearOom/warning": Firing(46, gpu(memory=ramp((0, 0.8), (30, 0.97), (76, 0.9999)))),
}
SHORT = dict.fromkeys(
    ("GpuRestartLoop", "GpuUnderused"),
    ("workload_container", "pod_uid", "container_id"),
)
"""Labels that change with each start are left out of what tells of an hour."""
OF_NODES = {"GpuExporterDown/warning", "GpuCausesBlind/info"}
"""They name no GPU and no owner."""
ELSEWHERE = {
    "GpuThresholdsMissing/warning": "a fleet without thresholds: test_health_and_jobs",
    "GpuOversized/info": "a whole day: test_on_the_gpu",
    "GpuFleetBottleneck/warning": "a fleet: test_fleets",
    "GpuNodeBottleneck/warning": "several jobs: test_incidents",
}


@cache
def rules() -> dict[str, Rule]:
    """The alerts of the pack by name and severity."""
    found = [rule for rule in causes_table.pack() if rule.is_alert]
    return {f"{rule.name}/{rule.labels['severity']}": rule for rule in found}


def test_every_alert_is_here_or_elsewhere() -> None:
    assert sorted(rules()) == sorted([*ALERTS, *OF_NODES, *ELSEWHERE])


def selector(rule: Rule, node: str, **labels: str) -> str:
    """The alert of `rule` while it fires, complete: nothing but these labels."""
    every = {"alertname": rule.name, "alertstate": "firing", **rule.labels, "job": JOB}
    pairs = (f'{name}="{text}"' for name, text in {**every, "instance": node, **labels}.items())
    return f"ALERTS{{{','.join(pairs)}}}"


def add(fleet: Fleet, alert: str, firing: Firing) -> None:
    """A node with a healthy GPU of somebody else as its first, and what is expected of it."""
    node = alert.replace("/", "-")
    whose = owner(node)
    start, end = (firing.after + minute for minute in SILENCE)
    disturbed = {"reset_at": firing.after + RESTART, "gap": (start, end)}
    healthy = lean(sm=0.85, feeders=True, owner=owner("healthy-" + node), **disturbed)
    add_gpu(fleet, node, replace(healthy, target=firing.gpu.target, **host_of(firing.gpu)))
    job = (firing.gpu, *firing.siblings)
    for index, one in enumerate(job, 1):
        add_gpu(fleet, node, changed(one, owner=None if one.owners else whose, **disturbed), index)
    for index, one in enumerate(firing.beside, 1 + len(job)):
        add_gpu(fleet, node, changed(one, **disturbed), index)
    fleet.fail_scrapes(node, *(firing.after + minute for minute in FAILURE))
    guilty = range(1, 1 + (len(job) if firing.alike else 1))
    of_job = told_of({} if firing.gpu.owners else whose) | dict(firing.gpu.target)
    left_out = dict.fromkeys(SHORT.get(rules()[alert].name, ()))
    kept = {name: text for name, text in of_job.items() if name not in left_out}
    labels = {**kept, **firing.labels}
    found = {
        selector(rules()[alert], node, gpu=f"{at}", uuid=f"GPU-{node}-{at}", **labels): 1.0
        for at in guilty
    }
    query = f'ALERTS{{alertstate="firing",instance="{node}",alertname!="GpuCausesBlind"}}'
    for minute, there in told(firing.lasts).items():
        fleet.expect(firing.after + minute, query, found if there else {})
    fleet.end(node, firing.after + ASKED[-1])


def told(lasts: int) -> dict[int, bool]:
    """Whether the alert fires at the minutes that are asked: while scrapes fail, too."""
    return {minute: True for minute in ASKED if minute <= lasts}


PARTS = 4
"""promtool takes twice as long for all of them at once."""


@pytest.mark.parametrize("part", range(PARTS))
def test_it_names_the_guilty_gpu_and_its_owner_whatever_happens(part: int, tmp_path: Path) -> None:
    ordered = sorted(ALERTS.items(), key=lambda item: item[1].after)
    chosen = ordered[part * len(ordered) // PARTS : (part + 1) * len(ordered) // PARTS]
    last = max(firing.after for _, firing in chosen) + ASKED[-1]
    alerts = dict.fromkeys(rule.group for rule in rules().values())  # evaluated first otherwise
    fleet = Fleet(last, groups=(*GROUPS, *alerts), evaluation_interval="2m")
    for alert, firing in chosen:
        add(fleet, alert, firing)
    if part == PARTS - 1:
        add_nodes(fleet)
    fleet.check(tmp_path)


def add_nodes(fleet: Fleet) -> None:
    """One that does not answer, and one on which one of two GPUs cannot be judged."""
    add_gpu(fleet, "down", gpu(owner=owner("down")))
    fleet.fail_scrapes("down", 3, 20)
    down = selector(rules()["GpuExporterDown/warning"], "down")
    fleet.expect(16, 'ALERTS{alertstate="firing",instance="down"}', {down: 1.0})
    fleet.end("down", 16)
    disturbed = {"reset_at": 63, "gap": (65, 69)}
    add_gpu(fleet, "blind", gpu(owner=owner("seen"), **disturbed))
    add_gpu(fleet, "blind", gpu(owner=owner("unseen"), sm=None, **disturbed), 1)
    blind = selector(rules()["GpuCausesBlind/info"], "blind", blind="device_causes")
    for minute in (62, 64, 67, 70, 74):
        fleet.expect(minute, 'ALERTS{alertstate="firing",instance="blind"}', {blind: 1.0})
    fleet.end("blind", 74)


# --- Whenever it is scraped and evaluated ----------------------------------------------------

LATE_MINUTES = 8
"""Evaluated from the last to the first, each layer reads what the one before found a minute ago."""
SOON_TOLD = {
    alert: firing
    for alert, firing in ALERTS.items()
    if firing.after <= HOST and firing.lasts >= LATE_MINUTES
}


@pytest.mark.parametrize("seconds", [15, 30])
def test_at_any_scrape_interval_the_verdicts_are_the_same(seconds: int, tmp_path: Path) -> None:
    """At 60 s: all other tests."""
    verdicts(every_group(), seconds, tmp_path)


def test_in_any_order_of_the_groups_the_verdicts_are_the_same(tmp_path: Path) -> None:
    """Groups are evaluated beside each other: each may read what the others found before."""
    verdicts([*reversed(every_group())], 60, tmp_path)


def every_group() -> list[str]:
    return [*GROUPS, *dict.fromkeys(rule.group for rule in rules().values())]


def verdicts(order: Sequence[str], scraped_every: int, folder: Path) -> None:
    """What each alert is expected of, and nothing else, with a healthy GPU beside it."""
    last = HOST + LATE_MINUTES
    fleet = Fleet(last, groups=order, scraped_every=scraped_every)
    for alert, firing in SOON_TOLD.items():
        node = alert.replace("/", "-")
        job = (firing.gpu, *firing.siblings)
        add_gpu(fleet, node, replace(gpu(), target=firing.gpu.target, **host_of(firing.gpu)))
        for index, one in enumerate(job, 1):
            add_gpu(fleet, node, changed(one, owner=None if one.owners else owner(node)), index)
        told = {
            f'{{alertname="{rules()[alert].name}",gpu="{at}"}}': 1.0
            for at in range(1, 1 + (len(job) if firing.alike else 1))
        }
        firing_now = f'ALERTS{{alertstate="firing",instance="{node}",alertname!="GpuCausesBlind"}}'
        fleet.expect(last, f"count by (alertname, gpu) ({firing_now})", told)
    fleet.check(folder)
