"""Dashboards as data: queries, panels and rows, and the JSON that Grafana reads.

The classic format, with the schema of Grafana 11.0, which later versions migrate by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builders.pack import THRESHOLD, threshold

Json = dict[str, Any]

SCHEMA_VERSION = 39
COLUMNS = 24
TAG = "gpu-bottleneck"
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
WARN = "#D55E00"
BARELY = "#E69F00"
NOTHING = "-"
"""Shown where there is no series: never a zero."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel: over the range, or the last value as rows of a table."""

    expr: str
    legend: str = ""
    table: bool = False
    instant: bool = False
    step: str | None = None
    """The smallest step between two points."""

    def json(self, number: int) -> Json:
        """Grafana's form of the `number`th query of a panel."""
        once = self.table or self.instant
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": "table" if self.table else "time_series",
            "instant": once,
            "range": not once,
            "legendFormat": self.legend or "__auto",
            "refId": chr(ord("A") + number),
            **({"interval": self.step} if self.step else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel; `thresholds` are names in rules/thresholds.yml, drawn at their numbers."""

    title: str
    description: str
    kind: str
    queries: Sequence[Query]
    unit: str
    width: int = 12
    height: int = 8
    custom: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    thresholds: Sequence[str] = ()
    below_is_bad: bool = False
    since: str | None = None
    """Shows this much of the past, whatever range the dashboard shows."""
    transformations: Sequence[Json] = ()
    links: Sequence[Json] = ()
    """In the head of the panel, with and without data."""
    no_value: str = NOTHING

    def json(self, number: int, x: int, y: int) -> Json:
        """Grafana's form, at that place."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self._described(),
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": [query.json(at) for at, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": list(self.overrides)},
            "options": self.options,
            **({"transformations": [*self.transformations]} if self.transformations else {}),
            **({"links": list(self.links)} if self.links else {}),
            **({"timeFrom": self.since} if self.since else {}),
        }

    def _described(self) -> str:
        names = " and ".join(f"`{THRESHOLD}{name}`" for name in self.thresholds)
        return f"{self.description} The line is {names}." if names else self.description

    def _defaults(self) -> Json:
        fixed: Json = {
            "unit": self.unit,
            "noValue": self.no_value,
            "custom": self.custom,
            "thresholds": {"mode": "absolute", "steps": list(self._steps())},
        }
        return {"color": {"mode": "palette-classic"}, **self.defaults, **fixed}

    def _steps(self) -> Iterator[Json]:
        lines = sorted(threshold(name) for name in self.thresholds)
        colours = [BARELY, WARN][-len(lines) :] if lines else []
        if self.below_is_bad:
            first, *others = [*reversed(colours), "transparent"]
        else:
            first, *others = ["transparent", *colours]
        yield {"color": first, "value": None}
        for colour, line in zip(others, lines, strict=True):
            yield {"color": colour, "value": line}


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title, from left to right."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard; `name` is that of its file."""

    name: str
    uid: str
    title: str
    description: str
    variables: Sequence[Json]
    annotations: Sequence[Json]
    rows: Sequence[Row]
    since: str

    def json(self) -> Json:
        """As Grafana imports it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["gpu", TAG],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "timezone": "browser",
            "refresh": "1m",
            "time": {"from": f"now-{self.since}", "to": "now"},
            "templating": {"list": list(self.variables)},
            "annotations": {"list": list(self.annotations)},
            "links": [_LINKS],
            "panels": _placed(self.rows),
        }


_LINKS: Json = {
    "type": "dashboards",
    "title": "GPU dashboards",
    "tags": [TAG],
    "asDropdown": False,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "",
    "url": "",
}


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Rows below each other, with their panels; numbered from 1."""
    placed: list[Json] = []
    number, y = 1, 0
    for row in rows:
        head: Json = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            "panels": [],
        }
        panels, bottom = _lined_up(row.panels, number + 1, y + 1)
        number += 1 + len(panels)
        y = y + 1 if row.collapsed else bottom
        if row.collapsed:
            head["panels"] = panels
            panels = []
        placed += [head, *panels]
    return placed


def _lined_up(panels: Sequence[Panel], number: int, y: int) -> tuple[list[Json], int]:
    """Panels in lines of 24 columns, and where the next line begins."""
    placed: list[Json] = []
    x = bottom = 0
    for at, panel in enumerate(panels):
        if x + panel.width > COLUMNS:
            x, y = 0, bottom
        placed.append(panel.json(number + at, x, y))
        x, bottom = x + panel.width, max(bottom, y + panel.height)
    return placed, bottom


# --- Variables and annotations --------------------------------------------------------------------
def datasource_variable() -> Json:
    """The Prometheus to query."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "options": [],
    }


def query_variable(
    name: str,
    label: str,
    query: str,
    *,
    everything: str | None = ".+",
    regex: str = "",
) -> Json:
    """Values that a query finds, several at a time; `everything` is the pattern of All.

    None: All are the values found, each by itself, and no more than those.
    """
    variable: Json = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": query,
        "regex": regex,
        "refresh": 2,
        "sort": 5,
        "hide": 0,
        "multi": True,
        "includeAll": True,
        "options": [],
    }
    if everything is not None:
        variable["allValue"] = everything
        variable["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return variable


def constant(name: str, value: str) -> Json:
    """A hidden variable, to change where the dashboard is provisioned."""
    return {
        "name": name,
        "label": name,
        "type": "constant",
        "query": value,
        "hide": 2,
        "skipUrlSync": True,
        "current": {"selected": True, "text": value, "value": value},
        "options": [{"selected": True, "text": value, "value": value}],
    }


def textbox(name: str, label: str, value: str) -> Json:
    """A text box."""
    return {
        "name": name,
        "label": label,
        "type": "textbox",
        "query": value,
        "hide": 0,
        "current": {"selected": True, "text": value, "value": value},
        "options": [{"selected": True, "text": value, "value": value}],
    }


def alert_annotation(expr: str, text: str, *, enabled: bool) -> Json:
    """Marks while alerts fire."""
    return {
        "name": "GPU alerts",
        "datasource": DATASOURCE,
        "enable": enabled,
        "hide": False,
        "iconColor": WARN,
        "target": {"refId": "Anno", "expr": expr, "interval": "60s"},
        "titleFormat": "{{alertname}}",
        "textFormat": text,
    }


# --- Parts of panels ------------------------------------------------------------------------------
def coloured(name: str, colour: str) -> Json:
    """The series of that name always has this colour."""
    return override(name, color={"mode": "fixed", "fixedColor": colour})


def override(name: str, /, **properties: object) -> Json:
    """Properties of the field of that name; `custom_x` stands for `custom.x`."""
    return _override({"id": "byName", "options": name}, properties)


def override_all(pattern: str, /, **properties: object) -> Json:
    """The same for all fields whose names `pattern` matches, like `/^Value/`."""
    return _override({"id": "byRegexp", "options": pattern}, properties)


def _override(matcher: Json, properties: Mapping[str, object]) -> Json:
    return {
        "matcher": matcher,
        "properties": [
            {"id": key.replace("custom_", "custom."), "value": value}
            for key, value in properties.items()
        ],
    }


def mapped(texts: Mapping[str, tuple[str, str | None]]) -> Json:
    """Values shown as texts, in colours."""
    return {
        "type": "value",
        "options": {
            value: {"index": index, "text": text, **({"color": colour} if colour else {})}
            for index, (value, (text, colour)) in enumerate(texts.items())
        },
    }
