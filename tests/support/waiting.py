"""Waiting for what must happen, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 240.0
"""Time allowed for what must happen: never a measure of speed, less than a test may take."""
_PAUSES_SECONDS = 0.02, 0.1
"""The first, and the longest: to look costs time, too."""
Found = TypeVar("Found")


def until(
    condition: Callable[[], Found | None],
    what: str | Callable[[], object],
    unless: Callable[[], bool] = lambda: False,
) -> Found:
    """Wait for and return a true `condition`; fails if it never comes, or `unless` comes first.

    `what` names it, or returns what is missing.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause, longest = _PAUSES_SECONDS
    while not (result := condition()):
        assert not unless(), f"cannot come: {what() if callable(what) else what}"
        assert time.monotonic() < deadline, f"never came: {what() if callable(what) else what}"
        time.sleep(pause)
        pause = min(1.2 * pause, longest)
    return result


def eventually(condition: Callable[[], Found | None]) -> Found:
    """`until`, of a condition that says by itself what it is."""
    return until(condition, "what comes in the end")
