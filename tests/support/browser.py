"""A real browser, with what it complained of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from support.tools import require

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MILLISECONDS = 60_000
PHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1280, "height": 900}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless, with a profile of its own."""
    program = require("chromium", "chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser,
    url: str,
    **context: Any,  # noqa: ANN401 - what new_context takes
) -> Iterator[tuple[Page, list[str]]]:
    """A page of a fresh context, and what its console says."""
    said: list[str] = []
    with browser.new_context(**context) as fresh:
        fresh.set_default_timeout(PATIENCE_MILLISECONDS)
        page = fresh.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(f"{error}"))
        page.goto(url)
        yield page, said
