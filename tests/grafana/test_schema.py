"""The dashboards against the schemas that Grafana 11, 12 and 13 are published with."""

from __future__ import annotations

import re
from itertools import product

from grafana.boards import NAMES, Json, board, each_panel
from grafana.schema import VERSIONS, faults
from support.offenders import each

OF_ANOTHER = {
    # A table column that is not shown says so twice: `hidden` up to 12.1, `hideFrom` from 12.2 on.
    # The footer that is not shown is a field's option in newer ones, and this one is dropped;
    # `fields` may be "" for all in 11, whatever the schema says.
    "11": re.compile(r".*\.(custom\.hideFrom: unknown|options\.footer\.fields: '' .*)"),
    "newer": re.compile(r".*\.(custom\.hidden|options\.footer): unknown"),
}
"""Faults that are none, as they are for other versions: by major version."""


def test_there_is_a_schema_of_each_major_version() -> None:
    assert {version.split(".")[0] for version in VERSIONS} == {"11", "12", "13"}
    assert VERSIONS[0] == "11.0.0"


@each(product(NAMES, VERSIONS))
def test_the_schema_knows_everything(of: tuple[str, str]) -> None:
    name, version = of
    other = OF_ANOTHER["11" if version.startswith("11.") else "newer"]
    assert [one for one in faults(board(name), version) if not other.fullmatch(one)] == []


@each_panel
def test_hidden_columns_are_hidden_in_every_version(panel: Json) -> None:
    for rule in panel["fieldConfig"]["overrides"]:
        told = {one["id"]: one["value"] for one in rule["properties"]}
        hidden = told.get("custom.hideFrom", {}).get("viz", False)
        assert told.get("custom.hidden", False) is hidden
