"""What panels name: columns, variables, runbooks. Grafana passes over what there is not."""

from __future__ import annotations

import json
import re

import pytest

from dashboardpictures import tables
from dashboardpictures.asking import Labels, Points, Window, variables
from grafana.boards import EVERYTHING, NAMES, Json, board, panels, selectors
from rules.causes_table import pack

ALERTS = {rule.name for rule in pack() if rule.is_alert}
BY = re.compile(r"\bby \(([^)]+)\)")
TABLES = [(name, panel) for name in NAMES for panel in panels(name) if panel["type"] == "table"]
OF_NO_QUERY = {"exporter: Signals": {"instance\\signal"}}
"""Columns that a transformation makes."""

each_board = pytest.mark.parametrize("name", NAMES)
each_table = pytest.mark.parametrize(("name", "panel"), TABLES, ids=lambda one: f"{one}"[:40])


class Grouped:
    """Answers a query with one series that has the labels by which it groups."""

    def query(self, promql: str, _: float | None = None) -> list[tuple[Labels, float]]:
        assert selectors(promql)
        labels = BY.findall(promql)[0].split(", ")
        return [(dict.fromkeys(labels, "x"), 1.0)]

    def query_range(self, *_: object) -> list[tuple[Labels, Points]]:
        raise AssertionError("a table asks for the last values")


def columns(name: str, panel: Json) -> set[str]:
    """The columns of a table whose queries all have an answer."""
    values = {**variables(board(name), {"gpu": "x", "cost": "2"}), "__range": EVERYTHING["__range"]}
    return {*tables.framed(panel, Window(Grouped(), values, 0, 60)).columns}


def rules_of(panel: Json) -> list[Json]:
    """Overrides but for those of any column."""
    found: list[Json] = panel["fieldConfig"]["overrides"]
    return [one for one in found if one["matcher"]["options"] != "/.*/"]


@each_table
def test_overrides_are_of_columns_that_there_are(name: str, panel: Json) -> None:
    there = columns(name, panel) | OF_NO_QUERY.get(f"{name}: {panel['title']}", set())
    for one in rules_of(panel):
        matcher = one["matcher"]
        if matcher["id"] == "byRegexp":
            pattern = re.compile(matcher["options"].strip("/"))
            assert any(pattern.search(column) for column in there), matcher
        else:
            assert matcher["options"] in there, matcher


@each_table
def test_columns_in_order_are_there(name: str, panel: Json) -> None:
    """But for the name that a value has while other queries have no answer."""
    named = {
        column
        for one in panel["transformations"]
        for column in one["options"].get("indexByName", {})
    }
    assert named - {"Value"} <= columns(name, panel) | {"Value #A"}


@each_table
def test_a_table_is_sorted_by_a_column(name: str, panel: Json) -> None:
    titles = {
        prop["value"]
        for one in rules_of(panel)
        for prop in one["properties"]
        if prop["id"] == "displayName"
    }
    assert {one["displayName"] for one in panel["options"]["sortBy"]} <= titles, name


@each_table
def test_links_read_columns_that_there_are(name: str, panel: Json) -> None:
    urls = re.findall(r"__data\.fields\.(\w+)", json.dumps(panel))
    assert set(urls) <= columns(name, panel)


def test_the_links_of_the_verdicts_are_among_those_checked() -> None:
    verdicts = next(panel for _, panel in TABLES if panel["title"] == "Verdicts")
    read = set(re.findall(r"__data\.fields\.(\w+)", json.dumps(verdicts)))
    assert read == {"job", "instance", "uuid", "page"}


def test_links_in_heads_lead_to_runbooks() -> None:
    urls = [link["url"] for panel in panels("exporter") for link in panel.get("links", [])]
    names = {re.fullmatch(r"\$\{runbooks\}/(\w+)\.md", url)[1] for url in urls}  # type: ignore[index]
    told = re.findall(r"Gpu[A-Z]\w+", board("exporter")["annotations"]["list"][0]["target"]["expr"])
    assert names == set(told)
    assert names <= ALERTS


@each_board
def test_every_variable_is_used(name: str) -> None:
    found = board(name)
    for one in found["templating"]["list"]:
        others = [v for v in found["templating"]["list"] if v["name"] != one["name"]]
        rest = json.dumps({**found, "templating": others})
        assert re.search(rf"\$\{{?{one['name']}\b", rest), one["name"]
