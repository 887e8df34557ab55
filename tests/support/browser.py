"""A real browser, and what it complained about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from support.tools import require
from support.waiting import PATIENCE_SECONDS

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
PATIENCE_MILLISECONDS = 1000 * PATIENCE_SECONDS
PHONE: ViewportSize = {"width": 360, "height": 740}
DESK: ViewportSize = {"width": 1280, "height": 900}

expect.set_options(timeout=PATIENCE_MILLISECONDS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless, with a fresh profile."""
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
    """A page in a fresh context, and its console messages."""
    messages: list[str] = []
    with browser.new_context(**context) as fresh:
        fresh.set_default_timeout(PATIENCE_MILLISECONDS)
        page = fresh.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(f"{error}"))
        page.goto(url)
        yield page, messages
