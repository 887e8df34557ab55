"""From evidence to one named cause per GPU, with its loss and its owner: the machinery."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rules.cases import add_row, alert, firing, gpu_of, gpus, node_of, of_gpu, rows, table
from rules.fleet import JOB, RULES, Fleet, Gpu, add_gpu, fired, job, told_of

END = 50
HEALTHY = Gpu()


def order() -> dict[str, int]:
    """The rank of each cause, as written."""
    text = (RULES / "thresholds.yml").read_text()
    written = re.findall(
        r'"gpu:cause:order", labels: \{cause: (\w+)[^}]*\}, expr: vector\((\d+)\)', text
    )
    assert len(written) == len(dict(written)) == text.count('"gpu:cause:order"')
    return {cause: int(rank) for cause, rank in written}


def test_the_order_is_that_of_the_chain() -> None:
    ranks, chain = order(), rows("chain")["steps"]
    assert set(ranks) >= {cause for step in chain for cause in step}
    assert len(set(ranks.values())) == len(ranks)
    for earlier, later in pairwise(chain):
        assert max(ranks[cause] for cause in earlier) < min(ranks[cause] for cause in later)


def test_gates_owners_and_the_order(tmp_path: Path) -> None:
    fleet = Fleet(END)
    for add in (pairs, gates, together, owners, clusters):
        add(fleet)
    # At no time has a GPU two of them.
    most = f"max(max_over_time(count by (instance, gpu, uuid) (gpu:bottleneck:primary)[{END}m:1m]))"
    fleet.expect(END, most, {"{}": 1.0})
    fleet.check(tmp_path)


def pairs(fleet: Fleet) -> None:
    """Two causes that hold of a GPU, the first of which is the primary one."""
    for name, gpu in gpus("pairs").items():
        node = node_of(name)
        first, _, second = name.split()
        add_gpu(fleet, node, gpu)
        fleet.expect_cause(node, 20, first)
        both = f'gpu:cause:evidence{{instance="{node}",cause=~"{first}|{second}"}} >= 0.4'
        answer = {f'{{cause="{cause}"}}': 1.0 for cause in (first, second)}
        fleet.expect(20, f"count by (cause) ({both})", answer)
        fleet.end(node, 20)


ONCE = {"reset": "host_loop_bound", "reset-of-a-fine-one": None, "gap-of-a-fine-one": None}
"""Nothing but this at any time."""


def gates(fleet: Fleet) -> None:
    for name, row in table("gates").items():
        add_row(fleet, name, row, END)
    for node, cause in ONCE.items():
        ever = f'count_over_time(gpu:bottleneck:primary{{instance="{node}"}}[45m])'
        answer = {f'{{cause="{cause}"}}': 1.0} if cause else {}
        fleet.expect(END, f"count by (cause) ({ever})", answer)
    # It reads the gate's own past.
    for node, minutes, is_open in (
        ("underused-still", (13, 24, 34, END), True),
        ("underused-no-more", (10,), True),
        ("underused-no-more", (24,), False),
        ("not-underused", (END,), False),
    ):
        for minute in minutes:
            query = f'count(gpu:gate:underused{{instance="{node}"}})'
            fleet.expect(minute, query, {"{}": 1.0} if is_open else {})


def together(fleet: Fleet) -> None:
    """The guilty one is named, not its neighbour; MIG instances have one index."""
    for node, row in rows("together").items():
        for at, gpu in enumerate(row["gpus"]):
            add_gpu(fleet, node, gpu_of(gpu), min(at, 1))
        label = row["by"]
        query = f'count by ({label}, cause) (gpu:bottleneck:primary{{instance="{node}"}})'
        found = {f'{{{label}="{gpu}",cause="{of}"}}': 1.0 for gpu, of in row["causes"].items()}
        fleet.expect(END, query, found)
        fleet.expect_firing(node, END, *map(alert, row["told"].split()))


def owners(fleet: Fleet) -> None:
    for node, row in rows("owners").items():
        gpu = gpu_of(row, "alert", "labels")
        add_gpu(fleet, node, gpu)
        labels = {**row.get("labels", gpu.owner or {}), **gpu.target}
        expect_alert(fleet, node, row.get("alert", alert("host_loop_bound/warning")), labels)
        fleet.end(node, 20)
    # Target labels survive in the groups of a job, too.
    north = {"cluster": "north", "region": "eu"}
    idle = Gpu(busy=0.05, sm=0.02, owner=job(1), target=north)
    add_gpu(fleet, "group", idle)
    add_gpu(fleet, "other", replace(idle, busy=0.95, sm=0.9))
    expect_alert(fleet, "group", "GpuImbalance/warning", {**job(1), **north})
    fleet.expect_firing("other", 20)


def expect_alert(fleet: Fleet, node: str, name: str, owner: Mapping[str, str]) -> None:
    """After 20 minutes nothing else fires on `node`, and this with these labels only."""
    told = firing(name, node, **of_gpu(node), **told_of(owner, node))
    fleet.expect(20, fired(node), {told: 1.0})


def clusters(fleet: Fleet) -> None:
    """Jobs of two clusters may have one number."""
    for cluster, busy in (("east", 0.98), ("south", 0.3)):
        for index in (0, 1):
            gpu = Gpu(busy=busy, owner=job(7), target={"cluster": cluster})
            add_gpu(fleet, cluster, gpu, index)
        fleet.expect(20, f'max(gpu:group:size{{cluster="{cluster}"}})', {"{}": 2.0})
        most = f'round(max(gpu:group_busy:max{{cluster="{cluster}"}}), 0.01)'
        fleet.expect(20, most, {"{}": busy})
        held = f'cluster:gpus_held:count{{cluster="{cluster}"}}'
        fleet.expect(20, held, {held: 2.0})


# --- Losses and counts -----------------------------------------------------------------------


def test_losses(tmp_path: Path) -> None:
    fleet = Fleet(15)
    lost, total = rows("losses"), defaultdict[str, float](float)
    for node, row in lost.items():
        add_gpu(fleet, node, gpu_of(row, "lost"))
        cause, ratio = row.get("told"), row.get("lost", 0.0)
        query = f'round(sum by (cause) (gpu:bottleneck:lost_ratio{{instance="{node}"}}), 0.001)'
        fleet.expect(15, query, {f'{{cause="{cause}"}}': ratio} if cause else {})
        if cause:
            total[cause] += ratio
    sums = {f'{{cause="{cause}"}}': round(ratio, 3) for cause, ratio in total.items()}
    fleet.expect(15, "round(sum by (cause) (cause:lost_gpu_seconds:rate), 0.001)", sums)
    fleet.expect(15, "sum(cluster:gpus_held:count)", {"{}": len(lost) - 2})
    fleet.expect(15, "sum(cluster:gpus_free:count)", {"{}": 2})
    fleet.check(tmp_path)


def test_no_gpu_at_all(tmp_path: Path) -> None:
    fleet = Fleet(5)
    fleet.expect(5, "sum(cluster:gpus_held:count)", {"{}": 0})
    fleet.expect(5, "sum(cluster:gpus_free:count)", {"{}": 0})
    fleet.expect(5, "gpu:bottleneck:primary", {})
    fleet.check(tmp_path)


# --- Coverage --------------------------------------------------------------------------------


def test_blind_for_what_nobody_wants(tmp_path: Path) -> None:
    """Processes of others: not told of where the exporter was not to see them."""
    fleet = Fleet(70, evaluation_interval="2m")
    every = ("device_causes", "host_causes", "job_causes")
    for node, signals, told in (
        ("unwanted", {}, every[:1]),
        ("not-to-be-had", {"host_pids": 0}, every),
        ("seen", {"host_pids": 1}, every),
    ):
        add_gpu(fleet, node, replace(HEALTHY, sm=None, feeders=False))
        for pod in ("old", "new"):
            for signal, given in {"xid_events": 1, **signals}.items():
                labels = {"job": JOB, "instance": node, "pod": pod, "signal": signal}
                fleet.gauge("gpu_exporter_signal_available", given, **labels)
        alerts = f'ALERTS{{alertname="GpuCausesBlind",alertstate="firing",instance="{node}"}}'
        answer = {f'{{blind="{what}"}}': 1.0 for what in told}
        fleet.expect(70, f"sum by (blind) ({alerts})", answer)
    fleet.check(tmp_path)
