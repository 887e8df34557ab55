"""Panels of last values: large numbers, and bars."""

from __future__ import annotations

from html import escape
from typing import Any

from dashboardpictures.asking import Window, named
from dashboardpictures.fields import Field, empty, field

Json = dict[str, Any]
Value = tuple[Field, float]

_LETTER = 0.6
"""How wide a letter is, of its height."""


def values_of(panel: Json, window: Window) -> list[Value]:
    """What a panel's queries give; those that give nothing have no place."""
    found = [
        (named(target, labels), value)
        for target in panel["targets"]
        for labels, value in window.instant(target)
    ]
    return [(field(panel, name, index), value) for index, (name, value) in enumerate(found)]


def stat(panel: Json, window: Window, width: float, height: float) -> str:
    """Large numbers in the colours of their series; one alone has no name but the panel's."""
    found = values_of(panel, window)
    if not found:
        return _stats([(_large(empty(panel), width, height), "", "")], across=True)
    across = width > height
    width, height = (width / len(found), height) if across else (width, height / len(found))
    tiles = []
    for one, value in found:
        shown = one.shown(value)
        name = one.title if len(found) > 1 else ""
        room = height - (24 if name else 0)
        tiles.append((_large(shown.text, width, room), name, shown.colour))
    return _stats(tiles, across=across)


def _large(text: str, width: float, height: float) -> str:
    size = min(height * 0.62, width * 0.86 / (_LETTER * max(len(text), 1)), 90)
    return f'<b style="font-size:{size:.0f}px">{escape(text)}</b>'


def _stats(tiles: list[tuple[str, str, str]], *, across: bool) -> str:
    drawn = "".join(
        f'<div style="color:{colour or "inherit"}">'
        f"{f'<span>{escape(name)}</span>' if name else ''}{number}</div>"
        for number, name, colour in tiles
    )
    return f'<div class="stats {"across" if across else "down"}">{drawn}</div>'


def bar_gauge(panel: Json, window: Window, width: float, height: float) -> str:
    """Bars from 0 to the largest value, the values in the colours of the bars."""
    found = values_of(panel, window)
    if not found:
        return f'<div class="empty">{escape(empty(panel))}</div>'
    options = panel["options"]
    room = height / len(found) - 8
    high = max(options["minVizHeight"], min(options["maxVizHeight"], room))
    names = min(0.5 * width, 16 + 7.4 * max(len(one.title) for one, _ in found))
    most = max(value for _, value in found) or 1
    bars = []
    for one, value in found:
        shown = one.shown(value)
        long = max(2, (width - names - 80) * value / most)
        bars.append(
            f'<div class="bar" style="height:{high:.0f}px">'
            f'<span style="width:{names:.0f}px">{escape(one.title)}</span>'
            f'<i style="width:{long:.0f}px;background:{shown.colour}"></i>'
            f'<b style="color:{shown.colour}">{escape(shown.text)}</b></div>'
        )
    return f'<div class="bars">{"".join(bars)}</div>'
