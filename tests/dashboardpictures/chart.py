"""Panels over time: lines, stacked areas, and bands of states, as SVG with a legend beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from dashboardpictures import scales
from dashboardpictures.asking import Points, Series, Window, runs
from dashboardpictures.fields import Field, Shown, empty, field
from dashboardpictures.scales import Scale
from dashboardpictures.supported import UnsupportedError
from dashboardpictures.units import text
from gpu_bottleneck_exporter.palette import text_on

Json = dict[str, Any]
Marks = Sequence[tuple[str, Sequence[tuple[float, float]]]]
"""Colours, and from when to when."""
Size = tuple[float, float]
"""Width and height, in pixels."""

GRID, FAINT = "#2a2d33", "#9a9ba6"
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 8, 22
_CRISP = 'shape-rendering="crispEdges"'
_LETTER, _LEGEND_LINE = 6.6, 22
_NUMBER_WIDE = 76


@dataclass(frozen=True, slots=True)
class Line:
    """A series and how it looks."""

    series: Series
    field: Field


@dataclass(frozen=True, slots=True)
class Plot:
    """Where the axes are."""

    x: Scale
    y: Scale


def lines_of(panel: Json, window: Window, pixels: float) -> list[Line]:
    """What a panel's queries give."""
    found = [one for target in panel["targets"] for one in window.series(target, pixels)]
    return [
        Line(series, field(panel, series.name, index))
        for index, series in enumerate(found)
        if series.points
    ]


# --- Lines and areas ------------------------------------------------------------------------------
def time_series(panel: Json, window: Window, size: Size, marks: Marks) -> str:
    """The whole body of such a panel."""
    width, height = size
    lines = lines_of(panel, window, width)
    if not lines:
        return f'<div class="empty">{escape(empty(panel))}</div>'
    legend, beside, below = _legend(panel["options"]["legend"], lines, width, height)
    svg = _plotted(panel, window, lines, (width - beside, height - below), marks)
    return f'<div class="{"across" if beside else "down"}">{svg}{legend}</div>'


def _plotted(panel: Json, window: Window, lines: Sequence[Line], size: Size, marks: Marks) -> str:
    width, height = size
    config = panel["fieldConfig"]["defaults"]
    stacked = config["custom"]["stacking"]["mode"] == "normal"
    shapes = _stacked(lines) if stacked else [(line, [], line.series.points) for line in lines]
    peak = max(value for _, _, points in shapes for _, value in points)
    inner = height - _TOP - _BOTTOM
    top, ticks = scales.values(
        config.get("max", peak), config["unit"], inner, fixed="max" in config
    )
    plot = Plot(
        Scale(window.start, window.end, _LEFT, width - _RIGHT),
        Scale(0, top, height - _BOTTOM, _TOP),
    )
    parts = [*_axes(plot, ticks, config["unit"])]
    for line, base, points in shapes:
        parts += _drawn(plot, line, base, points)
    parts += [*_thresholds(plot, config), *_marked(plot, marks)]
    return _svg(width, height, parts)


def _stacked(lines: Sequence[Line]) -> list[tuple[Line, Points, Points]]:
    """Each line between its base and its top; a gap in one leaves those above it where they are."""
    total: dict[float, float] = {}
    found = []
    for line in lines:
        base = [(at, total.get(at, 0)) for at, _ in line.series.points]
        for at, value in line.series.points:
            total[at] = total.get(at, 0) + value
        found.append((line, base, [(at, total[at]) for at, _ in line.series.points]))
    return found


def _drawn(plot: Plot, line: Line, base: Points, points: Points) -> Iterator[str]:
    colour, series = line.field.colour, line.series
    tops = runs(Series(series.name, points, series.step))
    bases = runs(Series(series.name, base, series.step)) if base else tops
    for run, under in zip(tops, bases, strict=True):
        if opacity := line.field.custom("fillOpacity"):
            floor = under if base else [(run[0][0], 0), (run[-1][0], 0)]
            path = _path(plot, [*run, *reversed(floor)])
            fill = f'fill="{colour}" fill-opacity="{opacity / 100}"'
            yield f'<polygon points="{path}" {fill} {_CRISP}/>'
        if thickness := line.field.custom("lineWidth"):
            # A point alone is a dot, as Grafana has it where points are never shown.
            path = _path(plot, run if len(run) > 1 else [*run, (run[0][0] + 0.3, run[0][1])])
            yield (
                f'<polyline points="{path}" fill="none" stroke="{colour}" '
                f'stroke-width="{thickness * 1.4}" stroke-linejoin="round"/>'
            )


def _path(plot: Plot, points: Points) -> str:
    return " ".join(f"{plot.x(at):.1f},{plot.y(value):.1f}" for at, value in points)


