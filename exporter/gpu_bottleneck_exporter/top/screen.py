"""The whole screen as lines of styled text: a pure function of data and choices."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence

from gpu_bottleneck_exporter.nodeview.model import Gpu, Host, Node
from gpu_bottleneck_exporter.nodeview.text import duration, host_memory, summary, to_have_one
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.top.columns import BAR, Column, columns, share
from gpu_bottleneck_exporter.top.details import details
from gpu_bottleneck_exporter.top.keys import HELP, Choice, ordered, place
from gpu_bottleneck_exporter.top.refresh import Latest
from gpu_bottleneck_exporter.top.spans import (
    BAD,
    HEAD,
    SELECTED,
    SOFT,
    STRONG,
    Glyphs,
    Line,
    Span,
    bar,
    clipped,
    fitted,
)

_FOOTER = " q quit   ? help   up/down select   Enter details   s sort: {order}   r reverse"
_SORTED = {"gpu": "GPU", "busy": "BUSY", "watts": "WATTS", "temperature": "°C", "memory": "GiB"}
_LEAST_DETAILS = 5
_FIXED_LINES = 5
"""Heading, host, message, titles, footer."""


def frame(latest: Latest, choice: Choice, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Exactly `height` lines of at most `width` cells."""
    body = height - 1
    lines = [*_top(latest, width)]
    if choice.help:
        # The help fits 24 lines and replaces everything below the heading.
        lines = _cut([lines[0], *_help(width, glyphs)], body, width)
    elif latest.node is not None and latest.node.gpus:
        lines += _gpus(latest.node, choice, width, height, glyphs)
    else:
        lines += _nothing(latest, width)
    lines = lines[:body] + [[] for _ in range(body - len(lines))]
    footer = _FOOTER.format(order=choice.order)
    return [*lines, [Span(fitted(footer, width), HEAD)]][-height:]


def _top(latest: Latest, width: int) -> Iterator[Line]:
    node = latest.node
    said = summary(node) if node else "no reading yet"
    simulated = "  SIMULATED" if node and node.simulated else ""
    clock = time.strftime("%H:%M:%S")
    left = clipped(f"{latest.source}  {said}{simulated}", width - 9)
    yield [Span(fitted(left, width - 8), STRONG), Span(clock)]
    yield [Span(clipped(_host(node.host) if node else "", width), SOFT)]
    if latest.error:
        since = duration(time.monotonic() - latest.error_since)
        yield [Span(clipped(f"{latest.error}; for {since}, trying again", width), BAD)]
    elif node:
        yield [Span(clipped(f"Shares cover the last {node.window_seconds:.0f} s.", width), SOFT)]
    else:
        yield []


def _host(host: Host) -> str:
    cpus = f" of {host.cpus}" if host.cpus else ""
    held = ", ".join(f"{name} {share(part)}" for name, part in (host.pressure_ratios or {}).items())
    pressure = f"   pressure {held}" if held else ""
    return f"CPU {share(host.cpu_busy_ratio)}{cpus}   memory {host_memory(host)}{pressure}"


def _nothing(latest: Latest, width: int) -> Iterator[Line]:
    if latest.node is None:
        return
    yield []
    status = latest.node.driver_status or "none found"
    yield [Span(clipped(f"No GPU to show: {status}.", width), BAD)]
    advice = to_have_one(latest.node)
    for line in textwrap.wrap(f"{advice[0].upper()}{advice[1:]}.", max(width, 20)):
        yield [Span(line)]


def _gpus(node: Node, choice: Choice, width: int, height: int, glyphs: Glyphs) -> Iterator[Line]:
    rows = ordered(choice, node)
    at = place(choice, rows)
    window = _window(len(rows), at, _room(choice, height))
    shown = columns(rows, width)
    yield _spaced([[_title(column, choice)] for column in shown], HEAD)
    for number in window:
        yield _row(rows[number], shown, glyphs, selected=number == at)
    if len(window) < min(len(rows), _room(choice, height)):
        yield [Span(clipped(_beyond(window, len(rows)), width), SOFT)]
    if choice.details:
        yield []
        yield from details(rows[at], width, glyphs)


def page(latest: Latest, choice: Choice, height: int) -> int:
    """How many GPUs are on a screen of `height` lines."""
    count = len(latest.node.gpus) if latest.node else 0
    return len(_window(count, 0, _room(choice, height))) or 1


def _room(choice: Choice, height: int) -> int:
    """Lines for the rows of the table."""
    return max(height - _FIXED_LINES - (_LEAST_DETAILS + 1 if choice.details else 0), 1)


def _window(count: int, at: int, room: int) -> range:
    """The rows on the screen; if some do not fit, one line is kept to say so."""
    length = room if count <= room else max(room - 1, 1)
    first = min(max(at - length // 2, 0), max(count - length, 0))
    return range(first, min(first + length, count))


def _beyond(window: range, count: int) -> str:
    told = {"above": window.start, "below": count - window.stop}
    return "… " + ", ".join(f"{rows} more {where}" for where, rows in told.items() if rows)


def _cut(lines: Sequence[Line], height: int, width: int) -> list[Line]:
    """At most `height` lines; if some are cut, the last one says how many."""
    if len(lines) <= height:
        return [*lines]
    kept = max(height - 1, 0)
    told = clipped(f"… {len(lines) - kept} more lines in a taller terminal", width)
    return [*lines[:kept], [Span(told, SOFT)]]


def _title(column: Column, choice: Choice) -> Span:
    mark = "*" if column.title == _SORTED.get(choice.order, "LIKELY CAUSE") else ""
    text = fitted((column.title + mark)[: column.width], column.width, right=column.right)
    return Span(text, HEAD)


def _row(gpu: Gpu, shown: Sequence[Column], glyphs: Glyphs, *, selected: bool) -> Line:
    style = SELECTED if selected else "" if gpu.up else BAD
    cells: list[Line] = []
    for column in shown:
        if column.title == BAR:
            cells.append(bar(gpu.parts, column.width, glyphs))
        else:
            text = fitted(column.text(gpu), column.width, right=column.right)
            cells.append([Span(text, style)])
    return _spaced(cells, style)


def _spaced(cells: Sequence[Line], style: str) -> Line:
    """Cells, separated by a space."""
    line = list(cells[0])
    for cell in cells[1:]:
        line += [Span(" ", style), *cell]
    return line


def _help(width: int, glyphs: Glyphs) -> Iterator[Line]:
    for keys, what in HELP:
        yield [Span(f"  {keys:16}", STRONG), Span(clipped(what, width - 18))]
    yield []
    yield [Span("  "), Span(2 * glyphs.busy, "busy"), Span(" busy: a kernel ran")]
    for name, (meaning, _) in REMEDIES.items():
        text = clipped(f"{name}: {meaning}", width - 5)
        yield [Span("  "), Span(2 * glyphs.cause, name), Span(f" {text}")]
