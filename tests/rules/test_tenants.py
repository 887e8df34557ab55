"""Whom the time of a shared GPU is charged to."""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.fleet import FILES, Fleet, Gpu, group_names
from rules.tenants import END, OTHERS, UNATTRIBUTED, Tenant, add_shared, pod

MINUTES = 75
RECORDING = FILES[:2]
NEEDED = {
    *("gpu-thresholds", "gpu-inputs", "gpu-inputs-host", "gpu-gates", "gpu-bill"),
    "gpu-cause-order",
}
GROUPS = group_names(*RECORDING)
SETTLED = 20
"""Minutes after which a bill is of what is counted only."""


def fleet_of(minutes: int = MINUTES) -> Fleet:
    without = [name for name in GROUPS if name not in NEEDED]
    return Fleet(minutes, RECORDING, GROUPS, without=without)


def expect_charged(fleet: Fleet, node: str, minute: int, shares: dict[str, float]) -> None:
    """Of five minutes, by what people know tenants by."""
    query = f'round(sum by (workload) (workload:busy_gpu_seconds:sum5m{{cluster="{node}"}}), 0.01)'
    answer = {f'{{workload="{name}"}}': round(300 * share, 2) for name, share in shares.items()}
    fleet.expect(minute, query, answer)


def expect_all_charged(fleet: Fleet, node: str, minutes: range) -> None:
    """No GPU-second is lost or billed twice."""
    charged = " + ".join(
        f'sum(workload:{kind}_gpu_seconds:sum5m{{cluster="{node}"}})' for kind in ("busy", "stall")
    )
    for minute in minutes:
        fleet.expect(minute, f"round({charged}, 0.01)", {"{}": 300})


def test_tenants_are_charged_what_they_used(tmp_path: Path) -> None:
    fleet = fleet_of()
    four = [pod(f"quarter-{n}", 0.25) for n in range(4)]
    add_shared(fleet, "quarters", Gpu(busy=1.0), four)
    bills = 'workload:busy_gpu_seconds:sum5m{cluster="quarters"}'
    hours = f"sum by (workload) (sum_over_time({bills}[1h:5m] offset 1s))"
    each = {f'{{workload="pod nlp/quarter-{n}"}}': 0.25 for n in range(4)}
    fleet.expect(MINUTES, f"round({hours} / 3600, 0.001)", each)
    fleet.expect(MINUTES, f"round(sum({hours}) / 3600, 0.001)", {"{}": 1})

    uneven = Gpu(busy=0.8, stalls={"storage": 0.05, "worker_cpu": 0.15})
    waits = ({"storage": 0.1}, {"worker_cpu": 0.075, "video_engine": 0.0, "network": 0.025})
    slurm = Tenant({"slurm_job_id": "7", "user": "ada"}, 0.24, waits[1])
    add_shared(fleet, "uneven", uneven, [pod("train", 0.56, waits=waits[0]), slurm])
    expect_charged(fleet, "uneven", MINUTES, {"pod nlp/train": 0.56, "Slurm job 7": 0.24})
    stalls = (
        "round(sum by (workload, waiting_on) "
        '(workload:stall_gpu_seconds:sum5m{cluster="uneven"}), 0.01)'
    )
    waited = {
        '{workload="pod nlp/train",waiting_on="storage"}': 30,
        '{workload="Slurm job 7",waiting_on="worker_cpu"}': 22.5,
        '{workload="Slurm job 7",waiting_on="network"}': 7.5,
    }
    fleet.expect(MINUTES, stalls, waited)
    owners = (
        'group by (workload, workload_owner) (workload:stall_gpu_seconds:sum5m{cluster="uneven"})'
    )
    billed = {'{workload="pod nlp/train",workload_owner="nlp"}': 1}
    fleet.expect(MINUTES, owners, {**billed, '{workload="Slurm job 7",workload_owner="ada"}': 1})
    share = 'round(gpu:tenant_busy:share_rate5m{cluster="uneven",workload_pod="train"}, 0.01)'
    fleet.expect(MINUTES, f"sum by (workload) ({share})", {'{workload="pod nlp/train"}': 0.7})

    encoder = Gpu(busy=0.5, stalls={"video_engine": 0.2, "asleep": 0.3})
    encodes = pod("encodes", 0.1, waits={"video_engine": 0.2, "asleep": 0.05})
    add_shared(fleet, "encoder", encoder, [encodes, pod("b", 0.4, waits={"asleep": 0.25})])
    expect_charged(fleet, "encoder", MINUTES, {"pod nlp/encodes": 0.3, "pod nlp/b": 0.4})
    for node in ("uneven", "encoder"):
        expect_all_charged(fleet, node, range(SETTLED, MINUTES, 20))
    fleet.check(tmp_path)


