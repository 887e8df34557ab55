"""The dashboards against the schemas that Grafana 11, 12 and 13 are published with."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

from grafana.boards import NAMES, Json, board, panels
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


@each(NAMES)
def test_hidden_columns_are_hidden_in_every_version(name: str) -> None:
    for panel in panels(name):
        for rule in panel["fieldConfig"]["overrides"]:
            told = {one["id"]: one["value"] for one in rule["properties"]}
            hidden = told.get("custom.hideFrom", {}).get("viz", False)
            assert told.get("custom.hidden", False) is hidden, panel["title"]


# --- The check itself -----------------------------------------------------------------------------
def richest(kind: str, found: Json) -> Json:
    """The panel of this kind that has most overrides."""
    of_kind: list[Json] = [panel for panel in found["panels"] if panel["type"] == kind]
    return max(of_kind, key=lambda panel: len(panel["fieldConfig"]["overrides"]))


def small() -> Json:
    """A dashboard with one panel of each of two kinds."""
    found = board("fleet")
    return {**found, "panels": [richest("table", found), richest("timeseries", found)]}


def defaults(found: Json) -> Json:
    config: Json = richest("timeseries", found)["fieldConfig"]["defaults"]
    return config


def override(found: Json, name: str) -> Json:
    """The first override of a property of this name in a table."""
    return next(
        one
        for rule in richest("table", found)["fieldConfig"]["overrides"]
        for one in rule["properties"]
        if one["id"] == name
    )


PLANTS: dict[str, Callable[[Json], object]] = {
    ".custom.drawStyle": lambda b: defaults(b)["custom"].update(drawStyle="lnie"),
    ".defaults.unit": lambda b: defaults(b).update(unit=7),
    ".defaults.unit ": lambda b: defaults(b).update(unit="percentunti"),
    ".legend.placement": lambda b: richest("timeseries", b)["options"]["legend"].update(
        placement="middle"
    ),
    ".schemaVersion": lambda b: b.update(schemaVersion="x"),
    ".refresh": lambda b: b.update(refresh=5),
    ".matcher.id": lambda b: richest("table", b)["fieldConfig"]["overrides"][0]["matcher"].update(
        id="byNmae"
    ),
    ".custom.hiden": lambda b: override(b, "custom.hidden").update(id="custom.hiden"),
    ".custom.width": lambda b: override(b, "custom.width").update(value="wide"),
    ".transformations[0].id": lambda b: richest("table", b)["transformations"][0].update(
        id="mergge"
    ),
    ".gridPos.width": lambda b: richest("table", b)["gridPos"].update(width=3),
    ".custom.fillOpactiy": lambda b: defaults(b)["custom"].update(fillOpactiy=1),
    ".options.lengend": lambda b: richest("timeseries", b)["options"].update(lengend={}),
    ".targets[0].exprr": lambda b: richest("timeseries", b)["targets"][0].update(exprr="up"),
    ".targets[0].format": lambda b: richest("table", b)["targets"][0].update(format="tabel"),
    ".unit": lambda b: override(b, "unit").update(value="wattt"),
    ".list[0].hide": lambda b: b["templating"]["list"][0].update(hide=9),
}


@each(product(PLANTS, VERSIONS))
def test_what_is_wrong_is_found(of: tuple[str, str]) -> None:
    path, version = of
    planted = small()
    PLANTS[path](planted)
    found = set(faults(planted, version)) - set(faults(small(), version))
    assert found
    assert all(fault.partition(": ")[0].endswith(path.rstrip()) for fault in found)
