"""The screen in a terminal, by curses: colours, keys, and the end."""

from __future__ import annotations

import curses
import locale
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.palette import BUSY, WAITING_ON
from gpu_bottleneck_exporter.top import keys, spans
from gpu_bottleneck_exporter.top.keys import Choice
from gpu_bottleneck_exporter.top.refresh import Refresher
from gpu_bottleneck_exporter.top.screen import frame, page
from gpu_bottleneck_exporter.top.spans import Glyphs, Line

_WAIT_MILLISECONDS = 200
_MANY_COLOURS = 256
_BAD = "#C94A53"
_KEYS = {
    curses.KEY_UP: keys.UP,
    curses.KEY_DOWN: keys.DOWN,
    curses.KEY_PPAGE: keys.PAGE_UP,
    curses.KEY_NPAGE: keys.PAGE_DOWN,
    curses.KEY_HOME: keys.HOME,
    curses.KEY_END: keys.END,
    curses.KEY_ENTER: keys.ENTER,
    ord("\n"): keys.ENTER,
    ord("\r"): keys.ENTER,
    27: keys.ESCAPE,
}
_BASIC = (
    (0, 0, 0),
    (205, 0, 0),
    (0, 205, 0),
    (205, 205, 0),
    (0, 0, 238),
    (205, 0, 205),
    (0, 205, 205),
    (229, 229, 229),
)
"""The nearest of a terminal's eight colours."""


def show(feed: Refresher, choice: Choice) -> None:
    """Draw until the user quits, then restore the terminal.

    Raises ExporterError if the terminal cannot be drawn on.
    """
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", "25")
    for size in ("LINES", "COLUMNS"):
        os.environ.pop(size, None)  # curses would trust these for ever, and never resize
    logging.disable()  # lines of the log would spoil the screen
    try:
        curses.wrapper(partial(_loop, feed=feed, choice=choice))
    except curses.error as error:
        terminal = os.environ.get("TERM", "")
        raise ExporterError(
            f"cannot draw on the terminal {terminal!r} ({error}): try top --once"
        ) from error
    finally:
        logging.disable(logging.NOTSET)


def _loop(screen: curses.window, feed: Refresher, choice: Choice) -> None:
    with suppress(curses.error):
        curses.curs_set(0)
    styles = _styles()
    glyphs = _glyphs(coloured="busy" in styles)
    screen.timeout(_WAIT_MILLISECONDS)
    while not choice.ended:
        latest = feed.latest
        if latest.bug is not None:
            raise latest.bug
        height, width = screen.getmaxyx()
        _draw(screen, frame(latest, choice, width, height, glyphs), styles)
        code = screen.getch()
        if code == curses.KEY_RESIZE:
            screen.clear()  # terminals differ in what they keep, and where
        key = _KEYS.get(code) or (chr(code) if 0 < code < 128 else "")  # noqa: PLR2004 - ASCII
        if key:
            choice = keys.pressed(choice, key, feed.latest.node, page(latest, choice, height))


def _draw(screen: curses.window, lines: list[Line], styles: Mapping[str, int]) -> None:
    screen.erase()
    for row, line in enumerate(lines):
        screen.move(row, 0)
        for span in line:
            # The last cell of a screen cannot be written without an error.
            with suppress(curses.error):
                screen.addstr(span.text, styles.get(span.style, curses.A_NORMAL))
    screen.refresh()


def _glyphs(*, coloured: bool) -> Glyphs:
    if "utf" not in locale.getpreferredencoding(do_setlocale=False).lower():
        return spans.IN_ASCII
    return spans.IN_COLOUR if coloured else spans.WITHOUT_COLOUR


def _styles() -> dict[str, int]:
    """Attributes by style; without colours waits have none."""
    styles = {
        spans.HEAD: curses.A_REVERSE,
        spans.SELECTED: curses.A_REVERSE,
        spans.STRONG: curses.A_BOLD,
        spans.SOFT: curses.A_DIM,
        spans.BAD: curses.A_BOLD,
    }
    if not curses.has_colors():
        return styles
    curses.use_default_colors()  # else text is white on black, whatever the terminal's background
    if os.environ.get("NO_COLOR"):
        return styles
    colours = {"busy": BUSY, **WAITING_ON, spans.BAD: _BAD}
    for number, (name, colour) in enumerate(colours.items(), 1):
        curses.init_pair(number, nearest(colour, curses.COLORS), -1)
        styles[name] = curses.color_pair(number)
    return styles


def nearest(colour: str, count: int) -> int:
    """The number of the colour nearest to `colour` (#RRGGBB) among `count`."""
    wanted = tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))
    palette = dict(_fixed()) if count >= _MANY_COLOURS else dict(enumerate(_BASIC))

    def distance(number: int) -> int:
        return sum((a - b) ** 2 for a, b in zip(palette[number], wanted, strict=True))

    return min(palette, key=distance)


def _fixed() -> Iterator[tuple[int, tuple[int, int, int]]]:
    """The colours that all 256-colour terminals share: a cube of six steps, and greys."""
    steps = (0, 95, 135, 175, 215, 255)
    for number in range(216):
        yield 16 + number, (steps[number // 36], steps[number // 6 % 6], steps[number % 6])
    for number in range(24):
        yield 232 + number, (8 + 10 * number,) * 3
