"""What of a dashboard can be drawn; anything else is refused, so that nothing is drawn wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dashboardpictures.units import UNITS

Json = dict[str, Any]
Allowed = Mapping[str, tuple[object, ...] | None]
"""Values by path; None: any."""


class UnsupportedError(Exception):
    """A part of a dashboard that is not drawn as Grafana would."""


_COMMON: Allowed = {
    **dict.fromkeys(("id", "type", "title", "description", "datasource", "gridPos")),
    **dict.fromkeys(f"targets.{key}" for key in ("datasource", "editorMode", "expr", "refId")),
    "targets.legendFormat": None,
    "field.color.fixedColor": None,
    "field.color.mode": ("palette-classic", "fixed"),
    "field.mappings.options": None,
    "field.mappings.type": ("value",),
    "field.matcher": ("byName", "byRegexp"),
    "field.noValue": None,
    "field.thresholds.mode": ("absolute",),
    "field.thresholds.steps": None,
    "field.unit": UNITS,
    "options.reduceOptions.calcs": (["lastNotNull"],),
    "options.reduceOptions.fields": ("",),
    "options.reduceOptions.values": (False,),
    # What is seen only with a pointer over it.
    "links": None,
    "options.tooltip": None,
}
_ONCE: Allowed = {"targets.instant": (True,), "targets.range": (False,)}
_OVER_TIME: Allowed = {
    "targets.format": ("time_series",),
    "targets.instant": (False,),
    "targets.range": (True,),
    "targets.interval": None,
    "options.legend.showLegend": (True,),
}

_TIME_SERIES: Allowed = {
    "field.custom.axisSoftMin": (0,),
    "field.custom.drawStyle": ("line",),
    "field.custom.fillOpacity": None,
    "field.custom.lineWidth": None,
    "field.custom.showPoints": ("never",),
    "field.custom.spanNulls": (False,),
    "field.custom.stacking.group": ("A",),
    "field.custom.stacking.mode": ("none", "normal"),
    "field.custom.thresholdsStyle.mode": ("off", "dashed"),
    "field.max": None,
    "field.min": (0,),
    "options.legend.calcs": ([], ["mean", "lastNotNull"]),
    "options.legend.displayMode": ("list", "table"),
    "options.legend.placement": ("bottom", "right"),
}
_STATE_TIMELINE: Allowed = {
    "field.custom.fillOpacity": None,
    "field.custom.lineWidth": (0,),
    "options.alignValue": ("left",),
    "options.legend.calcs": ([],),
    "options.legend.displayMode": ("list",),
    "options.legend.placement": ("bottom",),
    "options.mergeValues": (True,),
    "options.rowHeight": None,
    "options.showValue": ("auto",),
}
_STAT: Allowed = {
    "targets.format": ("time_series",),
    "options.colorMode": ("value",),
    "options.graphMode": ("none",),
    "options.justifyMode": ("auto",),
    "options.orientation": ("auto",),
    "options.textMode": ("auto",),
    "options.wideLayout": None,
}
_BAR_GAUGE: Allowed = {
    "targets.format": ("time_series",),
    "field.min": (0,),
    "options.displayMode": ("basic",),
    "options.maxVizHeight": None,
    "options.minVizHeight": None,
    "options.minVizWidth": None,
    "options.namePlacement": ("left",),
    "options.orientation": ("horizontal",),
    "options.showUnfilled": (False,),
    "options.sizing": ("auto",),
    "options.valueMode": ("text",),
}
_TABLE: Allowed = {
    "targets.format": ("table",),
    "field.custom.align": ("auto",),
    "field.custom.cellOptions.mode": ("basic",),
    "field.custom.cellOptions.type": ("auto", "color-background", "gauge"),
    "field.custom.cellOptions.valueDisplayMode": ("text",),
    "field.custom.filterable": None,
    "field.custom.hidden": (True,),
    "field.custom.hideFrom.viz": (True,),
    "field.custom.width": None,
    "field.decimals": None,
    "field.displayName": None,
    "field.links": None,
    "field.max": None,
    "field.min": None,
    "options.cellHeight": ("sm",),
    "options.footer.show": (False,),
    # What the footer that is not shown would hold.
    **dict.fromkeys(f"options.footer.{key}" for key in ("reducer", "countRows", "fields")),
    "options.showHeader": (True,),
    "options.sortBy": None,
    "transformations.merge": ({},),
    "transformations.organize.excludeByName": None,
    "transformations.organize.indexByName": None,
    "transformations.organize.renameByName": ({},),
    "transformations.groupingToMatrix.columnField": None,
    "transformations.groupingToMatrix.rowField": None,
    "transformations.groupingToMatrix.valueField": None,
    "transformations.groupingToMatrix.emptyValue": ("null",),
}
PANELS: Mapping[str, Allowed] = {
    "timeseries": {**_COMMON, **_OVER_TIME, **_TIME_SERIES},
    "state-timeline": {**_COMMON, **_OVER_TIME, **_STATE_TIMELINE},
    "stat": {**_COMMON, **_ONCE, **_STAT},
    "bargauge": {**_COMMON, **_ONCE, **_BAR_GAUGE},
    "table": {**_COMMON, **_ONCE, **_TABLE},
}


def check(panel: Json) -> None:
    """Raise UnsupportedError for what of this panel cannot be drawn."""
    title, allowed = panel["title"], PANELS.get(panel["type"])
    if allowed is None:
        raise UnsupportedError(f"{title}: a panel of type {panel['type']}")
    for path, value in _facts(panel, allowed):
        if path not in allowed:
            raise UnsupportedError(f"{title}: {path}")
        values = allowed[path]
        if values is not None and value not in values:
            raise UnsupportedError(f"{title}: {path} is {value!r}")


def _facts(panel: Json, allowed: Allowed) -> Iterator[tuple[str, object]]:
    """Everything that a panel says, by path; a field's default and its override have the same."""
    for key, value in panel.items():
        if key == "transformations":
            for one in value:
                yield from _leaves(f"{key}.{one['id']}", one["options"], allowed)
        elif key != "fieldConfig":
            yield from _leaves(key, value, allowed)
    yield from _leaves("field", panel["fieldConfig"]["defaults"], allowed)
    for rule in panel["fieldConfig"]["overrides"]:
        yield "field.matcher", rule["matcher"]["id"]
        for one in rule["properties"]:
            yield from _leaves(f"field.{one['id']}", one["value"], allowed)


def _leaves(path: str, value: object, allowed: Allowed) -> Iterator[tuple[str, object]]:
    if path in allowed:
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner, allowed)
    elif isinstance(value, list) and all(isinstance(one, dict) for one in value):
        for one in value:
            yield from _leaves(path, one, allowed)
    else:
        yield path, value
