"""The kinds of panels, as they look here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builders.model import NOTHING, Json, Panel, Query, coloured, override_all

LEGEND: Json = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
LEGEND_TABLE: Json = {
    "displayMode": "table",
    "placement": "right",
    "showLegend": True,
    "calcs": ["mean", "lastNotNull"],
}
EMPTY_CELLS = override_all("/.*/", noValue=NOTHING)
"""Otherwise a cell without a value says what the whole panel says when it is empty."""
NEUTRAL: Json = {"mode": "fixed", "fixedColor": "text"}
"""Of numbers that are neither good nor bad by themselves: the colour of the theme's texts."""
ALL_VALUES: Json = {"mode": "multi", "sort": "desc"}


def lines(  # noqa: PLR0913 - a panel has many sides
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    colours: Mapping[str, str] | None = None,
    stacked: bool = False,
    share: bool = False,
    legend: Json = LEGEND,
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """Series over time. `share`: the axis goes from 0 to 1. Gaps stay gaps."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 80 if stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "axisSoftMin": 0,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if others.get("thresholds") else "off"},
    }
    return Panel(
        title=title,
        description=description,
        kind="timeseries",
        queries=queries,
        unit=unit,
        custom=custom,
        options={"legend": legend, "tooltip": ALL_VALUES},
        defaults={"min": 0, "max": 1} if share else {"min": 0},
        overrides=[coloured(name, colour) for name, colour in (colours or {}).items()],
        **others,
    )


LAST_VALUE: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def stats(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    colours: Mapping[str, str] | None = None,
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """The last values, large."""
    return Panel(
        title=title,
        description=description,
        kind="stat",
        queries=queries,
        unit=unit,
        options={
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
            "wideLayout": True,
            "reduceOptions": LAST_VALUE,
        },
        overrides=[coloured(name, colour) for name, colour in (colours or {}).items()],
        **others,
    )


def bars(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    colours: Mapping[str, str],
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """The last values as bars."""
    return Panel(
        title=title,
        description=description,
        kind="bargauge",
        queries=queries,
        unit=unit,
        options={
            "displayMode": "basic",
            "orientation": "horizontal",
            "valueMode": "text",
            "namePlacement": "left",
            "showUnfilled": False,
            "sizing": "auto",
            "minVizHeight": 16,
            "minVizWidth": 8,
            "maxVizHeight": 30,
            "reduceOptions": LAST_VALUE,
        },
        defaults={"min": 0},
        overrides=[coloured(name, colour) for name, colour in colours.items()],
        **others,
    )


def table(  # noqa: PLR0913 - a panel has many sides
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    sort: str | None = None,
    overrides: Sequence[Json] = (),
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """Rows; the largest of column `sort` first."""
    return Panel(
        title=title,
        description=description,
        kind="table",
        queries=queries,
        unit=unit,
        custom={"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True},
        options={
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
            "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        },
        overrides=[EMPTY_CELLS, *overrides],
        **others,
    )


def states(
    title: str,
    description: str,
    queries: Sequence[Query],
    mappings: Sequence[Json],
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """What state each series was in, as bands."""
    return Panel(
        title=title,
        description=description,
        kind="state-timeline",
        queries=queries,
        unit="none",
        custom={"fillOpacity": 85, "lineWidth": 0},
        options={
            "alignValue": "left",
            "mergeValues": True,
            "rowHeight": 0.9,
            "showValue": "auto",
            "legend": {**LEGEND, "showLegend": True},
            "tooltip": {"mode": "single", "sort": "none"},
        },
        defaults={"mappings": list(mappings)},
        **others,
    )


def merged(order: Sequence[str], *hidden: str) -> list[Json]:
    """One row for what several queries say of the same labels, columns in this order."""
    return [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(("Time", *hidden), True),
                "indexByName": {name: index for index, name in enumerate(order)},
                "renameByName": {},
            },
        },
    ]
