"""Every row of the tables of situations: what fires, and what must not.

Each row is a GPU on a node of its own and what is told of it, minute by minute. promtool names
the node in what it says of a failure: that is the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter import rulepack
from rules.cases import Row, add_job, add_row, fleets_of, gpu_of, gpus, jobs, table
from rules.fleet import ASIDE, FILES, JOB, Fleet, Gpu, add_gpu, changed, group_names, job
from rules.scenes import add_scenes
from rules.series import FOREVER, STALE, Signal

# --- The GPU itself, and who holds it -----------------------------------------------------------
MINUTES = 90
QUIET = "20,45,75 -"
BASES = gpus("bases")
LEAN, IDLE, FREE = (BASES[name] for name in ("lean", "idle", "free"))
"""Busy, and without what these causes do not ask for; held, and nothing moves; nobody's."""
HALF = pytest.mark.parametrize("half", [0, 1], ids=["each minute", "every other minute"])
"""Each of the two fleets takes promtool long enough to be a test."""


@HALF
def test_what_is_wrong_with_the_gpu(half: int, tmp_path: Path) -> None:
    rows = table("telemetry", "faults", "clocks", "temperatures", "links", told=QUIET)
    fleets_of(rows, MINUTES)[half].check(tmp_path)


@HALF
def test_who_holds_it_and_does_not_use_it(half: int, tmp_path: Path) -> None:
    rows = table("starts", "holders", "servers", "stops", "exempt", told=QUIET)
    fleet = fleets_of(rows, MINUTES)[half]
    fleet.expect(MINUTES, 'ALERTS{alertname="GpuThresholdsMissing",alertstate="firing"}', {})
    if half == 1:
        fleet.gauge("up", 0, job=JOB, instance="no-gpu-exporter")
        fleet.expect_firing("no-gpu-exporter", 30)
    fleet.check(tmp_path)


def test_without_thresholds_only_that_is_told(tmp_path: Path) -> None:
    fleet = Fleet(30, files=FILES[1:], groups=group_names(FILES[1]))
    hot = changed(LEAN, throttle={"hw_thermal": 0.5, "sw_thermal": 0.5}, clock=0.4)
    starved = changed(BASES["fed"], busy=0.1, stalls={"host_code": 0.9})
    every = {"starved": starved, "hot": hot, "idle": changed(IDLE, owner=job(1)), "free": FREE}
    for node, gpu in every.items():
        add_gpu(fleet, node, gpu)
    query = 'count by (alertname, severity) (ALERTS{alertstate="firing"})'
    expected = {'{alertname="GpuThresholdsMissing",severity="warning"}': 1.0}
    for minute, answer in ((4, {}), (6, expected), (30, expected)):
        fleet.expect(minute, query, answer)
    fleet.expect(30, "gpu:held:bool", {})  # not: nobody holds one
    fleet.check(tmp_path)


ABSENT = 'count by (missing, cluster) (ALERTS{alertname="GpuMonitoringAbsent",alertstate="firing"})'


def test_it_is_told_that_all_exporters_of_a_cluster_or_of_all_are_gone(tmp_path: Path) -> None:
    fleet = Fleet(90, evaluation_interval="2m")
    for node, cluster in (("a", "north"), ("b", "north"), ("c", "south"), ("d", "down")):
        add_gpu(fleet, node, changed(LEAN, target={"cluster": cluster}))
    for node, minute in (("a", 20), ("b", 20), ("c", 50)):
        fleet.fail_scrapes(node, minute, FOREVER, up=STALE)
    fleet.fail_scrapes("d", 20, 50)
    fleet.fail_scrapes("d", 50, FOREVER, up=STALE)
    north, south, down = (
        f'{{cluster="{name}",missing="exporters"}}' for name in ("north", "south", "down")
    )
    fleet.expect(30, ABSENT, {})
    fleet.expect(46, ABSENT, {north: 1.0})
    fleet.expect(88, ABSENT, {'{missing="exporters"}': 1.0, north: 1.0, south: 1.0, down: 1.0})
    fleet.check(tmp_path)


