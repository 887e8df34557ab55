"""Styled text, and its width in the cells of a terminal."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, Parts


class Style(str, Enum):
    """The styles of text, besides the names of waits and `busy`."""

    HEADING = "head"
    SELECTED = "selected"
    STRONG = "strong"
    SOFT = "soft"
    BAD = "bad"


class StyledText(NamedTuple):
    """Text in one style."""

    text: str
    style: str = ""


Line = list[StyledText]


class Glyphs(NamedTuple):
    """The characters of bars and strips."""

    busy: str
    cause: str
    other: str
    levels: str
    """Levels of the busy share, ascending."""

    def of(self, name: str, parts: Parts) -> str:
        """The character of part `name`; the largest wait is the cause."""
        largest = next((name for name in parts if name != KEPT_BUSY), None)
        return {KEPT_BUSY: self.busy, largest: self.cause}.get(name, self.other)


IN_COLOUR = Glyphs("█", "█", "█", " ▁▂▃▄▅▆▇█")
WITHOUT_COLOUR = Glyphs("█", "▒", "░", "▁▂▃▄▅▆▇█")
IN_ASCII = Glyphs("#", "=", "-", "0123456789")


def cells(text: str) -> int:
    """Width of printable text, in cells."""
    return sum(map(_cell, text))


def clipped(text: str, width: int) -> str:
    """`text`, printable, cut to `width` cells."""
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
    """A GPU's shares as a bar of `width` cells; blank if unknown."""
    line, at, until = [], 0, 0.0
    for name, part in parts.items():
        until += part
        end = max(at, min(round(until * width), width))
        line.append(StyledText(glyphs.of(name, parts) * (end - at), name))
        at = end
    return [*line, StyledText(" " * (width - at))]


def strip(steps: Sequence[Parts], glyphs: Glyphs) -> Line:
    """Busy shares, a cell per step, on the colour of the leading wait."""
    return [_column(step, glyphs.levels) for step in steps]


def _column(step: Parts, levels: str) -> StyledText:
    busy, waits = step.get(KEPT_BUSY, 0.0), [name for name in step if name != KEPT_BUSY]
    level = levels[min(int(busy * len(levels)), len(levels) - 1)] if step else " "
    return StyledText(level, f"{KEPT_BUSY} on {waits[0]}" if waits else KEPT_BUSY)


def _cell(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
