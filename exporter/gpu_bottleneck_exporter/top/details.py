"""The selected GPU in full, most important first, as the screen may cut off the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.nodeview.model import Gpu, named, notices
from gpu_bottleneck_exporter.nodeview.text import (
    explained,
    feeders,
    label,
    levels,
    owners,
    percent,
)
from gpu_bottleneck_exporter.top.spans import (
    BAD,
    SOFT,
    STRONG,
    Glyphs,
    Line,
    Span,
    bar,
    clipped,
    fitted,
)

_NAME, _PERCENT = 15, 10


def details(gpu: Gpu, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Lines of at most `width` cells."""
    name = f"GPU {label(gpu)}  {gpu.name or ''}  {gpu.uuid}"
    yield [Span(clipped(name, width), STRONG)]
    for what, text in explained(gpu):
        yield from _said(what, text, width)
    for share, part in named(gpu.parts).items():
        yield _share(gpu, share, part, width, glyphs)
    for text in notices(gpu):
        yield [Span(clipped(text, width), BAD)]
    if gpu.up:
        yield from _said("held by", owners(gpu), width)
        power, temperature, memory, clock = levels(gpu)
        figures = f"{power}, {temperature}, {memory}, SM clock {clock}; {feeders(gpu)}"
        yield from _said("figures", figures, width)


def _share(gpu: Gpu, name: str, part: float, width: int, glyphs: Glyphs) -> Line:
    """One share with its bar."""
    room = max(min(width - _NAME - _PERCENT, 60), 0)
    drawn = [span for span in bar(gpu.parts, room, glyphs) if span.style == name]
    return [Span(fitted(f"  {name}", _NAME)), *drawn, Span(f" {percent(part)}")]


def _said(name: str, text: str, width: int) -> Iterator[Line]:
    """`name` and text, wrapped to as many lines as needed."""
    lines = textwrap.wrap(printable(text), max(width - _NAME, 20)) or [""]
    for number, line in enumerate(lines):
        first = f"  {name}" if number == 0 else ""
        yield [Span(fitted(first, _NAME), SOFT), Span(line)]