def test_exporters_that_are_down_are_not_absent_as_well(tmp_path: Path) -> None:
    fleet = Fleet(60, evaluation_interval="2m")
    add_gpu(fleet, "down", LEAN)
    fleet.fail_scrapes("down", 10, FOREVER)
    fleet.expect(58, ABSENT, {})
    fleet.check(tmp_path)


@pytest.mark.parametrize("broken", ["gpu:owner:info", "gpu:bottleneck:lost_ratio"])
def test_rules_that_fail_stop_the_heartbeat(broken: str, tmp_path: Path) -> None:
    """As one whose join fails: it records nothing."""
    recording = FILES[1].read_text(encoding="utf-8")
    (tmp_path / "recording.yml").write_text(
        recording.replace(f"record: {broken}", "record: lost:by:join")
    )
    fleet = Fleet(
        40, files=(FILES[0], tmp_path / "recording.yml", FILES[2]), evaluation_interval="2m"
    )
    add_gpu(fleet, "hot", changed(LEAN, throttle={"hw_thermal": 0.5}))
    fleet.expect(38, ABSENT, {'{missing="rules"}': 1.0})
    fleet.check(tmp_path)


def test_rules_that_work_keep_the_heartbeat(tmp_path: Path) -> None:
    fleet = Fleet(40, evaluation_interval="2m")
    add_gpu(fleet, "hot", changed(LEAN, throttle={"hw_thermal": 0.5}))
    add_gpu(fleet, "free", FREE)
    fleet.expect(38, ABSENT, {})
    fleet.expect(38, "time() - gpu:rules:heartbeat_timestamp < 300", {"{}": 0.0})
    fleet.check(tmp_path)


