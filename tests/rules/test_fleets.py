"""What the rules say of several GPUs together: whole fleets, jobs, boards, two pods at once.

What is lost all day, and what comes and goes for hours, is in test_hours.
"""

from __future__ import annotations

from pathlib import Path

from rules.cases import expect, table
from rules.fleet import Fleet, add_gpu
from rules.scenes import add_scenes
from rules.series import STALE, Series

END = 50


def test_fleets(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    add_scenes(fleet, "fleets")
    for every in (3, 9):
        for name, row in table("failing").items():
            node = f"{name}-{every}"
            add_gpu(fleet, node, row.gpu)
            for minute in range(every, 40, every):
                fleet.fail_scrapes(node, minute, minute + 1)
            fleet.end(node, expect(fleet, node, row.told, END))
    fleet.check(tmp_path)


def test_what_is_slow_for_several_jobs_of_a_node_is_the_nodes_incident(tmp_path: Path) -> None:
    fleet = Fleet(11)
    add_scenes(fleet, "node_incidents")
    fleet.check(tmp_path)


def test_a_gpu_adds_few_series(tmp_path: Path) -> None:
    """What a fleet's Prometheus has to keep, once the windows of an hour are full."""
    fleet = Fleet(70, evaluation_interval="2m")
    add_scenes(fleet, "recorded")
    fleet.check(tmp_path)


def test_while_pods_are_replaced_everything_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(60)
    add_scenes(fleet, "rollouts")
    fleet.check(tmp_path)


def test_inputs_and_recommendations(tmp_path: Path) -> None:
    fleet = Fleet(35)
    add_scenes(fleet, "inputs")
    add_scenes(fleet, "recommended")
    first = len(fleet._series)
    add_gpu(fleet, "ended", table("ended")["recommends until minute 28"].gpu)
    fleet.change(ended, first=first)
    told = 'count by (instance) ({__name__=~"gpu:prescription:.+",instance="ended"})'
    fleet.expect(27, told, {'{instance="ended"}': 10})
    fleet.expect(30, told, {})
    fleet.check(tmp_path)


def ended(one: Series) -> tuple[float | None, ...]:
    before = one.values[:28] if one.name.startswith("gpu_prescription_") else one.values
    return (*before, *[STALE] * (len(one.values) - len(before)))
