"""From evidence to one named cause per GPU, with its loss and its owner: the machinery."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rules.cases import add_row, alert, firing, gpu_of, gpus, node_of, of_gpu, rows, table
from rules.causes_table import pack
from rules.fleet import Fleet, add_gpu, fired, told_of
from rules.scenes import add_scenes

END = 50


def test_the_order_is_that_of_the_chain() -> None:
    written = [rule for rule in pack() if rule.name == "gpu:cause:order"]
    ranks = {rule.labels["cause"]: float(rule.fields["expr"][7:-1]) for rule in written}
    chain = rows("chain")["steps"]
    assert set(ranks) >= {cause for step in chain for cause in step}
    assert len(set(ranks.values())) == len(ranks) == len(written)
    for earlier, later in pairwise(chain):
        assert max(ranks[cause] for cause in earlier) < min(ranks[cause] for cause in later)


@pytest.mark.first
def test_gates_owners_and_the_order(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    pairs(fleet)
    for name, row in table("gates").items():
        add_row(fleet, name, row, END)
    owners(fleet)
    add_scenes(fleet, "verdicts")
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


def owners(fleet: Fleet) -> None:
    """After 20 minutes nothing else fires, and this with these labels only."""
    for node, row in rows("owners").items():
        gpu = gpu_of(row, "alert", "labels")
        add_gpu(fleet, node, gpu)
        owner = {**row.get("labels", gpu.owner or {}), **gpu.target}
        name = row.get("alert", alert("host_loop_bound/warning"))
        told = firing(name, node, **of_gpu(node), **told_of(owner, node))
        fleet.expect(20, fired(node), {told: 1.0})
        fleet.end(node, 20)
