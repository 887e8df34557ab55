"""The dashboards against the schemas that Grafana 11, 12 and 13 are published with."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

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


# --- The check itself -----------------------------------------------------------------------------
def small() -> Json:
    """A dashboard with a panel of each of two kinds, those that have most overrides."""

    def richest(kind: str) -> Json:
        of_kind: list[Json] = [one for one in board("fleet")["panels"] if one["type"] == kind]
        return max(of_kind, key=lambda panel: len(panel["fieldConfig"]["overrides"]))

    return {**board("fleet"), "panels": [richest("table"), richest("timeseries")]}


TABLE, SERIES = "panels.0.", "panels.1."
PLANTS: dict[str, tuple[str, object]] = {
    ".custom.drawStyle": (f"{SERIES}fieldConfig.defaults.custom.drawStyle", "lnie"),
    ".defaults.unit": (f"{SERIES}fieldConfig.defaults.unit", 7),
    ".defaults.unit ": (f"{SERIES}fieldConfig.defaults.unit", "percentunti"),
    ".options.lengend": (f"{SERIES}options.lengend", {}),
    ".targets[0].exprr": (f"{SERIES}targets.0.exprr", "up"),
    ".targets[0].format": (f"{TABLE}targets.0.format", "tabel"),
    ".transformations[0].id": (f"{TABLE}transformations.0.id", "mergge"),
    ".matcher.id": (f"{TABLE}fieldConfig.overrides.0.matcher.id", "byNmae"),
    ".custom.hiden": ("custom.hidden id", "custom.hiden"),
    ".custom.width": ("custom.width value", "wide"),
    ".unit": ("unit value", "wattt"),
    ".refresh": ("refresh", 5),
    ".list[0].hide": ("templating.list.0.hide", 9),
}
"""By the end of what is told: where it is planted, and what; a word apart is that of the table's
first override of this property."""


def planted(where: str, value: object) -> Json:
    found = small()
    target: Any = found
    name, _, key = where.partition(" ")
    if key:
        rules = found["panels"][0]["fieldConfig"]["overrides"]
        target = next(one for r in rules for one in r["properties"] if one["id"] == name)
    else:
        *path, key = where.split(".")
        for step in path:
            target = target[int(step) if step.isdigit() else step]
    target[key] = value
    return found


@each(product(PLANTS, VERSIONS))
def test_what_is_wrong_is_found(of: tuple[str, str]) -> None:
    path, version = of
    found = set(faults(planted(*PLANTS[path]), version)) - set(faults(small(), version))
    assert found
    assert all(fault.partition(": ")[0].endswith(path.rstrip()) for fault in found)