@pytest.mark.parametrize("counted", [True, False])
def test_from_two_to_nine_tenants(tmp_path: Path, *, counted: bool) -> None:
    """More than eight are `others`, who have no owner; without counters all have equal shares."""
    fleet = fleet_of(SETTLED)
    for number in range(2, 10):
        node, sum_of = f"n{number}", number * (number + 1) / 2
        named = [
            pod(f"p{n}", 0.9 * n / sum_of, waits={"asleep": 0.1 / number}, counted=counted)
            for n in range(1, min(number, 8) + 1)
        ]
        rest = [Tenant({"user": "eve"}, counted=False)] * (number > 8)
        if counted and rest:
            rest.append(Tenant(OTHERS, 0.9 * 9 / sum_of, {"asleep": 0.1 / number}))
        add_shared(fleet, node, Gpu(busy=0.9, stalls={"asleep": 0.1}), [*named, *rest])
        part = {
            f"pod nlp/p{n}": 0.9 * (n / sum_of if counted else 1 / number)
            for n in range(1, number + 1)
        }
        if number > 8:
            part["others" if counted else "user eve"] = part.pop("pod nlp/p9")
        expect_charged(fleet, node, SETTLED, part)
        expect_all_charged(fleet, node, range(SETTLED, SETTLED + 1))
    others = 'sum by (workload_owner) (workload:busy_gpu_seconds:sum5m{workload="others"}) ^ 0'
    fleet.expect(SETTLED, others, {'{workload_owner="unknown"}': 1} if counted else {})
    fleet.check(tmp_path)


def test_busy_time_of_no_process_is_shared_equally(tmp_path: Path) -> None:
    fleet = fleet_of(SETTLED)
    gpu = Gpu(busy=0.8, stalls={"asleep": 0.2})
    two = [pod("a", 0.5, waits={"asleep": 0.1}), pod("b", 0.1, waits={"asleep": 0.1})]
    add_shared(fleet, "some", gpu, [*two, Tenant(UNATTRIBUTED, 0.2)])
    expect_charged(fleet, "some", SETTLED, {"pod nlp/a": 0.6, "pod nlp/b": 0.2})
    # A driver that does not count by process.
    none = [pod(name, waits={"asleep": 0.1}) for name in "ab"]
    add_shared(fleet, "all", gpu, [*none, Tenant(UNATTRIBUTED, 0.8)])
    expect_charged(fleet, "all", SETTLED, {"pod nlp/a": 0.4, "pod nlp/b": 0.4})
    shown = 'gpu:tenant_busy:share_rate5m{cluster=~"some|all"}'
    share = f"round(sum by (cluster, workload) ({shown}), 0.001)"
    shares = {"a": 0.625, "b": 0.125}
    attributed = {f'{{cluster="some",workload="pod nlp/{name}"}}': s for name, s in shares.items()}
    fleet.expect(SETTLED, share, attributed)
    # One that the scheduler assigned, and that has no process.
    add_shared(
        fleet,
        "unopened",
        gpu,
        [pod("a", 0.8, waits={"asleep": 0.1}), two[1], pod("c", counted=False)],
    )
    expect_charged(fleet, "unopened", SETTLED, {"pod nlp/a": 0.7111, "pod nlp/b": 0.0889})
    idle = [pod(name, waits={"asleep": 0.5}) for name in "ab"]
    add_shared(fleet, "idle", Gpu(busy=0.0), idle)
    expect_charged(fleet, "idle", SETTLED, {"pod nlp/a": 0, "pod nlp/b": 0})
    for node in ("some", "all", "unopened", "idle"):
        expect_all_charged(fleet, node, range(SETTLED, SETTLED + 1))
    fleet.check(tmp_path)


