"""The pictures of the READMEs, taken of the real programs on the demo.

    PYTHONPATH=tests:grafana python tests/pictures.py exporter/pictures

Takes about six minutes on a machine that does nothing else: what the demo's GPUs wait for is real,
and on a busy machine they all wait for a CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

import pyte
from playwright.sync_api import ViewportSize

from grafana_check import take
from support.browser import chromium, opened
from support.command import ANY_PORT, COMMAND, serving
from support.terminal import terminal

_WARM_UP_SECONDS = 75
_COLUMNS, _ROWS = 110, 25
_PAGE: ViewportSize = {"width": 1280, "height": 965}
_WIDE, _HIGH, _MARGIN = 8.4, 18, 12
_GROUND, _INK = "#16191d", "#d8dce2"
_BLOCK = "█"


def main(folder: Path) -> None:
    """Take them all."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving(Path(scratch), "demo", *ANY_PORT) as demo,
    ):
        url = demo.url
        time.sleep(_WARM_UP_SECONDS)
        (folder / "top.svg").write_text(top(url), encoding="utf-8")
        page(url.removesuffix("metrics"), folder / "status-page.png")
    take.main(folder)


def top(url: str) -> str:
    """The terminal with `top` in it, as SVG."""
    command = [*COMMAND, "top", "--url", url, "--interval", "1"]
    with terminal(command, _COLUMNS, _ROWS) as screen:
        screen.wait_for(lambda lines: _BLOCK in lines[4], "the bars")
        time.sleep(10)
        screen.press("j")
        screen.wait_for(lambda lines: any(line.startswith("GPU 1 ") for line in lines), "GPU 1")
        return drawn(screen.screen)


def page(url: str, file: Path) -> None:
    """The status page's first screen."""
    with (
        chromium() as browser,
        opened(browser, url, viewport=_PAGE, color_scheme="light") as (p, _),
    ):
        p.wait_for_timeout(3000)
        p.screenshot(path=file)


def drawn(screen: pyte.Screen) -> str:
    """Text on `screen`, as SVG; full blocks are drawn, so that no font parts them."""
    width = round(screen.columns * _WIDE + 2 * _MARGIN)
    height = screen.lines * _HIGH + 2 * _MARGIN
    shapes = "\n".join(shape for row in range(screen.lines) for shape in _row(screen, row))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="14">
<rect width="{width}" height="{height}" rx="8" fill="{_GROUND}"/>
{shapes}
</svg>
"""


def _row(screen: pyte.Screen, row: int) -> Iterator[str]:
    cells = [screen.buffer[row][column] for column in range(screen.columns)]
    at = 0
    for (ink, ground, bold, block), group in groupby(cells, _look):
        text = "".join(cell.data for cell in group)
        x, y, wide = _MARGIN + at * _WIDE, _MARGIN + row * _HIGH, len(text) * _WIDE
        place = f'x="{x:.1f}" y="{y + (2 if block else 0)}" width="{wide:.1f}"'
        if block:
            yield f'<rect {place} height="{_HIGH - 4}" fill="{ink}"/>'
        elif ground != _GROUND:
            yield f'<rect {place} height="{_HIGH}" fill="{ground}"/>'
        if text.strip() and not block:
            weight = ' font-weight="bold"' if bold else ""
            yield (
                f'<text x="{x:.1f}" y="{y + 14}" fill="{ink}"{weight} xml:space="preserve" '
                f'textLength="{wide:.1f}">{escape(text)}</text>'
            )
        at += len(text)


def _look(cell: pyte.screens.Char) -> tuple[str, str, bool, bool]:
    ink, ground = _colour(cell.fg, _INK), _colour(cell.bg, _GROUND)
    if cell.reverse:
        ink, ground = ground, ink
    return ink, ground, cell.bold, cell.data == _BLOCK


def _colour(name: str, default: str) -> str:
    return default if name == "default" else f"#{name}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
