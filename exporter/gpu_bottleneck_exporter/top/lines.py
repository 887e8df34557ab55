"""Without a terminal: a table that grows by a line per GPU at each interval, or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_bottleneck_exporter.errors import ExporterError, printable
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, Gpu, Node, likely_cause, named
from gpu_bottleneck_exporter.nodeview.text import owners, to_have_one
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.sampler import OPENING
from gpu_bottleneck_exporter.top.columns import PRESCRIPTION, columns, prescribed, share
from gpu_bottleneck_exporter.top.refresh import Refresher

Tell = Callable[[str], None]
Show = Callable[[str, Node, bool], None]
"""Prints a node from the source so named; the last argument is whether it is the first time."""
_LEFT_OUT = frozenset({"busy and waiting", "LIKELY CAUSE", PRESCRIPTION, "OWNER", "MODEL"})
_OPEN_WITHIN_SECONDS = 60.0
_ALL = 10_000
"""Cells: wide enough for every column."""


def write(
    feed: Refresher, interval_seconds: float, count: int | None, show: Show, err: Tell
) -> None:
    """Have `show` print the node `count` times, or until the program ends.

    Shares take two readings, so the first lines come after an interval. Raises ExporterError if
    a count is given and the last reading fails; otherwise it reports to `err` and tries again.
    """
    told: str | None = None
    first = True
    _wait_for_the_driver(feed)
    while count is None or count > 0:
        time.sleep(interval_seconds)
        latest = feed.read()
        trouble = latest.error or _empty(latest.node)
        if trouble and trouble != told and count != 1:
            err(f"{trouble}; trying again")
        told = trouble
        if latest.node and latest.node.gpus and not latest.error:
            show(latest.source, latest.node, first)
            first = False
        count = None if count is None else count - 1
    if told:
        raise ExporterError(told)


def _wait_for_the_driver(feed: Refresher) -> None:
    """Read until the driver has answered, be it with an error: a busy machine takes its time."""
    give_up = time.monotonic() + _OPEN_WITHIN_SECONDS
    while (node := feed.read().node) and node.driver_status == OPENING:
        if time.monotonic() > give_up:
            break
        time.sleep(0.05)


def _empty(node: Node | None) -> str | None:
    if node is None or node.gpus:
        return None
    return f"no GPU to show: {node.driver_status or 'none found'} ({to_have_one(node)})"


def table(out: Tell, _: str, node: Node, first: bool) -> None:  # noqa: FBT001 - see Show
    """A line for each GPU, below a heading that comes once."""
    now = time.strftime("%H:%M:%S")
    shown = [column for column in columns(node.gpus, _ALL) if column.title not in _LEFT_OUT]
    if first:
        titles = "  ".join(f"{column.title:{column.width}}" for column in shown)
        out(f"{'TIME':8}  {titles}  {'LIKELY CAUSE':12}  {PRESCRIPTION:30}  {'WAITS':32}  OWNER")
    for gpu in node.gpus:
        texts = [f"{printable(column.text(gpu)):{column.width}}" for column in shown]
        texts += [f"{printable(likely_cause(gpu)):12}", f"{printable(prescribed(gpu)):30}"]
        texts += [f"{_waits(gpu):32}", printable(owners(gpu))]
        out("  ".join([now, *texts]))


def documents(out: Tell, source: str, node: Node, _: bool) -> None:  # noqa: FBT001 - see Show
    """The node as one JSON document."""
    out(dumps({"source": source, **document(node)}))


def _waits(gpu: Gpu) -> str:
    waits = {name: part for name, part in named(gpu.parts).items() if name != KEPT_BUSY}
    return printable(", ".join(f"{name} {share(part)}" for name, part in waits.items()))
