"""What holds for every alert: it names the guilty GPU, tells its owner, outlives disturbances.

When each fires, and when it must not, is in the tables that its GPU is taken from.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rules.cases import alerts, firing, of_gpu
from rules.firing import ALERTS, HOST, LASTS, Firing, owner, stage
from rules.fleet import FILES, Fleet, Gpu, add_gpu, changed, fired, group_names, told_of

RESTART = 1
"""The exporter is restarted this many minutes after the alert fires."""
SILENCE = (8, 12)
"""Then Prometheus does not scrape for as long, and finds the last samples at first."""
FAILURE = (20, 23)
"""Then scrapes fail: all series have ended."""
UNSEEN = 22
"""In the middle of that, its cause is known all the same."""
ASKED = (0, 2, 6, 10, 14, 18, 22, 26, LASTS)
"""Before, during and after each of them."""
OF_NODES = {"GpuExporterDown/warning", "GpuCausesBlind/info"}
"""They name no GPU and no owner."""
WITHOUT_CAUSE = {
    # No cause of their own, or none with evidence.
    *("GpuUnderused/warning", "GpuUnderused/info", "GpuUnexplainedLowUtilization/warning"),
    *("GpuFault/warning/gpu_fault", "GpuShmExhausted/info"),
    # Bytes and cores a second seem less where a part of the time is missing.
    *("GpuStarved/warning/too_few_workers", "GpuStarved/warning/pcie_transfer_bound"),
    "GpuInefficient/info/communication_bound",
}
"""While scrapes fail only the alert is there."""
ELSEWHERE = {
    "GpuThresholdsMissing/warning": "a fleet without thresholds: test_situations",
    "GpuCountedTwice/warning": "two targets: test_fleets",
    "GpuMonitoringAbsent/warning": "no exporter, failing rules: test_situations",
    "GpuRequestsQueued/info/load_imbalance": "two replicas: test_serving",
    "GpuOversized/info": "a whole day: test_situations",
    "GpuFault/info/memory_worn": "a whole day: test_fleets",
    "GpuFleetBottleneck/warning": "a fleet: test_fleets",
    "GpuNodeBottleneck/warning": "several jobs: test_fleets",
    "GpuBudgetBurn/warning": "a month: test_budgets",
    "GpuReclaimable/info": "hours: test_reclaimable",
    "GpuReclaimableSoon/info": "hours: test_reclaimable",
}


def test_every_alert_is_here_or_elsewhere() -> None:
    assert sorted(alerts()) == sorted([*ALERTS, *OF_NODES, *ELSEWHERE])


def add(fleet: Fleet, name: str, case: Firing) -> None:
    """A node that is disturbed, and what is expected of it."""
    start, end = (case.after + minute for minute in SILENCE)
    node, guilty = stage(fleet, name, case, reset_at=case.after + RESTART, gap=(start, end))
    fleet.fail_scrapes(node, *(case.after + minute for minute in FAILURE))
    of_job = told_of({} if case.gpu.owners else owner(node)) | dict(case.gpu.target)
    labels = {**of_job, **case.labels}
    found = {firing(name, node, **{**labels, **of_gpu(node, at)}): 1.0 for at in guilty}
    for minute in ASKED:
        if minute <= case.lasts:
            fleet.expect(case.after + minute, fired(node), found)
    if case.lasts >= UNSEEN and name not in WITHOUT_CAUSE:
        # The alert would be kept anyway.
        of_cause = f'gpu:cause:likely{{instance="{node}",cause="{alerts()[name].labels["cause"]}"}}'
        here = {f'{{gpu="{at}"}}': 1.0 for at in guilty}
        fleet.expect(case.after + UNSEEN, f"count by (gpu) ({of_cause})", here)
    fleet.end(node, case.after + LASTS)


EVERY_GROUP = group_names(*FILES)
"""Also those of alerts, which are evaluated first otherwise."""
PARTS = 4
"""promtool takes twice as long for all of them at once."""


@pytest.mark.parametrize("part", range(PARTS))
def test_it_names_the_guilty_gpu_and_its_owner_whatever_happens(part: int, tmp_path: Path) -> None:
    ordered = sorted(ALERTS.items(), key=lambda item: item[1].after)
    chosen = ordered[part * len(ordered) // PARTS : (part + 1) * len(ordered) // PARTS]
    last = max(case.after for _, case in chosen) + LASTS
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
