"""Tables: answers as rows, what the panel's transformations make of them, and their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from dashboardpictures.asking import Labels, Window
from dashboardpictures.fields import Field, empty, field
from gpu_bottleneck_exporter.palette import text_on

Json = dict[str, Any]
Cell = str | float | None
Row = dict[str, Cell]

_ROW_HIGH = 36
_CLEAR = "transparent"
_HIDDEN = ("hidden", "hideFrom")


@dataclass(frozen=True, slots=True)
class Frame:
    """Rows, and their columns in order; a column of `numbers` is one."""

    columns: list[str]
    numbers: frozenset[str]
    rows: list[Row]


def table(panel: Json, window: Window, height: float) -> str:
    """The whole body of such a panel; of more rows than fit, a bar says that they scroll."""
    frame = framed(panel, window)
    if not frame.rows:
        return f'<div class="empty">{escape(empty(panel))}</div>'
    fields = [
        field(panel, name, index, number=name in frame.numbers)
        for index, name in enumerate(frame.columns)
    ]
    shown = [one for one in fields if not any(one.custom(key) for key in _HIDDEN)]
    rows = _sorted(frame.rows, panel["options"]["sortBy"], shown)
    heads = "".join(_head(one, number=one.name in frame.numbers) for one in shown)
    body = "".join(
        f"<tr>{''.join(_cell(one, row.get(one.name), frame, window.end) for one in shown)}</tr>"
        for row in rows
    )
    part = height / (_ROW_HIGH * (len(rows) + 1))
    thumb = f'<s style="height:{part * height:.0f}px"></s>' if part < 1 else ""
    return f'<div class="table"><table><tr>{heads}</tr>{body}</table>{thumb}</div>'


def framed(panel: Json, window: Window) -> Frame:
    """What a panel's queries give, transformed."""
    answers = [(target["refId"], window.instant(target)) for target in panel["targets"]]
    frames = [
        _frame("Value" if len(answers) == 1 else f"Value #{name}", found)
        for name, found in answers
        if found
    ]
    for one in panel["transformations"]:
        frames = _TRANSFORMATIONS[one["id"]](frames, one["options"])
    # Without a transformation that joins them, Grafana shows the first one and lets one choose.
    return frames[0] if frames else Frame([], frozenset(), [])


def _frame(value: str, found: Sequence[tuple[Labels, float]]) -> Frame:
    labels = sorted({name for one, _ in found for name in one})
    rows: list[Row] = [
        {**{name: one.get(name, "") for name in labels}, value: number} for one, number in found
    ]
    return Frame([*labels, value], frozenset({value}), rows)


# --- Transformations ------------------------------------------------------------------------------
def _merge(frames: list[Frame], _: Json) -> list[Frame]:
    """One row for all that does not contradict and agrees in the columns that every frame has."""
    if not frames:
        return []
    columns = list(dict.fromkeys(name for frame in frames for name in frame.columns))
    numbers = frozenset[str]().union(*(frame.numbers for frame in frames))
    keys = [name for name in columns if all(name in frame.columns for frame in frames)]
    by_key: dict[tuple[Cell, ...], list[Row]] = {}
    for row in (row for frame in frames for row in frame.rows):
        known = by_key.setdefault(tuple(row[key] for key in keys), [])
        fitting = [
            one for one in known if all(one.get(name, row[name]) == row[name] for name in row)
        ]
        for one in fitting:
            one.update(row)
        if not fitting:
            known.append(dict(row))
    return [Frame(columns, numbers, [row for rows in by_key.values() for row in rows])]


def _organize(frames: list[Frame], options: Json) -> list[Frame]:
    """Without some columns, the others in order."""
    order = options["indexByName"]
    found = []
    for frame in frames:
        kept = [name for name in frame.columns if not options["excludeByName"].get(name)]
        columns = sorted(kept, key=lambda name: order.get(name, len(order)))
        found.append(Frame(columns, frame.numbers, frame.rows))
    return found


def _matrix(frames: list[Frame], options: Json) -> list[Frame]:
    """A column for each value of one label, a row for each of another."""
    if len(frames) != 1:
        return frames
    across, down, value = (options[f"{key}Field"] for key in ("column", "row", "value"))
    corner = f"{down}\\{across}"
    rows: dict[Cell, Row] = {}
    for row in frames[0].rows:
        rows.setdefault(row[down], {corner: row[down]})[str(row[across])] = row[value]
    names = list(dict.fromkeys(str(row[across]) for row in frames[0].rows))
    return [Frame([corner, *names], frozenset(names), list(rows.values()))]


_TRANSFORMATIONS: dict[str, Callable[[list[Frame], Json], list[Frame]]] = {
    "merge": _merge,
    "organize": _organize,
    "groupingToMatrix": _matrix,
}


def _sorted(rows: list[Row], by: Sequence[Json], fields: Sequence[Field]) -> list[Row]:
    """By the columns with these titles, rows without a value last."""
    names = {one.title: one.name for one in fields}
    for one in reversed(by):
        name = names.get(one["displayName"])
        there = [row for row in rows if name and row.get(name) is not None]
        gone = [row for row in rows if not name or row.get(name) is None]
        rows = [*sorted(there, key=lambda row: _order(row[name or ""]), reverse=one["desc"]), *gone]
    return rows


def _order(value: Cell) -> tuple[float, str]:
    return (value, "") if isinstance(value, float) else (0, f"{value}")


# --- Cells ----------------------------------------------------------------------------------------
def _head(one: Field, *, number: bool) -> str:
    wide = one.custom("width")
    style = f"width:{wide}px;" if wide else ""
    return f'<th style="{style}{_aligned(number)}">{escape(one.title)}</th>'


def _aligned(number: bool) -> str:  # noqa: FBT001 - it is what it is about
    return "text-align:right" if number else ""


def _cell(one: Field, value: Cell, frame: Frame, now: float) -> str:
    shown = one.shown(value, now)
    text, kind = escape(shown.text), one.custom("cellOptions")["type"]
    if kind == "gauge":
        return f"<td>{_gauge(one, value, shown.colour, text)}</td>"
    if kind == "color-background" and shown.colour != _CLEAR:
        return f'<td style="background:{shown.colour};color:{text_on(shown.colour)}">{text}</td>'
    if one.settings.get("links"):
        text = f"<u>{text}</u>"
    return f'<td style="{_aligned(one.name in frame.numbers)}">{text}</td>'


def _gauge(one: Field, value: Cell, colour: str, text: str) -> str:
    low, high = one.settings["min"], one.settings["max"]
    part = (value - low) / (high - low) if isinstance(value, float) else 0
    bar = f'<i style="width:{100 * min(1, max(0, part)):.1f}%;background:{colour}"></i>'
    return f'<div class="gauge"><span>{bar}</span><b>{text}</b></div>'