def test_what_is_switched_off_is_not_told_as_several(tmp_path: Path) -> None:
    """No cause has half of the loss, but all of them are those of an alert that nobody wants."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in FILES}
    changes = rulepack.Changes(severities={"GpuStarved": rulepack.OFF})
    for name, text in rulepack.adapted(texts, changes).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = [tmp_path / file.name for file in FILES]
    fleet = Fleet(130, files=files, evaluation_interval="2m")
    turns = {
        "host_code": "0.7 @7 0 @21 again",
        "storage": "0 @7 0.7 @14 0 @21 again",
        "cpu_queue": "0 @14 0.7 @21 again",
    }
    add_gpu(fleet, "turns", gpu_of({"busy": 0.3, "sm": 0.25, "disk_busy": 0.9, "stalls": turns}))
    fleet.expect(128, 'ALERTS{alertname="GpuUnderused"}', {})
    fleet.expect(128, "group by (cause) (gpu:bottleneck:lost_over1h)", {'{cause="several"}': 1.0})
    fleet.check(tmp_path)


def test_a_pool_without_a_node_needs_no_exporter(tmp_path: Path) -> None:
    """As kube-state-metrics has it; one whose nodes are there does."""
    fleet = Fleet(190, evaluation_interval="2m")
    for name in ("scaled", "broken"):
        add_gpu(fleet, name, changed(LEAN, target={"cluster": name}))
        fleet.fail_scrapes(name, 20, FOREVER, up=STALE)
        fleet.gauge("kube_node_info", 1, cluster=name, node="cpu")
        there: Signal = [(20, 8.0), (FOREVER, STALE)] if name == "scaled" else 8
        fleet.gauge(
            "kube_node_status_capacity", there, cluster=name, node="g", resource="nvidia_com_gpu"
        )
    fleet.expect(188, ABSENT, {'{cluster="broken",missing="exporters"}': 1.0})
    fleet.check(tmp_path)


# --- What starves it on the host, and copies: each cause, and what resembles it ----------------
STARVED, LATE = 48, 37
"""Long enough for anything, the half hour of an unexplained one included."""
YOUNG = 9
"""Below every `for` of 10 minutes, however soon the evidence was there."""
UNEXPLAINED = "unexplained_low_utilization/warning"
FIRING = gpus("starving")
"""One that fires for each cause."""
NO_GATE = {"shm_exhausted", "checkpoint_stall"}
"""Told of well-used GPUs too."""
STALLED = sorted(FIRING.keys() - NO_GATE - {"worker_churn", "pcie_transfer_bound"})
"""Those that a share of the idle time speaks for."""


def variations() -> Iterator[tuple[str, Row]]:
    """Each cause in time, on a well-used GPU, and with little evidence."""
    for cause, gpu in FIRING.items():
        waits = 1 if cause == "shm_exhausted" else YOUNG
        yield f"{cause} fires", Row(gpu, f"{waits} ?; {cause}/warning")
        if cause not in NO_GATE:
            busy = replace(used(gpu, 0.98), sm=0.85, host_iowait_cores=12.0, disk_busy=0.95)
            yield f"{cause} well used", Row(busy)
            if cause != "pcie_transfer_bound":
                yield f"{cause} at half", Row(used(gpu, 0.55), cause)
    # Two fifths of the idle time must speak for a cause; the rest is asleep here.
    for cause in STALLED:
        (on,) = FIRING[cause].stalls
        for name, share, told in (
            ("little", 0.39, UNEXPLAINED),
            ("enough", 0.41, f"{cause}/warning"),
        ):
            stalls = {on: 0.75 * share, "asleep": 0.75 * (1 - share)}
            yield f"{cause} {name}", Row(replace(FIRING[cause], stalls=stalls), told)


def used(gpu: Gpu, busy: float) -> Gpu:
    """Between half and seven tenths the cause is known, but not told; above not looked for."""
    stalls = {on: (1 - busy) * _number(part) / 0.75 for on, part in gpu.stalls.items()}
    return replace(gpu, busy=busy, sm=0.6, dram=0.5, stalls=stalls)


def _number(signal: Signal) -> float:
    assert isinstance(signal, int | float)
    return signal


def test_each_cause_is_told_where_it_matters(tmp_path: Path) -> None:
    for fleet in fleets_of(dict(variations()), STARVED, LATE):
        fleet.check(tmp_path)


def test_causes_that_resemble_each_other_are_told_apart(tmp_path: Path) -> None:
    rows = table("apart", "measured")
    for fleet in fleets_of(rows, STARVED, LATE):
        fleet.check(tmp_path)


# --- On the GPU, and between the GPUs of a job --------------------------------------------------
END = 50
"""Minutes that a fleet runs: enough for the longest `for`, half an hour."""
DAY = 1440


def test_several_gpus_of_one_job(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="4m", without=ASIDE)  # of `for`s of 5 minutes and more
    for section in ("imbalance", "straggler", "communication", "hang"):
        for name, ranks in jobs(section).items():
            add_job(fleet, name, ranks, END)
    # The rank that does not spin is the culprit of a hang; that it hangs is told of all of them.
    culprit = 'sum by (instance) (gpu:hang:culprit{instance=~"hang-."})'
    fleet.expect(END, culprit, {'{instance="hang-2"}': 1.0})
    fleet.check(tmp_path)


def test_one_gpu(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="4m", without=ASIDE)
    for name, row in table("one_gpu").items():
        add_row(fleet, name, row, END)
    fleet.check(tmp_path)


@pytest.mark.first
def test_oversized(tmp_path: Path) -> None:
    # A day is long: few evaluations, no more series than needed. Groups that are not named are
    # evaluated first, and alerts would look for what was recorded ten minutes ago.
    fleet = Fleet(DAY + 70, groups=group_names(*FILES), evaluation_interval="10m")
    add_scenes(fleet, "oversized")
    fleet.check(tmp_path)
