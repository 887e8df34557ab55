"""The selected GPU in full, most important first, as the screen may cut off the rest."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.about import DOWN
from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.nodeview.advice import outcome, prescription
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, GpuView, Shares, notices
from gpu_bottleneck_exporter.nodeview.text import duration, label, levels, owners, percent
from gpu_bottleneck_exporter.remedies import REMEDIES, RUNBOOKS
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


def details(gpu: GpuView, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Lines of at most `width` cells."""
    name = f"GPU {label(gpu)}  {gpu.now.name or ''}  {gpu.now.key.uuid}"
    yield [Span(clipped(name, width), STRONG)]
    if not gpu.now.up:
        yield from _said(
            "down", gpu.now.down or "the log and status page of its exporter give the reason", width
        )
        yield from _said("try first", gpu.now.down_remedy or DOWN, width)
        return
    yield from _cause(gpu, width)
    if gpu.shares:
        for share, part in ((KEPT_BUSY, gpu.shares.busy), *gpu.shares.named.items()):
            yield _share(gpu.shares, share, part, width, glyphs)
    for text in notices(gpu.now):
        yield [Span(clipped(text, width), BAD)]
    yield from _said("held by", owners(gpu), width)
    yield from _said("figures", _figures(gpu), width)


def _cause(gpu: GpuView, width: int) -> Iterator[Line]:
    lasted = f" for {duration(gpu.verdict_seconds)}" if gpu.verdict_seconds else ""
    if gpu.shares is None:
        yield from _said("verdict", "nothing observed yet", width)
    elif gpu.shares.verdict == KEPT_BUSY:
        yield from _said("verdict", f"kept busy{lasted}", width)
    elif gpu.cause is None:
        yield from _said("verdict", "what it waits for is unknown", width)
    else:
        meaning, remedy = REMEDIES[gpu.cause]
        yield from _said("waits for", f"{gpu.cause}{lasted}: {meaning}", width)
        yield from _said("try first", remedy, width)
    if (advice := prescription(gpu)) is not None:
        yield from _said("prescription", advice, width)
    if gpu.now.last_change:
        yield from _said("last change", outcome(gpu.now.last_change), width)
    if gpu.cause:
        for number, seen in enumerate(gpu.now.evidence):
            yield from _said("" if number else "seen", seen, width)
    if gpu.cause in RUNBOOKS:
        yield from _said("runbook", f"{RUNBOOKS[gpu.cause]}.md", width)


def _share(shares: Shares, name: str, part: float, width: int, glyphs: Glyphs) -> Line:
    """One share with its bar."""
    room = max(min(width - _NAME - _PERCENT, 60), 0)
    drawn = [span for span in bar(shares, room, glyphs) if span.style == name]
    return [Span(fitted(f"  {name}", _NAME)), *drawn, Span(f" {percent(part)}")]


def _figures(gpu: GpuView) -> str:
    now = gpu.now
    power, temperature, memory, clock = levels(now)
    workers = "" if now.workers is None else f", workers: {now.workers:.0f}"
    processes = "" if now.processes is None else f"; processes: {now.processes:.0f}{workers}"
    return f"{power}, {temperature}, {memory}, SM clock {clock}{processes}"


def _said(name: str, text: str, width: int) -> Iterator[Line]:
    """`name` and text, wrapped to as many lines as needed."""
    lines = textwrap.wrap(printable(text), max(width - _NAME, 20)) or [""]
    for number, line in enumerate(lines):
        first = f"  {name}" if number == 0 else ""
        yield [Span(fitted(first, _NAME), SOFT), Span(line)]
