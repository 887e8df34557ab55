"""What panels name: columns, variables, runbooks. Grafana passes over what there is not."""

from __future__ import annotations

import json
import re

from grafana.boards import NAMES, Json, board, each_board, panels
from rules.causes_table import pack
from support.offenders import each

ALERTS = {rule.name for rule in pack() if rule.is_alert}
BY = re.compile(r"\bby \(([^)]+)\)")
TABLES = [(name, panel) for name in NAMES for panel in panels(name) if panel["type"] == "table"]

each_table = each([panel for _, panel in TABLES], lambda panel: f"{panel['title']}")


def columns(panel: Json) -> set[str]:
    """The columns of a table whose queries all have an answer: what they group by, and values."""
    asked = panel["targets"]
    labels = {label for one in asked for label in BY.findall(one["expr"])[0].split(", ")}
    letters = {f"Value #{one['refId']}" for one in asked}
    return labels | (letters if len(asked) > 1 else {"Value"})


def rules_of(panel: Json) -> list[Json]:
    """Overrides but for those of any column."""
    found: list[Json] = panel["fieldConfig"]["overrides"]
    return [one for one in found if one["matcher"]["options"] != "/.*/"]


@each_table
def test_overrides_are_of_columns_that_there_are(panel: Json) -> None:
    there = columns(panel)
    for one in rules_of(panel):
        matcher = one["matcher"]
        if matcher["id"] == "byRegexp":
            pattern = re.compile(matcher["options"].strip("/"))
            assert any(pattern.search(column) for column in there), matcher
        else:
            assert matcher["options"] in there, matcher


def linked(panel: Json) -> set[str]:
    """The columns that its links read."""
    return set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel)))


@each_table
def test_columns_in_order_sorted_by_or_linked_are_there(panel: Json) -> None:
    """But for the name that a value has while other queries have no answer."""
    steps = [one["options"].get("indexByName", {}) for one in panel["transformations"]]
    assert {column for step in steps for column in step} - {"Value"} <= columns(panel) | {
        "Value #A"
    }
    properties = [prop for one in rules_of(panel) for prop in one["properties"]]
    titles = {prop["value"] for prop in properties if prop["id"] == "displayName"}
    assert {one["displayName"] for one in panel["options"]["sortBy"]} <= titles
    assert linked(panel) <= columns(panel)
    assert linked(panel) >= (
        {"job", "instance", "uuid", "page"} if panel["title"] == "Verdicts" else set()
    )


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