def test_tenants_that_come_and_go(tmp_path: Path) -> None:
    """The series stay for five minutes after the last but one has left."""
    fleet = fleet_of()
    gpu = Gpu(busy=0.9, stalls={"asleep": 0.1})
    # Alone up to minute 20 and from minute 45 on.
    stays = [(20, None), (25, 0.6), (5, 0.9), (1, END), (MINUTES, None)]
    leaves = [(20, None), (25, 0.3), (5, 0.0), (1, END), (MINUTES, None)]
    asleep = [(20, None), (25, 0.05), (5, 0.1), (1, END), (MINUTES, None)]
    asleep_too = [(20, None), (25, 0.05), (5, 0.0), (1, END), (MINUTES, None)]
    held = [(20, None), (25, 1.0), (1, END), (MINUTES, None)]
    two = [
        pod("stays", stays, waits={"asleep": asleep}),
        pod("leaves", leaves, waits={"asleep": asleep_too}, holds=held),
    ]
    add_shared(fleet, "changes", gpu, two)
    alone = {"pod nlp/stays": 0.9}
    expect_charged(fleet, "changes", 20, alone)
    for minute in (35, 45):
        expect_charged(fleet, "changes", minute, {"pod nlp/stays": 0.6, "pod nlp/leaves": 0.3})
    # What it used is charged to the one that left.
    left = 'sum(workload:busy_gpu_seconds:sum5m{cluster="changes",workload="pod nlp/leaves"})'
    fleet.expect(50, f"{left} > bool 0", {"{}": 1})
    expect_charged(fleet, "changes", 65, alone)

    away = [(20, 0.3), (10, 0.0), (1, END), (19, None), (MINUTES, 0.3)]
    there = [(20, 1.0), (1, END), (29, None), (MINUTES, 1.0)]
    waits = {"asleep": 0.05}
    three = [
        pod("a", [(20, 0.3), (30, 0.45), (MINUTES, 0.3)], waits=waits),
        pod("b", [(20, 0.3), (30, 0.45), (MINUTES, 0.3)], waits=waits),
        pod("returns", away, waits=waits, holds=there),
    ]
    add_shared(fleet, "returns", gpu, three)
    expect_charged(fleet, "returns", 45, {"pod nlp/a": 0.45, "pod nlp/b": 0.45})
    expect_charged(
        fleet, "returns", 70, dict.fromkeys(("pod nlp/a", "pod nlp/b", "pod nlp/returns"), 0.3)
    )

    add_shared(fleet, "unscraped", gpu, [pod("a", 0.6, waits=waits), pod("b", 0.3, waits=waits)])
    fleet.fail_scrapes("unscraped", 40, 44)
    for minute in (45, 50):
        charged = (
            'round(sum by (workload) (workload:busy_gpu_seconds:sum5m{cluster="unscraped"}) / 3, 1)'
        )
        fleet.expect(minute, charged, {'{workload="pod nlp/a"}': 60, '{workload="pod nlp/b"}': 30})
    for node in ("changes", "returns", "unscraped"):
        expect_all_charged(fleet, node, range(SETTLED, MINUTES, 5))
    fleet.check(tmp_path)


def test_one_exporter_that_shows_tenants_twice_costs_no_other(tmp_path: Path) -> None:
    fleet = fleet_of(SETTLED)
    gpu = Gpu(busy=0.9, stalls={"asleep": 0.1})
    waits = {"asleep": 0.05}
    two = [pod("a", 0.6, waits=waits), pod("b", 0.3, waits=waits)]
    more = [
        Tenant({**two[0].labels, label: "x"}, 0.0, waits)
        for label in ("user", "workload_container", "rendezvous", "foreign", "container_id")
    ]
    add_shared(fleet, "twice", gpu, [*two, *more])
    add_shared(fleet, "once", gpu, two)
    for node in ("once", "twice"):
        expect_all_charged(fleet, node, range(SETTLED, SETTLED + 1))
    expect_charged(fleet, "once", SETTLED, {"pod nlp/a": 0.6, "pod nlp/b": 0.3})
    expect_charged(fleet, "twice", SETTLED, {"pod nlp/a": 0.6, "pod nlp/b": 0.3})
    fleet.check(tmp_path)
