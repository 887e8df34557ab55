"""Time shares as an SVG strip with its legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED, UNKNOWN
from gpu_bottleneck_exporter.markup.html import Html, element, join, listed
from gpu_bottleneck_exporter.nodeview.model import Parts, named
from gpu_bottleneck_exporter.nodeview.text import percent
from gpu_bottleneck_exporter.remedies import WAITS_FOR

_HEIGHT = 100
"""Height of a strip in SVG units; CSS scales it."""
LEGEND_TEXTS = {
    name: words for name, words in WAITS_FOR.items() if name.replace("_", " ") not in words
} | {UNALLOCATED: "no process holds it"}
"""Explanation by code that does not explain itself."""


def axis(start: str, end: str) -> Html:
    """The times at both ends of a strip."""
    return element("div", element("span", start), element("span", end), class_="axis")


def strip(steps: Sequence[Parts], columns: int, label: str) -> Html | None:
    """The shares over time, a column per step, the latest at the right; None if all are empty.

    `label` is for screen readers.
    """
    if not any(steps):
        return None
    paths: dict[str, list[str]] = {}
    for column, step in enumerate(steps, columns - len(steps)):
        below = 0.0
        for name, part in step.items():
            top, height = _HEIGHT * (1 - below - part), _HEIGHT * part
            if name != UNKNOWN:
                paths.setdefault(name, []).append(f"M{column} {top:.0f}h1v{height:.0f}h-1z")
            below += part
    shapes = [element("path", d="".join(d), class_=f"c-{name}") for name, d in paths.items()]
    view = {"viewBox": f"0 0 {columns} {_HEIGHT}", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", *shapes, class_="trend", aria_label=label, **view)


def legend(parts: Parts, texts: Mapping[str, str] = LEGEND_TEXTS) -> Html | None:
    """The parts with colour and explanation; None without any."""
    items = (
        join(
            element("i", class_=f"c-{name}"),
            element("span", name),
            f" {percent(part)}",
            element("small", f" {words}") if (words := texts.get(name)) else None,
        )
        for name, part in named(parts).items()
    )
    return listed(items, "parts", "Shares of the time") if parts else None
