"""What the rules say of several GPUs together: whole fleets, jobs, boards, two pods at once.

What is lost all day, and what comes and goes for hours, is in test_hours.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rules.cases import expect, table
from rules.fleet import Fleet, add_gpu
from rules.scenes import add_scenes
from rules.series import STALE, Series

END = 50


@pytest.mark.first
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


SCENES = [
    *(("node_incidents", 11, "1m"), ("recorded", 70, "2m"), ("rollouts", 60, "2m")),
    *(("losses", 15, "1m"), ("nothing", 5, "1m"), ("blind", 90, "2m"), ("unwanted", 70, "2m")),
    *(("crashes", 88, "1m"), ("compared", 38, "2m"), ("served", 88, "2m")),
]


@pytest.mark.parametrize(("section", "minutes", "interval"), SCENES)
def test_scenes(section: str, minutes: int, interval: str, tmp_path: Path) -> None:
    fleet = Fleet(minutes, evaluation_interval=interval)
    add_scenes(fleet, section)
    fleet.check(tmp_path)


def test_inputs_and_recommendations(tmp_path: Path) -> None:
    fleet = Fleet(35, evaluation_interval="2m")
    add_scenes(fleet, "inputs")
    add_scenes(fleet, "recommended")
    first = len(fleet._series)
    add_gpu(fleet, "ended", table("ended")["recommends until minute 28"].gpu)
    fleet.change(ended, first=first)
    told = 'count by (instance) ({__name__=~"gpu:prescription:.+",instance="ended"})'
    fleet.expect(27, told, {'{instance="ended"}': 11})
    fleet.expect(30, told, {})
    fleet.check(tmp_path)


def ended(one: Series) -> tuple[float | None, ...]:
    before = one.values[:28] if one.name.startswith("gpu_prescription_") else one.values
    return (*before, *[STALE] * (len(one.values) - len(before)))
