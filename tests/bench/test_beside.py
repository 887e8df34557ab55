"""Tests the benchmark's own parts, not its results, which depend on the machine."""

from __future__ import annotations

from bench.beside import Cost, Costs, measure, row
from bench.crowd import ASLEEP, STARVED, Node


def test_the_exporter_and_the_bare_loop_are_measured_at_the_same_time() -> None:
    costs = measure(Node(2, 4, others=3, doing=STARVED), 2.0, None, warm_up=1.0)
    assert costs.nvitop is None
    assert costs.ours.cpu > costs.floor.cpu > 0
    assert costs.ours.resident_bytes > costs.floor.resident_bytes > 1_000_000
    assert costs.ours.scrapes


def test_a_crowd_comes_and_goes() -> None:
    node = Node(2, 4, threads=5, forks=20, mains=1, doing=ASLEEP)
    assert measure(node, 2.0, None, warm_up=1.0).ours.cpu > 0


def test_a_row_tells_the_ratio() -> None:
    costs = Costs(Cost(0.007, 40 << 20), Cost(0.014, 30 << 20), Cost(0.001, 10 << 20))
    assert row(Node(8, 64), costs).startswith("| 8 | 64 | 0 | busy | **0.50** | 0.70% | 1.40% |")
