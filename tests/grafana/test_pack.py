"""What the dashboards take from the rules."""

from __future__ import annotations

import pytest

from builders import pack
from grafana.boards import FOLDER, NAMES, panels
from rules import causes_table, parsed
from rules.fleet import RULES
from support.offenders import each


@each(["30s", "1m", "90s", "1m30s", "2h", "1d"])
def test_durations(duration: str) -> None:
    assert pack.seconds(duration) == parsed.seconds(duration)


@each(["", "30", "30ms", "1 m", "m", "-1m"])
def test_what_is_no_duration_of_whole_seconds(duration: str) -> None:
    with pytest.raises(ValueError, match="not a duration of whole seconds"):
        pack.seconds(duration)


def test_hours_are_counted_in_the_steps_of_the_rules() -> None:
    """Of the group that records what is summed up; whoever reads an hour is told."""
    (group,) = {rule.group for rule in causes_table.pack() if rule.name.endswith("lost_ratio")}
    groups = parsed.groups((RULES / "recording.yml").read_text(encoding="utf-8"))
    (seconds,) = [parsed.seconds(one["interval"]) for one in groups if one["name"] == group]
    assert pack.interval_seconds() == seconds
    for name in NAMES:
        for panel in panels(name):
            hours = [one for one in panel["targets"] if "/ 3600" in one["expr"]]
            assert all(f"* {seconds:g} / 3600" in one["expr"] for one in hours)
            if hours and "Cost" not in panel["title"]:
                assert f"steps of {seconds:g} s" in panel["description"], panel["title"]
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert "the `interval` of the pack's rule groups" in told


def test_what_gpus_may_be_blind_for() -> None:
    recorded = [one for one in causes_table.pack() if one.name == "gpu:blind:bool"]
    assert pack.blind_kinds() == [one.labels["blind"] for one in recorded]
