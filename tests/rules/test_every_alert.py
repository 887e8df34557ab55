"""What holds for every alert: it names the guilty GPU, tells its owner, outlives disturbances.

When each fires, and when it must not, is in the tables that its GPU is taken from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rules.cases import alert, alerts, firing, gpu_of, gpus, of_gpu, rows
from rules.fleet import FILES, Fleet, Gpu, add_gpu, changed, fired, group_names, told_of
from rules.series import Labels

RESTART = 1
"""The exporter is restarted this many minutes after the alert fires."""
SILENCE = (8, 12)
"""Then Prometheus does not scrape for as long, and finds the last samples at first."""
FAILURE = (20, 23)
"""Then scrapes fail: all series have ended."""
UNSEEN = 22
"""In the middle of that, its cause is known all the same."""
ASKED = (0, 2, 6, 10, 14, 18, 22, 26, 30)
"""Before, during and after each of them."""
HOST = 18
"""Minutes after which alerts of 10 minutes fire."""


@dataclass(frozen=True, slots=True)
class Firing:
    """GPUs of one job, the first of which is guilty; and after how many minutes that is told."""

    after: int
    gpu: Gpu
    siblings: Sequence[Gpu] = ()
    alike: bool = False
    """Whether the siblings are guilty, too."""
    lasts: int = ASKED[-1]
    """For so many minutes more; then another alert follows."""
    beside: Sequence[Gpu] = ()
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


BESIDE_GPU = ("after", "siblings", "alike", "lasts", "beside", "labels")


def firing_of(row: Mapping[str, Any]) -> Firing:
    given = {name: row[name] for name in BESIDE_GPU if name in row}
    for others in ("siblings", "beside"):
        given[others] = [gpu_of(one) for one in row.get(others, ())]
    return Firing(gpu=gpu_of(row, *BESIDE_GPU), **given)


ALERTS = {
    **{name: firing_of(row) for name, row in rows("alerts").items()},
    **{alert(f"{cause}/warning"): Firing(HOST, gpu) for cause, gpu in gpus("starving").items()},
}
OF_STARTS = ("workload_container", "pod_uid", "container_id")
SHORT = dict.fromkeys(("GpuRestartLoop", "GpuUnderused"), OF_STARTS)
"""Labels that change with each start are left out of what tells of an hour."""
OF_NODES = {"GpuExporterDown/warning", "GpuCausesBlind/info"}
"""They name no GPU and no owner."""
WITHOUT_CAUSE = {
    # No cause of their own, or none with evidence.
    *("GpuUnderused/warning", "GpuUnderused/info", "GpuUnexplainedLowUtilization/warning"),
    *("GpuFault/warning", "GpuShmExhausted/info"),
    # Bytes and cores a second seem less where a part of the time is missing.
    *("GpuTooFewWorkers/warning", "GpuPcieTransferBound/warning", "GpuPcieTransferBound/info"),
    "GpuCommunicationBound/info",
}
"""While scrapes fail only the alert is there."""
ELSEWHERE = {
    "GpuThresholdsMissing/warning": "a fleet without thresholds: test_situations",
    "GpuOversized/info": "a whole day: test_situations",
    "GpuFleetBottleneck/warning": "a fleet: test_fleets",
    "GpuNodeBottleneck/warning": "several jobs: test_fleets",
}


def test_every_alert_is_here_or_elsewhere() -> None:
    assert sorted(alerts()) == sorted([*ALERTS, *OF_NODES, *ELSEWHERE])


def add(fleet: Fleet, name: str, case: Firing) -> None:
    """A node that is disturbed, and what is expected of it."""
    start, end = (case.after + minute for minute in SILENCE)
    node, guilty = stage(fleet, name, case, reset_at=case.after + RESTART, gap=(start, end))
    fleet.fail_scrapes(node, *(case.after + minute for minute in FAILURE))
    of_job = told_of({} if case.gpu.owners else owner(node)) | dict(case.gpu.target)
    left_out = SHORT.get(alerts()[name].name, ())
    kept = {label: text for label, text in of_job.items() if label not in left_out}
    labels = {**kept, **case.labels}
    found = {firing(name, node, **{**labels, **of_gpu(node, at)}): 1.0 for at in guilty}
    for minute in ASKED:
        if minute <= case.lasts:
            fleet.expect(case.after + minute, fired(node), found)
    if case.lasts >= UNSEEN and name not in WITHOUT_CAUSE:
        # The alert would be kept anyway.
        of_cause = f'gpu:cause:likely{{instance="{node}",cause="{alerts()[name].labels["cause"]}"}}'
        here = {f'{{gpu="{at}"}}': 1.0 for at in guilty}
        fleet.expect(case.after + UNSEEN, f"count by (gpu) ({of_cause})", here)
    fleet.end(node, case.after + ASKED[-1])


def stage(fleet: Fleet, name: str, case: Firing, **fields: object) -> tuple[str, range]:
    """A node with a healthy GPU of somebody else as its first; the numbers of the guilty ones."""
    node = name.replace("/", "-")
    seen = changed(gpu_of(rows("bases")["seen"]), owner=owner("healthy-" + node), **fields)
    add_gpu(fleet, node, replace(seen, target=case.gpu.target, **host_of(case.gpu)))
    whose, job = owner(node), (case.gpu, *case.siblings)
    for index, one in enumerate((*job, *case.beside), 1):
        owned = None if one.owners or index > len(job) else whose
        add_gpu(fleet, node, changed(one, owner=owned, **fields), index)
    return node, range(1, 1 + (len(job) if case.alike else 1))


EVERY_GROUP = group_names(*FILES)
"""Also those of alerts, which are evaluated first otherwise."""
PARTS = 4
"""promtool takes twice as long for all of them at once."""


@pytest.mark.parametrize("part", range(PARTS))
def test_it_names_the_guilty_gpu_and_its_owner_whatever_happens(part: int, tmp_path: Path) -> None:
    ordered = sorted(ALERTS.items(), key=lambda item: item[1].after)
    chosen = ordered[part * len(ordered) // PARTS : (part + 1) * len(ordered) // PARTS]
    last = max(case.after for _, case in chosen) + ASKED[-1]
    fleet = Fleet(last, groups=EVERY_GROUP, evaluation_interval="2m")
    for name, case in chosen:
        add(fleet, name, case)
    if part == PARTS - 1:
        add_nodes(fleet)
    fleet.check(tmp_path)


def add_nodes(fleet: Fleet) -> None:
    """One that does not answer, and one on which one of two GPUs cannot be judged."""
    add_gpu(fleet, "down", Gpu(owner=owner("down")))
    fleet.fail_scrapes("down", 3, 20)
    down = firing("GpuExporterDown/warning", "down")
    fleet.expect(16, 'ALERTS{alertstate="firing",instance="down"}', {down: 1.0})
    fleet.end("down", 16)
    disturbed = {"reset_at": 63, "gap": (65, 69)}
    add_gpu(fleet, "blind", changed(Gpu(), owner=owner("seen"), **disturbed))
    add_gpu(fleet, "blind", changed(Gpu(), owner=owner("unseen"), sm=None, **disturbed), 1)
    blind = firing("GpuCausesBlind/info", "blind", blind="device_causes")
    for minute in (62, 64, 67, 70, 74):
        fleet.expect(minute, 'ALERTS{alertstate="firing",instance="blind"}', {blind: 1.0})
    fleet.end("blind", 74)


# --- Whenever it is scraped and evaluated ----------------------------------------------------

LATE_MINUTES = 8
"""Evaluated from the last to the first, each layer reads what the one before found a minute ago."""
SOON_TOLD = {
    name: case for name, case in ALERTS.items() if case.after <= HOST and case.lasts >= LATE_MINUTES
}


def test_at_any_scrape_interval_the_verdicts_are_the_same(tmp_path: Path) -> None:
    """At 60 s: all other tests."""
    verdicts(EVERY_GROUP, 15, tmp_path)


def test_in_any_order_of_the_groups_the_verdicts_are_the_same(tmp_path: Path) -> None:
    """Groups are evaluated beside each other: each may read what the others found before."""
    verdicts(EVERY_GROUP[::-1], 60, tmp_path)


def verdicts(order: Sequence[str], scraped_every: int, folder: Path) -> None:
    """What each alert is expected of, and nothing else, with a healthy GPU beside it."""
    last = HOST + LATE_MINUTES
    fleet = Fleet(last, groups=order, scraped_every=scraped_every)
    for name, case in SOON_TOLD.items():
        node, guilty = stage(fleet, name, case)
        of_alert = f'alertname="{alerts()[name].name}"'
        told = {f'{{{of_alert},gpu="{at}"}}': 1.0 for at in guilty}
        fleet.expect(last, fired(node, "alertname, gpu"), told)
    fleet.check(folder)
