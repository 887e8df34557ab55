"""`top`: live in a terminal, else as lines or as JSON."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator

import click

from gpu_bottleneck_exporter.commands.watch import wait
from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import Node, named
from gpu_bottleneck_exporter.nodeview.text import owners, parts, to_have_one
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.sampler import OPENING
from gpu_bottleneck_exporter.top.columns import BAR, COLUMNS, OWNER, Column
from gpu_bottleneck_exporter.top.keys import Choice
from gpu_bottleneck_exporter.top.source import Feed, Source


def top(source: Source, seconds: float, count: int | None, order: str, *, as_json: bool) -> None:
    """Show `source` live, or as lines: `count` times, as JSON, or where stdout is no terminal.

    `seconds`: between two readings.
    """
    feed = Feed(source, seconds)
    try:
        if count is None and not as_json and sys.stdout.isatty() and sys.stdin.isatty():
            try:  # Python may have been built without curses
                from gpu_bottleneck_exporter.top.terminal import show  # noqa: PLC0415
            except ImportError as error:
                told = f"this Python cannot draw on terminals ({error}): try top --once"
                raise ExporterError(told) from error
            feed.start()
            show(feed, Choice(order=order))
        else:
            write(feed, seconds, count, as_json=as_json)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): keep Python from flushing to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        source.close()


def write(feed: Feed, interval_seconds: float, count: int | None, *, as_json: bool = False) -> None:
    """Print the node `count` times, or until the program ends.

    Shares take two readings, so the first lines come after an interval. Raises ExporterError if
    a count is given and the last reading fails; otherwise stderr says so, and it tries again.
    """
    told: str | None = None
    heading = True

    def opened() -> bool:
        feed.read()
        return feed.node is None or feed.node.driver_status != OPENING

    wait(opened)  # a busy machine takes its time to open the driver
    for _ in itertools.repeat(None) if count is None else range(count):
        time.sleep(interval_seconds)
        feed.read()
        trouble = feed.error or _empty(feed.node)
        if trouble and trouble != told and count != 1:
            click.echo(f"{trouble}; trying again", err=True)
        told = trouble
        if feed.node and not trouble:
            if as_json:
                click.echo(dumps({"source": feed.source.name, **document(feed.node)}))
            else:
                click.echo("\n".join(table(feed.node, heading=heading)))
            heading = False
    if told:
        raise ExporterError(told)


def _empty(node: Node | None) -> str | None:
    if node is None or node.gpus:
        return None
    return f"no GPU to show: {node.driver_status or 'none found'} ({to_have_one(node)})"


def table(node: Node, *, heading: bool) -> Iterator[str]:
    """A line for each GPU, in the columns of the live view; its waits in place of their bar."""
    now = time.strftime("%H:%M:%S")
    if heading:
        titles = (f"{column.title:{column.width}}" for column in _COLUMNS)
        yield "  ".join([f"{'TIME':{len(now)}}", *titles])
    for gpu in node.gpus:
        texts = (f"{printable(column.text(gpu)):{column.width}}" for column in _COLUMNS)
        yield "  ".join([now, *texts])


_COLUMNS = (
    *(column for column in COLUMNS if column.title not in (BAR, OWNER, "MODEL")),
    Column("WAITS", 32, lambda gpu: parts(named(gpu.stall_ratios or {}))),
    Column(OWNER, 0, owners),
)
