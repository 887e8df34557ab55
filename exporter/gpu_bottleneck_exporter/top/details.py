"""The selected GPU in full, what matters most first: the screen may cut the rest off."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, GpuView, notices
from gpu_bottleneck_exporter.nodeview.text import duration, label, memory, of, owners, percent
from gpu_bottleneck_exporter.remedies import OF_DOWN, REMEDIES, RUNBOOKS
from gpu_bottleneck_exporter.top.spans import (
    BAD,
    SOFT,
    STRONG,
    Glyphs,
    Line,
    Span,
    bar,
    clean,
    clipped,
    fitted,
)

_WORTH_A_LINE = 0.005
_MEGA = 1e6
_NAME, _PERCENT = 13, 10


def details(gpu: GpuView, width: int, glyphs: Glyphs) -> Iterator[Line]:
    """Lines of at most `width` cells."""
    name = f"GPU {label(gpu)}  {gpu.now.name or ''}  {gpu.now.key.uuid}"
    yield [Span(clipped(name, width), STRONG)]
    if not gpu.now.up:
        yield from _said(
            "down", gpu.now.down or "its exporter's log and status page say why", width
        )
        yield from _said("try first", OF_DOWN, width)
        return
    yield from _cause(gpu, width)
    yield from (_share(gpu, name, width, glyphs) for name in _names(gpu))
    for text in notices(gpu.now):
        yield [Span(clipped(text, width), BAD)]
    yield from _said("held by", owners(gpu), width)
    yield from _said("figures", _figures(gpu), width)


def _cause(gpu: GpuView, width: int) -> Iterator[Line]:
    lasted = f" for {duration(gpu.verdict_seconds)}" if gpu.verdict_seconds else ""
    if gpu.shares is None:
        yield from _said("verdict", "nothing was observed yet", width)
    elif gpu.shares.verdict == KEPT_BUSY:
        yield from _said("verdict", f"kept busy{lasted}", width)
    elif gpu.cause is None:
        yield from _said("verdict", "what it waits for is not known", width)
    else:
        meaning, remedy = REMEDIES[gpu.cause]
        yield from _said("waits for", f"{gpu.cause}{lasted}: {meaning}", width)
        yield from _said("try first", remedy, width)
        for number, seen in enumerate(gpu.now.evidence):
            yield from _said("" if number else "seen", seen, width)
        if gpu.cause in RUNBOOKS:
            yield from _said("runbook", f"{RUNBOOKS[gpu.cause]}.md", width)


def _names(gpu: GpuView) -> list[str]:
    if gpu.shares is None:
        return []
    stalls = gpu.shares.stalls.items()
    return [KEPT_BUSY, *(name for name, part in stalls if part >= _WORTH_A_LINE)]


def _share(gpu: GpuView, name: str, width: int, glyphs: Glyphs) -> Line:
    """One share with a bar of its own."""
    shares = gpu.shares
    assert shares is not None  # noqa: S101 - else it has no names
    part = shares.busy if name == KEPT_BUSY else shares.stalls[name]
    room = max(min(width - _NAME - _PERCENT, 60), 0)
    drawn = [span for span in bar(shares, room, glyphs) if span.style == name]
    text = f" {percent(part)}"
    return [Span(fitted(f"  {name}", _NAME)), *drawn, Span(text)]


def _figures(gpu: GpuView) -> str:
    now = gpu.now
    clock = None if now.sm_clock is None else now.sm_clock / _MEGA
    highest = None if now.sm_clock_max is None else now.sm_clock_max / _MEGA
    workers = "" if now.workers is None else f", workers: {now.workers:.0f}"
    processes = "" if now.processes is None else f"; processes: {now.processes:.0f}{workers}"
    return (
        f"{of(now.power_watts, now.power_limit_watts, ' W')}, "
        f"{of(now.temperature, now.slowdown_temperature, ' °C')}, "
        f"{memory(now.memory_used_bytes, now.memory_total_bytes)}, "
        f"SM clock {of(clock, highest, ' MHz')}{processes}"
    )


def _said(name: str, text: str, width: int) -> Iterator[Line]:
    """`name` and text, which goes on in as many lines as it takes."""
    lines = textwrap.wrap(clean(text), max(width - _NAME, 20)) or [""]
    for number, line in enumerate(lines):
        first = f"  {name}" if number == 0 else ""
        yield [Span(fitted(first, _NAME), SOFT), Span(line)]
