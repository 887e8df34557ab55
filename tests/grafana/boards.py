"""The dashboards as data: panels, their queries, and variables with something in their place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser as promql

from rules.parsed import nodes
from support.offenders import each

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "grafana"
NAMES = ("fleet", "gpu", "exporter")

Json = dict[str, Any]

EVERYTHING: Mapping[str, str] = {
    "__rate_interval": "5s",
    "__range": "60s",
    "cluster": ".*",
    "job": ".+",
    "instance": ".+",
    "namespace": ".*",
    "workload": ".*",
    "gpu": ".+",
    "cost": "2",
}
_VARIABLE = re.compile(r"\$(?:([a-z_]\w*)|\{([a-z_]\w*)\})")


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, and where it stands."""

    board: str
    panel: Json
    target: Json

    def __str__(self) -> str:
        return f"{self.board}: {self.panel['title']} {self.target['refId']}"

    def text(self, values: Mapping[str, str] = EVERYTHING) -> str:
        return filled(self.target["expr"], values)


def filled(text: str, values: Mapping[str, str] = EVERYTHING) -> str:
    """With values for its variables; raises KeyError for one that there is not."""
    return _VARIABLE.sub(lambda found: values[found[1] or found[2]], text)


def board(name: str) -> Json:
    found: Json = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels(name: str) -> list[Json]:
    """Without rows."""
    everything = board(name)["panels"]
    inner = [panel for row in everything for panel in row.get("panels", [])]
    return [panel for panel in [*everything, *inner] if panel["type"] != "row"]


def asked(*names: str) -> list[Asked]:
    """All queries of the panels of these dashboards, of all by default."""
    return [
        Asked(name, panel, target)
        for name in names or NAMES
        for panel in panels(name)
        for target in panel["targets"]
    ]


def query(name: str, title: str, letter: str = "A", **values: str) -> str:
    """The PromQL of one query, with other values for some variables."""
    (found,) = [
        one for one in asked(name) if (one.panel["title"], one.target["refId"]) == (title, letter)
    ]
    return found.text({**EVERYTHING, **values})


def variable(name: str, called: str) -> Json:
    """A variable of a dashboard."""
    found: list[Json] = board(name)["templating"]["list"]
    return next(one for one in found if one["name"] == called)


def selectors(text: str) -> list[promql.VectorSelector]:
    """All of an expression, those with a range too."""
    return nodes(promql.parse(text), promql.VectorSelector)


each_board = each(NAMES)
each_panel = each([one for name in NAMES for one in panels(name)], lambda panel: panel["title"])
each_query = each(asked())
