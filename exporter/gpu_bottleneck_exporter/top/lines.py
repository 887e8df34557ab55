"""Without a terminal: plain lines, one for each GPU at each interval."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.nodeview.model import GpuView, NodeView, likely_cause
from gpu_bottleneck_exporter.nodeview.text import owners, to_have_one
from gpu_bottleneck_exporter.top.columns import columns, share
from gpu_bottleneck_exporter.top.feed import Feed
from gpu_bottleneck_exporter.top.spans import clean

Tell = Callable[[str], None]
_LEFT_OUT = frozenset({"busy and waiting", "LIKELY CAUSE", "OWNER", "MODEL"})
_WORTH_NAMING = 0.005
_ALL = 10_000
"""Wide enough for every column."""


def write(feed: Feed, interval_seconds: float, count: int | None, out: Tell, err: Tell) -> None:
    """Write `count` times, or for ever.

    Shares take two readings, so the first lines come after an interval. Raises ExporterError
    where a count is wanted and the last try has failed; else it tells `err`, and tries again.
    """
    told: str | None = None
    header = True
    feed.read()
    while count is None or count > 0:
        time.sleep(interval_seconds)
        latest = feed.read()
        trouble = latest.error or _empty(latest.view)
        if trouble and trouble != told and count != 1:
            err(f"{trouble}; trying again")
        told = trouble
        if latest.view and latest.view.gpus and not latest.error:
            _print(latest.view, out, header=header)
            header = False
        count = None if count is None else count - 1
    if told:
        raise ExporterError(told)


def _empty(view: NodeView | None) -> str | None:
    if view is None or view.gpus:
        return None
    return f"no GPU to show: {view.now.status or 'none there'} ({to_have_one(view)})"


def _print(view: NodeView, out: Tell, *, header: bool) -> None:
    now = time.strftime("%H:%M:%S")
    shown = [column for column in columns(view.gpus, _ALL) if column.title not in _LEFT_OUT]
    if header:
        titles = "  ".join(f"{column.title:{column.width}}" for column in shown)
        out(f"{'TIME':8}  {titles}  {'LIKELY CAUSE':12}  {'WAITS':32}  OWNER")
    for gpu in view.gpus:
        texts = [f"{clean(column.text(gpu)):{column.width}}" for column in shown]
        out(f"{now}  {'  '.join(texts)}  {likely_cause(gpu):12}  {_waits(gpu):32}  {_owner(gpu)}")


def _waits(gpu: GpuView) -> str:
    stalls = gpu.shares.stalls.items() if gpu.shares else ()
    return ", ".join(f"{name} {share(part)}" for name, part in stalls if part >= _WORTH_NAMING)


def _owner(gpu: GpuView) -> str:
    return clean(owners(gpu))
