"""Shares of the time as a drawing, and what its colours mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED, UNKNOWN
from gpu_bottleneck_exporter.markup.html import Html, element, join, listed
from gpu_bottleneck_exporter.nodeview.model import Parts, named
from gpu_bottleneck_exporter.nodeview.text import percent
from gpu_bottleneck_exporter.remedies import WAITS_FOR

_HIGH = 100
"""Of a drawing, in its own units; CSS scales it."""

WORDS = {
    name: words for name, words in WAITS_FOR.items() if name.replace("_", " ") not in words
} | {UNALLOCATED: "no process holds it"}
"""What codes mean that are no words by themselves."""


def axis(start: str, end: str) -> Html:
    """The times at both ends of a strip."""
    return element("div", element("span", start), element("span", end), class_="axis")


def strip(steps: Sequence[Parts], columns: int, label: str) -> Html | None:
    """The shares over time, one column per step, the last one at the right; None without any.

    `label` is what those hear who do not see it. Unknown time is left blank.
    """
    if not any(steps):
        return None
    paths: dict[str, list[str]] = {}
    for column, step in enumerate(steps, columns - len(steps)):
        below = 0.0
        for name, part in step.items():
            top, high = _HIGH * (1 - below - part), _HIGH * part
            if name != UNKNOWN:
                paths.setdefault(name, []).append(f"M{column} {top:.0f}h1v{high:.0f}h-1z")
            below += part
    drawn = [element("path", d="".join(d), class_=f"c-{name}") for name, d in paths.items()]
    how = {"viewBox": f"0 0 {columns} {_HIGH}", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", *drawn, class_="trend", aria_label=label, **how)


def legend(parts: Parts, explained: Mapping[str, str] = WORDS) -> Html | None:
    """The parts worth naming, each with its colour and in words; None without any."""
    items = (
        join(
            element("i", class_=f"c-{name}"),
            element("span", name),
            f" {percent(part)}",
            element("small", f" {words}") if (words := explained.get(name)) else None,
        )
        for name, part in named(parts).items()
    )
    return listed(items, "parts", "Shares of the time") if parts else None
