"""Pieces of text with a style, and how many cells of a terminal they take."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, Parts

HEAD, SELECTED, STRONG, SOFT, BAD, PLAIN = "head", "selected", "strong", "soft", "bad", ""
"""Styles; the others are names of waits, and `busy`."""


class Span(NamedTuple):
    """Text in one style."""

    text: str
    style: str = PLAIN


Line = list[Span]


class Glyphs(NamedTuple):
    """What bars and strips are made of."""

    busy: str
    cause: str
    other: str
    levels: str
    """Of the busy share."""

    def of(self, name: str, parts: Parts) -> str:
        """The style of one of `parts`; the largest wait is the cause."""
        largest = next((name for name in parts if name != KEPT_BUSY), None)
        return {KEPT_BUSY: self.busy, largest: self.cause}.get(name, self.other)


IN_COLOUR = Glyphs("█", "█", "█", " ▁▂▃▄▅▆▇█")
WITHOUT_COLOUR = Glyphs("█", "▒", "░", "▁▂▃▄▅▆▇█")
IN_ASCII = Glyphs("#", "=", "-", "0123456789")


def cells(text: str) -> int:
    """Width of printable text, in cells."""
    return sum(map(_cell, text))


def clipped(text: str, width: int) -> str:
    """`text`, printable, in at most `width` cells; an ellipsis marks a cut."""
    text = printable(text)
    if cells(text) <= width:
        return text
    ends = itertools.accumulate(map(_cell, text))
    fits = itertools.takewhile(lambda pair: pair[1] < width, zip(text, ends, strict=True))
    return "".join(character for character, _ in fits) + "…" if width > 0 else ""


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells."""
    text = clipped(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space


def bar(parts: Parts, width: int, glyphs: Glyphs) -> Line:
    """What a GPU did, as a bar of `width` cells; empty if unknown."""
    line, at, until = [], 0, 0.0
    for name, part in parts.items():
        until += part
        end = max(at, min(round(until * width), width))
        line.append(Span(glyphs.of(name, parts) * (end - at), name))
        at = end
    return [*line, Span(" " * (width - at))]


def strip(steps: Sequence[Parts], glyphs: Glyphs) -> Line:
    """Busy shares over time, a cell for each step, on the colour of the leading wait."""
    return [_column(step, glyphs.levels) for step in steps]


def _column(step: Parts, levels: str) -> Span:
    busy, waits = step.get(KEPT_BUSY, 0.0), [name for name in step if name != KEPT_BUSY]
    level = levels[min(int(busy * len(levels)), len(levels) - 1)] if step else " "
    return Span(level, f"{KEPT_BUSY} on {waits[0]}" if waits else KEPT_BUSY)


def _cell(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
