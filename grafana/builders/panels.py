"""The kinds of panels and their look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builders.model import NOTHING, Json, Panel, Query, coloured, override, override_all

AMOUNT = "locale"
"""The unit of numbers to be read as they are: `short` makes 1.09 K of 1 093."""
LEGEND: Json = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
LEGEND_TABLE: Json = {
    "displayMode": "table",
    "placement": "right",
    "showLegend": True,
    "calcs": ["mean", "lastNotNull"],
}
EMPTY_CELLS = override_all("/.*/", noValue=NOTHING)
"""Otherwise an empty cell shows the text of an empty panel."""
NEUTRAL: Json = {"mode": "fixed", "fixedColor": "text"}
"""For numbers that are neither good nor bad by themselves: the theme's text colour."""
ALL_VALUES: Json = {"mode": "multi", "sort": "desc"}
ABOVE_ALL = 1.03
"""The end of an axis of shares: at 1, a line at 1 would lie on the frame."""
AXIS_REACHES = {"percentunit": ABOVE_ALL, "none": 1, "short": 1, "s": 0.01, "Bps": 1000, "cps": 1}
"""The least an axis shows, by unit: with only zeros it goes to 100 by itself, which is 10 000 %."""


def lines(  # noqa: PLR0913 - a panel has many sides
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    colours: Mapping[str, str] | None = None,
    limits: Sequence[str] = (),
    stacked: bool = False,
    share: bool = False,
    reaches: float | None = None,
    legend: Json = LEGEND,
    overrides: Sequence[Json] = (),
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """Series over time, `limits` dashed; gaps stay gaps.

    `share`: the axis shows 0 to 1. `reaches`: as far as that at least.
    """
    reaches = reaches or AXIS_REACHES.get(unit)
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 80 if stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "axisSoftMin": 0,
        **({"axisSoftMax": reaches} if reaches else {}),
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
        defaults={"min": 0, "max": 1 if stacked else ABOVE_ALL} if share else {"min": 0},
        overrides=[
            *(coloured(name, colour) for name, colour in (colours or {}).items()),
            *(override(name, color=NEUTRAL, custom_lineStyle=DASHED) for name in limits),
            *overrides,
        ],
        **others,
    )


DASHED: Json = {"fill": "dash", "dash": [8, 6]}
LAST_VALUE: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def stats(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    alarms: Mapping[str, str] | None = None,
    **others: Any,  # noqa: ANN401 - what `Panel` takes
) -> Panel:
    """The last values, large; those in `alarms` get its colour from 1 on."""
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
            # A name next to its number is easily read with the next one.
            "wideLayout": False,
            "reduceOptions": LAST_VALUE,
        },
        overrides=[_alarm(name, colour) for name, colour in (alarms or {}).items()],
        **{"defaults": {"color": NEUTRAL}, **others},
    )


def _alarm(name: str, colour: str) -> Json:
    steps = [{"color": "text", "value": None}, {"color": colour, "value": 1}]
    thresholds = {"mode": "absolute", "steps": steps}
    return override(name, color={"mode": "thresholds"}, thresholds=thresholds)


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


GAUGE: Json = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}


def narrow(width: int) -> Json:
    """Properties of a column of `width` pixels that is not worth filtering."""
    return {"custom_width": width, "custom_filterable": False}


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