def _axes(plot: Plot, ticks: Sequence[float], unit: str) -> Iterator[str]:
    for tick in ticks:
        y, label = plot.y(tick), scales.label(tick, unit)
        yield f'<path d="M{_LEFT} {y:.1f}H{plot.x.last}" stroke="{GRID}" {_CRISP}/>'
        yield (f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    yield from _times(plot.x, plot.y.last, plot.y.first)


def _times(x: Scale, top: float, bottom: float) -> Iterator[str]:
    for at, label in scales.times(x.low, x.high, x.last - x.first):
        yield f'<path d="M{x(at):.1f} {top}V{bottom}" stroke="{GRID}" {_CRISP}/>'
        yield f'<text x="{x(at):.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>'


def _thresholds(plot: Plot, config: Json) -> Iterator[str]:
    if config["custom"]["thresholdsStyle"]["mode"] == "off":
        return
    steps = config["thresholds"]["steps"]
    clear = next(at for at, step in enumerate(steps) if step["color"] == "transparent")
    for at, step in enumerate(steps[1:], 1):
        # Below the one that is clear, a threshold is one to stay above: it has the colour beneath.
        colour = steps[at - 1]["color"] if at <= clear else step["color"]
        y = plot.y(step["value"])
        yield (
            f'<path d="M{_LEFT} {y:.1f}H{plot.x.last}" stroke="{colour}" stroke-opacity=".7" '
            'stroke-width="2" stroke-dasharray="10 10"/>'
        )


def _marked(plot: Plot, marks: Marks) -> Iterator[str]:
    for colour, spans in marks:
        for start, end in spans:
            left, right = plot.x(start), plot.x(end)
            bottom, top = plot.y.first, plot.y.last
            yield (
                f'<path d="M{left:.1f} {top}V{bottom}M{right:.1f} {top}V{bottom}" '
                f'stroke="{colour}" stroke-dasharray="5 5" stroke-opacity=".8"/>'
                f'<rect x="{left:.1f}" y="{bottom}" width="{max(2, right - left):.1f}" '
                f'height="4" fill="{colour}"/>'
            )


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" font-size="12" fill="{FAINT}">'
        f"{''.join(parts)}</svg>"
    )


# --- Legends --------------------------------------------------------------------------------------
def _legend(
    options: Json, lines: Sequence[Line], width: float, height: float
) -> tuple[str, float, float]:
    """The legend, and how much it takes of the width and of the height."""
    if options["displayMode"] == "list":
        if options["placement"] != "bottom":
            raise UnsupportedError("a list as a legend, not below")
        rows = _rows([line.field.title for line in lines], width)
        listed = _listed([(line.field.title, line.field.colour) for line in lines])
        return listed, 0, _LEGEND_LINE * rows + 4
    table = _tabled(lines)
    if options["placement"] == "right":
        longest = max(len(line.field.title) for line in lines)
        beside = min(0.48 * width, 40 + 2 * _NUMBER_WIDE + longest * _LETTER)
        return f'<div class="legend" style="width:{beside:.0f}px">{table}</div>', beside, 0
    below = min(0.4 * height, _LEGEND_LINE * (len(lines) + 1) + 4)
    return f'<div class="legend" style="height:{below:.0f}px">{table}</div>', 0, below


def _rows(names: Sequence[str], width: float) -> int:
    """How many lines such a list takes."""
    rows, left = 1, width
    for name in names:
        wide = len(name) * _LETTER + 38
        if wide > left and left < width:
            rows, left = rows + 1, width
        left -= wide
    return rows


def _listed(names: Sequence[tuple[str, str]]) -> str:
    items = "".join(f"<span>{_swatch(colour)}{escape(name)}</span>" for name, colour in names)
    return f'<div class="list">{items}</div>'


def _swatch(colour: str) -> str:
    return f'<i style="background:{colour}"></i>'


def _tabled(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        points = [value for _, value in line.series.points]
        numbers = (sum(points) / len(points), points[-1])
        unit = line.field.settings["unit"]
        cells = "".join(f"<td>{escape(text(number, unit))}</td>" for number in numbers)
        name = f"{_swatch(line.field.colour)}{escape(line.field.title)}"
        rows.append(f"<tr><td>{name}</td>{cells}</tr>")
    return f"<table><tr><th>Name</th><th>Mean</th><th>Last *</th></tr>{''.join(rows)}</table>"


# --- States ---------------------------------------------------------------------------------------
def state_timeline(panel: Json, window: Window, size: Size) -> str:
    """The whole body of such a panel: a band for each series, its states in their colours."""
    width, height = size
    lines = lines_of(panel, window, width)
    if not lines:
        return f'<div class="empty">{escape(empty(panel))}</div>'
    states = {line.field.shown(value) for line in lines for _, value in line.series.points}
    legend = sorted((one.text, one.colour) for one in states)
    below = _LEGEND_LINE * _rows([name for name, _ in legend], width) + 4
    left = max(_LEFT, 12 + max(len(line.field.title) for line in lines) * _LETTER)
    x = Scale(window.start, window.end, left, width - _RIGHT)
    bottom = height - below - _BOTTOM
    parts = [*_times(x, 0, bottom)]
    each = bottom / len(lines)
    for at, line in enumerate(lines):
        parts += _band(panel, line, x, at * each, each)
    return f'<div class="down">{_svg(width, height - below, parts)}{_listed(legend)}</div>'


def _band(panel: Json, line: Line, x: Scale, top: float, height: float) -> Iterator[str]:
    middle = top + height / 2
    inner = min(height * panel["options"]["rowHeight"], height - 2)
    yield (
        f'<text x="{x.first - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">'
        f"{escape(line.field.title)}</text>"
    )
    opacity = line.field.custom("fillOpacity") / 100
    for start, end, state in _spans(line, x.high):
        wide = x(end) - x(start)
        yield (
            f'<rect x="{x(start):.1f}" y="{middle - inner / 2:.1f}" width="{wide:.1f}" '
            f'height="{inner:.1f}" fill="{state.colour}" fill-opacity="{opacity}"/>'
        )
        if len(state.text) * _LETTER + 8 < wide:
            yield (
                f'<text x="{x(start) + 5:.1f}" y="{middle + 4:.1f}" '
                f'fill="{text_on(state.colour)}">{escape(state.text)}</text>'
            )


def _spans(line: Line, end: float) -> Iterator[tuple[float, float, Shown]]:
    """From when to when each state held."""
    for run in runs(line.series):
        until = min(run[-1][0] + line.series.step, end)
        groups = [
            (next(points)[0], state)
            for state, points in itertools.groupby(run, lambda point: line.field.shown(point[1]))
        ]
        ends = [*(start for start, _ in groups[1:]), until]
        for (start, state), stop in zip(groups, ends, strict=True):
            yield start, stop, state
