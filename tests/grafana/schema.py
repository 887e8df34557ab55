"""What Grafana's own schemas say of a dashboard, from version 11.0 on; see schemas/make.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from jsonschema import Draft7Validator, ValidationError

from grafana.boards import Json

FOLDER = Path(__file__).parent / "schemas"
VERSIONS = sorted(
    (path.stem for path in FOLDER.glob("*.json")),
    key=lambda version: [int(number) for number in version.split(".")],
)

# The schemas leave open what plugins add to. Those of Grafana's own that are in use, which all of
# these versions have: packages/grafana-data/src/{valueFormats,transformations}.
UNITS = {"none", "short", "locale", "percentunit", "s", "bytes", "Bps", "watt", "celsius", "cps"}
UNITS |= {"string", "dateTimeFromNow"}
MATCHERS = {"byName", "byRegexp"}
TRANSFORMATIONS = {"merge", "organize"}


def faults(board: Json, version: str) -> list[str]:
    """Where it has what this version does not know, or another type or value than it takes."""
    found = list(_against(version, board, "board"))
    folded = [panel for row in board["panels"] for panel in row.get("panels", [])]
    for at, panel in enumerate([*board["panels"], *folded]):
        found += (f".panels[{at}]{fault}" for fault in _of_panel(version, panel))
    return found


def _of_panel(version: str, panel: Json) -> Iterator[str]:
    yield from _against(version, panel, "panels", panel["type"])
    if panel["type"] == "row":
        return
    for at, one in enumerate(panel.get("transformations", [])):
        yield from _listed(f".transformations[{at}].id", one["id"], TRANSFORMATIONS)
    defaults, path = panel["fieldConfig"]["defaults"], ".fieldConfig.defaults"
    yield from _listed(f"{path}.unit", defaults.get("unit", "none"), UNITS)
    for at, rule in enumerate(panel["fieldConfig"]["overrides"]):
        path = f".fieldConfig.overrides[{at}]"
        yield from _listed(f"{path}.matcher.id", rule["matcher"]["id"], MATCHERS)
        for one in rule["properties"]:
            yield from (f"{path}{fault}" for fault in _of_property(version, panel["type"], one))


def _of_property(version: str, kind: str, given: Json) -> Iterator[str]:
    """An override's property is a default, named by its path: `custom.width`."""
    names, value = given["id"].split("."), given["value"]
    if names == ["unit"]:
        yield from _listed(".unit", value, UNITS)
    for name in reversed(names):
        value = {name: value}
    path = ("properties", "fieldConfig", "properties", "defaults")
    yield from _against(version, value, "panels", kind, *path)


def _listed(path: str, value: object, known: set[str]) -> Iterator[str]:
    if value not in known:
        yield f"{path}: {value!r} is not in the list"


def _against(version: str, value: Json, *part: str) -> Iterator[str]:
    """By a part of the schema; what is unknown is named itself, not what it stands in."""
    for error in _validator(version, part).iter_errors(value):
        path = error.json_path.removeprefix("$")
        unknown = _unknown(error)
        yield from (f"{path}.{name}: unknown" for name in unknown)
        if not unknown:
            yield f"{path}: {error.message}"


def _unknown(error: ValidationError) -> list[str]:
    if error.validator != "additionalProperties":
        return []
    return [name for name in error.instance if name not in error.schema.get("properties", {})]


@cache
def _validator(version: str, part: tuple[str, ...]) -> Draft7Validator:
    found = json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8"))
    for name in part:
        found = found[name]
    return Draft7Validator(found)
