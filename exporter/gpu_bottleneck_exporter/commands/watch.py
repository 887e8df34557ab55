"""Samples this machine for a while: for `once`, `check` and `diagnose`."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.build import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings

_ONCE_TICKS = 2
"""Ticks of `once`: the minimum for means."""


class NodeSample(NamedTuple):
    """This machine, sampled for a while."""

    node: Node
    state: SamplerState
    seconds: float
    """Duration; 0 without a GPU."""
    interrupted: bool
    """Whether Ctrl-C shortened it."""


class _Interrupt:
    """A handler of Ctrl-C: fails the command; after `begin`, ends the sampling."""

    def __init__(self) -> None:
        self.came = False
        self._before = signal.signal(signal.SIGINT, self._abort)

    def begin(self) -> None:
        """Only set `came` from now on."""
        signal.signal(signal.SIGINT, self._record)

    def end(self) -> None:
        """Restore the previous handler."""
        signal.signal(signal.SIGINT, self._before)

    def _abort(self, *_: object) -> NoReturn:
        self.end()
        raise ExporterError("interrupted before anything was measured")

    def _record(self, *_: object) -> None:
        self.came = True
        self.end()  # a second Ctrl-C takes effect at once


@contextmanager
def sampled(
    settings: Settings,
    open_driver: Callable[[], Driver],
    ticks: int,
    further: Sequence[Collector] = (),
) -> Iterator[Sampler]:
    """A sampler after `ticks` ticks, or without a GPU; `further`: more collectors."""
    collectors = (*enabled(settings), *further)
    sampler = Sampler(open_driver, collectors, settings, lambda _: None)
    sampler.start()
    try:
        wait(lambda: sampler.ready)
        if sampler.state().gpus:
            began_ns = time.monotonic_ns()
            time.sleep(ticks * settings.interval_seconds)
            # A mean takes two readings, and these may be late.
            due_ns = began_ns + int((ticks - 0.5) * settings.interval_seconds * 1e9)
            wait(lambda: all(gpu.at_ns > due_ns or not gpu.up for gpu in sampler.state().gpus))
        yield sampler
    finally:
        sampler.stop()


def watched(
    settings: Settings,
    open_driver: Callable[[], Driver],
    seconds: float,
    progress: Callable[[float, Callable[[], Node]], None] | None = None,
) -> NodeSample:
    """This machine after a few ticks and then `seconds`, which the shares cover.

    `progress`: called each second with the remaining seconds and a reader of the result so far;
    then, Ctrl-C ends the sampling, or raises ExporterError before its start.
    """
    interrupt = _Interrupt() if progress else None
    try:
        warm_up_ticks = 3  # until counters were read twice and the feeders are known
        with sampled(settings, open_driver, warm_up_ticks) as sampler:
            local = LocalNode(sampler, math.inf, judged_seconds=0.0)
            local.record()
            if interrupt:
                interrupt.begin()
            began = time.monotonic()
            end = began + (seconds if sampler.state().gpus else 0)
            while (left := end - time.monotonic()) > 0 and not (interrupt and interrupt.came):
                if sampler.lines:
                    for gpu in sampler.state().gpus:
                        sampler.lines.request(gpu.identity.uuid, left)
                if progress:
                    progress(left, local.read)
                until = min(time.monotonic() + 1, end)
                while time.monotonic() < until and not (interrupt and interrupt.came):
                    time.sleep(min(0.1, max(until - time.monotonic(), 0.0)))
                local.record()  # the start of the shares of a new GPU
            took = min(time.monotonic(), end) - began
            return NodeSample(
                local.read(), sampler.state(), took, bool(interrupt and interrupt.came)
            )
    finally:
        if interrupt:
            interrupt.end()


def scraped(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """The result of a scrape, and the reason if there is no GPU."""
    with sampled(settings, open_driver, _ONCE_TICKS) as sampler:
        text = Exposition(sampler, enabled(settings)).render()[0].decode()
        return text, None if sampler.state().gpus else sampler.status


def documented(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """The node document on one line, and the reason if there is no GPU."""
    node = watched(settings, open_driver, _ONCE_TICKS * settings.interval_seconds).node
    return f"{dumps(document(node))}\n", None if node.gpus else node.driver_status


def wait(until: Callable[[], bool]) -> None:
    """Wait for at most a minute: without persistence daemon, the driver opens slowly."""
    deadline = time.monotonic() + 60
    while not until() and time.monotonic() < deadline:
        time.sleep(0.02)
