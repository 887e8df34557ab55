"""Connects source, refresher and terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial

import click

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.top.keys import Choice
from gpu_bottleneck_exporter.top.lines import documents, table, write
from gpu_bottleneck_exporter.top.refresh import Refresher
from gpu_bottleneck_exporter.top.source import Source


def top(
    source: Source, interval_seconds: float, count: int | None, order: str, *, as_json: bool = False
) -> None:
    """Show `source` live, or as lines: `count` times, as JSON, or where stdout is no terminal."""
    feed = Refresher(source, interval_seconds)
    try:
        if count is None and not as_json and sys.stdout.isatty() and sys.stdin.isatty():
            draw = _drawing()
            feed.start()
            draw(feed, Choice(order=order))
        else:
            show = partial(documents if as_json else table, click.echo)
            write(feed, interval_seconds, count, show, partial(click.echo, err=True))
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): keep Python from flushing to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        feed.stop()
        source.close()


def _drawing() -> Callable[[Refresher, Choice], None]:
    """Imported late: Python may have been built without curses."""
    try:
        from gpu_bottleneck_exporter.top.terminal import show  # noqa: PLC0415
    except ImportError as error:
        raise ExporterError(
            f"this Python cannot draw on terminals ({error}): try top --once"
        ) from error
    return show
