"""`top`: live in a terminal, else as lines or JSON."""

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
from gpu_bottleneck_exporter.nodeview.text import missing_gpu_remedy, owners, parts
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.sampler import OPENING
from gpu_bottleneck_exporter.top.columns import BAR, COLUMNS, OWNER, Column
from gpu_bottleneck_exporter.top.keys import Choice
from gpu_bottleneck_exporter.top.source import Feed, Source


def top(source: Source, seconds: float, count: int | None, order: str, *, as_json: bool) -> None:
    """Show `source` every `seconds`: live on a terminal, else or with `count` as lines or JSON."""
    feed = Feed(source, seconds)
    try:
        if count is None and not as_json and sys.stdout.isatty() and sys.stdin.isatty():
            try:  # Python may have been built without curses
                from gpu_bottleneck_exporter.top.terminal import show  # noqa: PLC0415
            except ImportError as error:
                problem = f"this Python cannot draw on terminals ({error}): try top --once"
                raise ExporterError(problem) from error
            feed.start()
            show(feed, Choice(order=order))
        else:
            write(feed, seconds, count, as_json=as_json)
    except BrokenPipeError:
        # A closed pipe (`| head`): prevent a flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        source.close()


def write(feed: Feed, interval_seconds: float, count: int | None, *, as_json: bool = False) -> None:
    """Print the node `count` times, or forever, after an interval each; report failures.

    Raises ExporterError if the last reading fails.
    """
    problem: str | None = None
    heading = True

    def opened() -> bool:
        feed.read()
        return feed.node is None or feed.node.driver_status != OPENING

    wait(opened)
    for _ in itertools.repeat(None) if count is None else range(count):
        time.sleep(interval_seconds)
        feed.read()
        previous, problem = problem, feed.error or _empty(feed.node)
        if problem and problem != previous and count != 1:
            click.echo(f"{problem}; trying again", err=True)
        if feed.node and not problem:
            if as_json:
                click.echo(dumps({"source": feed.source.name, **document(feed.node)}))
            else:
                click.echo("\n".join(table(feed.node, heading=heading)))
            heading = False
    if problem:
        raise ExporterError(problem)


def _empty(node: Node | None) -> str | None:
    if node is None or node.gpus:
        return None
    return f"no GPU to show: {node.driver_status or 'none found'} ({missing_gpu_remedy(node)})"


def table(node: Node, *, heading: bool) -> Iterator[str]:
    """A line per GPU, with the live view's columns and waits instead of the bar."""
    now = time.strftime("%H:%M:%S")
    if heading:
        titles = (f"{column.title:{column.width}}" for column in _LINE_COLUMNS)
        yield "  ".join([f"{'TIME':{len(now)}}", *titles])
    for gpu in node.gpus:
        texts = (f"{printable(column.text(gpu)):{column.width}}" for column in _LINE_COLUMNS)
        yield "  ".join([now, *texts])


_LINE_COLUMNS = (
    *(column for column in COLUMNS if column.title not in (BAR, OWNER, "MODEL")),
    Column("WAITS", 32, lambda gpu: parts(named(gpu.stall_ratios or {}))),
    Column(OWNER, 0, owners),
)
