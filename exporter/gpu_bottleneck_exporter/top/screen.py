"""Renders the screen as styled text."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import DASH, GpuStatus, Node, named
from gpu_bottleneck_exporter.remedies import MEANINGS
from gpu_bottleneck_exporter.sampling.sampler import OPENING
from gpu_bottleneck_exporter.top import spans
from gpu_bottleneck_exporter.top.columns import BAR, Column, columns
from gpu_bottleneck_exporter.top.keys import HELP, Choice, ordered, place
from gpu_bottleneck_exporter.top.source import Feed
from gpu_bottleneck_exporter.top.spans import Glyphs, Line, Style, StyledText, clipped, fitted

_SORTED = {"idle": "BUSY", "gpu": "GPU", "watts": "WATTS", "temperature": "°C", "memory": "GiB"}
_NAME_CELLS = 15
"""Width of names before texts."""


def frame(feed: Feed, choice: Choice, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Exactly `height` lines of at most `width` cells."""
    node = feed.node
    lines = [*_top(feed, node, width)]
    if choice.help:
        # The help fits 24 lines.
        lines[1:] = _help(width, glyphs)
    elif node and node.gpus:
        lines += _gpus(node, choice, width, height, glyphs)
    elif node:
        lines += _nothing(node, width)
    body = height - 1
    lines = lines[:body] + [[] for _ in range(body - len(lines))]
    keys = "q quit   ? help   up/down select   Enter details"
    footer = f" {keys}   s sort: {choice.order}   r reverse"
    return [*lines, [StyledText(fitted(footer, width), Style.HEADING)]][-height:]


def page(node: Node | None, choice: Choice, height: int) -> int:
    """Number of GPUs on a screen of `height` lines."""
    return len(_window(len(node.gpus) if node else 0, 0, _room(choice, height))) or 1


def _top(feed: Feed, node: Node | None, width: int) -> Iterator[Line]:
    summary = words.summary(node) if node else "no reading yet"
    simulated = "  SIMULATED" if node and node.simulated else ""
    left = clipped(f"{feed.source.name}  {summary}{simulated}", width - 9)
    yield [StyledText(fitted(left, width - 8), Style.STRONG), StyledText(time.strftime("%H:%M:%S"))]
    yield [StyledText(clipped(words.host(node) if node else "", width), Style.SOFT)]
    if error := feed.error:
        since = words.duration(time.monotonic() - feed.error_since)
        yield [StyledText(clipped(f"{error} for {since}; trying again", width), Style.BAD)]
    else:
        covered = f"Shares cover the last {node.window_seconds:.0f} s." if node else ""
        yield [StyledText(clipped(covered, width), Style.SOFT)]


def _nothing(node: Node, width: int) -> Iterator[Line]:
    yield []
    if node.driver_status == OPENING:
        yield [StyledText(f"Measuring: {OPENING}.")]
        return
    message = f"No GPU to show: {node.driver_status or 'none found'}."
    yield [StyledText(clipped(message, width), Style.BAD)]
    for line in textwrap.wrap(words.sentence(words.missing_gpu_remedy(node)), max(width, 20)):
        yield [StyledText(line)]


def _gpus(node: Node, choice: Choice, width: int, height: int, glyphs: Glyphs) -> Iterator[Line]:
    rows = ordered(choice, node)
    at = place(choice, rows)
    room = _room(choice, height)
    window = _window(len(rows), at, room)
    shown = columns(rows, width)
    yield [StyledText(" ".join(_title(column, choice) for column in shown), Style.HEADING)]
    for number in window:
        yield _row(rows[number], shown, glyphs, selected=number == at)
    if len(window) < min(len(rows), room):
        counts = {"above": window.start, "below": len(rows) - window.stop}
        beyond = ", ".join(f"{count} more {where}" for where, count in counts.items() if count)
        yield [StyledText(clipped(f"… {beyond}", width), Style.SOFT)]
    if choice.details:
        yield []
        yield from _details(rows[at], width, glyphs)


def _room(choice: Choice, height: int) -> int:
    fixed = 5  # heading, host, message, titles, footer
    details = 8  # a blank line, name, cause, setting, history, processes
    return max(height - fixed - (details if choice.details else 0), 1)


def _window(count: int, at: int, room: int) -> range:
    """The visible rows, one less if others need a line for their count."""
    length = room if count <= room else max(room - 1, 1)
    first = min(max(at - length // 2, 0), max(count - length, 0))
    return range(first, min(first + length, count))


def _title(column: Column, choice: Choice) -> str:
    mark = "*" if column.title == _SORTED.get(choice.order, "LIKELY CAUSE") else ""
    return fitted((column.title + mark)[: column.width], column.width, right=column.right)


def _row(gpu: GpuStatus, shown: Sequence[Column], glyphs: Glyphs, *, selected: bool) -> Line:
    style = Style.SELECTED if selected else "" if gpu.up else Style.BAD
    line: Line = []
    for column in shown:
        line += [StyledText(" ", style)] if line else []
        if column.title == BAR:
            line += spans.bar(gpu.parts, column.width, glyphs)
        else:
            text = fitted(column.text(gpu), column.width, right=column.right)
            line.append(StyledText(text, style))
    return line


def _details(gpu: GpuStatus, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """A GPU in full, most important first: the rest may be cut off."""
    name = f"GPU {words.label(gpu)}  {gpu.name or ''}  {gpu.uuid}"
    yield [StyledText(clipped(name, width), Style.STRONG)]
    facts = words.explained(gpu)
    for label, text in islice(facts, 2):
        yield from _wrapped(label, text, width)
    if any(gpu.trend):
        steps = gpu.trend[-max(width - _NAME_CELLS, 1) :]
        yield [
            StyledText(fitted("  history", _NAME_CELLS), Style.SOFT),
            *spans.strip(steps, glyphs),
        ]
    for number, process in enumerate(gpu.process_list):
        user, program = fitted(process.user or DASH, 10), fitted(process.name or DASH, 16)
        text = f"{process.pid:<8} {user} {program} {process.role}, {process.state or DASH}"
        yield from _wrapped("" if number else "processes", text, width)
    for text in words.notices(gpu):
        yield [StyledText(clipped(f"  {text}", width), Style.BAD)]
    for label, text in facts:
        yield from _wrapped(label, text, width)
    if gpu.up:
        yield from _wrapped("held by", words.owners(gpu), width)
        yield from _wrapped("shares", words.parts(named(gpu.parts)), width)


def _wrapped(name: str, text: str, width: int) -> Iterator[Line]:
    lines = textwrap.wrap(printable(text), max(width - _NAME_CELLS, 20)) or [""]
    for number, line in enumerate(lines):
        first = "" if number else f"  {name}"
        yield [StyledText(fitted(first, _NAME_CELLS), Style.SOFT), StyledText(line)]


def _help(width: int, glyphs: Glyphs) -> Iterator[Line]:
    for keys, effect in HELP:
        yield [StyledText(f"  {keys:16}", Style.STRONG), StyledText(clipped(effect, width - 18))]
    yield [StyledText("  "), StyledText(2 * glyphs.busy, "busy"), StyledText(" busy: a kernel ran")]
    for name, meaning in MEANINGS.items():
        text = clipped(f"{name}: {meaning}", width - 5)
        yield [StyledText("  "), StyledText(2 * glyphs.cause, name), StyledText(f" {text}")]
