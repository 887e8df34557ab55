"""Draws the screen with curses, and reads keys."""

from __future__ import annotations

import curses
import locale
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.palette import BUSY_COLOUR, WAIT_COLOURS
from gpu_bottleneck_exporter.top import spans
from gpu_bottleneck_exporter.top.keys import Choice, pressed
from gpu_bottleneck_exporter.top.screen import frame, page
from gpu_bottleneck_exporter.top.source import Feed
from gpu_bottleneck_exporter.top.spans import Glyphs, Line, Style

_COLOURS = 256
"""Number of colours of nearly all terminals."""


def show(feed: Feed, choice: Choice) -> None:
    """Draw until the user quits, then restore the terminal. Raises ExporterError."""
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", "25")
    for size in ("LINES", "COLUMNS"):
        os.environ.pop(size, None)  # curses would never resize
    logging.disable()
    try:
        curses.wrapper(partial(_loop, feed=feed, choice=choice))
    except curses.error as error:
        terminal = f"the terminal {os.environ.get('TERM', '')!r}"
        raise ExporterError(f"cannot draw on {terminal} ({error}): try top --once") from error
    finally:
        logging.disable(logging.NOTSET)


def _loop(screen: curses.window, feed: Feed, choice: Choice) -> None:
    with suppress(curses.error):
        curses.curs_set(0)
    styles = _styles()
    glyphs = _glyphs(coloured="busy" in styles)
    screen.timeout(200)  # milliseconds; the clock shows each second
    while not choice.ended:
        if feed.bug is not None:
            raise feed.bug
        height, width = screen.getmaxyx()
        _draw(screen, frame(feed, choice, width, height, glyphs), styles)
        key = ""
        with suppress(curses.error):  # no key
            key = screen.getkey()
        if key == "KEY_RESIZE":
            screen.clear()  # terminals retain different parts
        elif key:
            node = feed.node
            choice = pressed(choice, key, node, page(node, choice, height))


def _draw(screen: curses.window, lines: list[Line], styles: Mapping[str, int]) -> None:
    screen.erase()
    for row, line in enumerate(lines):
        screen.move(row, 0)
        for span in line:
            # Writing the last cell of a screen raises an error.
            with suppress(curses.error):
                screen.addstr(span.text, styles.get(span.style, curses.A_NORMAL))
    screen.refresh()


def _glyphs(*, coloured: bool) -> Glyphs:
    if "utf" not in locale.getpreferredencoding(do_setlocale=False).lower():
        return spans.IN_ASCII
    return spans.IN_COLOUR if coloured else spans.WITHOUT_COLOUR


def _styles() -> dict[str, int]:
    """Attributes by style; waits have none with fewer than 256 colours."""
    styles: dict[str, int] = {
        Style.HEADING: curses.A_REVERSE,
        Style.SELECTED: curses.A_REVERSE,
        Style.STRONG: curses.A_BOLD,
        Style.SOFT: curses.A_DIM,
        Style.BAD: curses.A_BOLD,
    }
    if not curses.has_colors():
        return styles
    curses.use_default_colors()  # respects the terminal's background
    if os.environ.get("NO_COLOR") or curses.COLORS < _COLOURS:
        return styles
    colours = {"busy": BUSY_COLOUR, **WAIT_COLOURS, Style.BAD: "#C94A53"}
    pairs = {name: (nearest(colour), -1) for name, colour in colours.items()}
    pairs |= {
        f"busy on {name}": (nearest(BUSY_COLOUR), nearest(c)) for name, c in WAIT_COLOURS.items()
    }
    for number, (name, (ink, ground)) in enumerate(pairs.items(), 1):
        curses.init_pair(number, ink, ground)
        styles[name] = curses.color_pair(number)
    return styles


def nearest(colour: str) -> int:
    """The number of the colour nearest to #RRGGBB among 256."""
    levels = (0, 95, 135, 175, 215, 255)  # of each part in the standard cube of 256 colours
    red, green, blue = (
        min(range(6), key=lambda n: abs(levels[n] - level)) for level in bytes.fromhex(colour[1:])
    )
    return 16 + 36 * red + 6 * green + blue
