"""Pieces of text with a style, and how many cells of a terminal they take."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
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
    """What bars are made of."""

    busy: str
    cause: str
    other: str


IN_COLOUR = Glyphs("█", "█", "█")
WITHOUT_COLOUR = Glyphs("█", "▒", "░")
IN_ASCII = Glyphs("#", "=", "-")


def cells(text: str) -> int:
    """Width of printable text, in cells."""
    return sum(_cell(character) for character in text)


def clipped(text: str, width: int) -> str:
    """`text`, printable, in at most `width` cells; an ellipsis marks a cut."""
    text = printable(text)
    if cells(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += _cell(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…" if width > 0 else ""


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells."""
    text = clipped(text, width)
    space = " " * (width - cells(text))
    return space + text if right else text + space


def plain(line: Iterable[Span]) -> str:
    """The text alone."""
    return "".join(span.text for span in line)


def bar(parts: Parts, width: int, glyphs: Glyphs) -> Line:
    """What a GPU did, as a bar of `width` cells; empty if unknown."""
    largest = next((name for name in parts if name != KEPT_BUSY), None)
    line = []
    for name, length in _lengths(parts, width).items():
        glyph = glyphs.busy if name == KEPT_BUSY else glyphs.other
        glyph = glyphs.cause if name == largest else glyph
        line.append(Span(glyph * length, name))
    return [*line, Span(" " * (width - sum(len(span.text) for span in line)))]


def _lengths(parts: Mapping[str, float], width: int) -> dict[str, int]:
    """Whole cells for each part; the largest remainders get the cells left over."""
    exact = {name: part * width for name, part in parts.items()}
    lengths = {name: int(length) for name, length in exact.items()}
    left = min(round(sum(exact.values())), width) - sum(lengths.values())
    by_loss = sorted(exact, key=lambda name: lengths[name] - exact[name])
    for name in by_loss[: max(left, 0)]:
        lengths[name] += 1
    return lengths


def _cell(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
