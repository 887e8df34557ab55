"""Ties source, feed and terminal together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import click

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.top.feed import Feed
from gpu_bottleneck_exporter.top.keys import Choice
from gpu_bottleneck_exporter.top.lines import write
from gpu_bottleneck_exporter.top.source import Source


def top(source: Source, interval_seconds: float, count: int | None, order: str) -> None:
    """Show `source` live, or as plain lines: `count` times, or where stdout is no terminal."""
    feed = Feed(source, interval_seconds)
    try:
        if count is None and sys.stdout.isatty() and sys.stdin.isatty():
            show = _drawing()
            feed.start()
            show(feed, Choice(order=order))
        else:
            write(feed, interval_seconds, count, click.echo, partial(click.echo, err=True))
    except BrokenPipeError:
        # The reader has had enough (`| head`); Python must not try to flush at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        feed.stop()
        source.close()


def _drawing() -> Callable[[Feed, Choice], None]:
    """Imported late: Python may have been built without curses."""
    try:
        from gpu_bottleneck_exporter.top.terminal import show  # noqa: PLC0415
    except ImportError as error:
        raise ExporterError(
            f"this Python cannot draw on terminals ({error}): try top --once"
        ) from error
    return show
