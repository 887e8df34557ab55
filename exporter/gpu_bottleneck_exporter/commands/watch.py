"""This machine, watched for a while: what `once` prints, and what `check` reports on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.build import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings

_PATIENCE_SECONDS = 60.0
"""A driver opens slowly without its persistence daemon, and on a busy machine."""
_WARM_UP_TICKS = 3
"""Until all counters have been read twice, and the feeders are known."""
_ONCE_TICKS = 2
"""The least from which there are means."""

Watched = tuple[Node, SamplerState]


@contextmanager
def sampled(settings: Settings, open_driver: Callable[[], Driver], ticks: int) -> Iterator[Sampler]:
    """A sampler that has run for `ticks` ticks, or has found that it cannot."""
    sampler = Sampler(open_driver, enabled(settings), settings, lambda _: None)
    sampler.start()
    try:
        wait(lambda: sampler.ready)
        if sampler.state().gpus:
            began_ns = time.monotonic_ns()
            time.sleep(ticks * settings.interval_seconds)
            # On a busy machine readings come late, and a mean takes two.
            due_ns = began_ns + int((ticks - 0.5) * settings.interval_seconds * 1e9)
            wait(lambda: all(gpu.at_ns > due_ns or not gpu.up for gpu in sampler.state().gpus))
        yield sampler
    finally:
        sampler.stop()


def watched(settings: Settings, open_driver: Callable[[], Driver], seconds: float) -> Watched:
    """This machine after a few ticks and then `seconds`, which its shares cover."""
    with sampled(settings, open_driver, _WARM_UP_TICKS) as sampler:
        local = LocalNode(sampler, math.inf, judged_seconds=0.0)
        local.record()
        end = time.monotonic() + (seconds if sampler.state().gpus else 0)
        while (left := end - time.monotonic()) > 0:
            if sampler.lines:
                for gpu in sampler.state().gpus:
                    sampler.lines.ask(gpu.identity.uuid, left)
            time.sleep(min(left, 1.0))
            local.record()  # a GPU that comes later is measured from there
        return local.read(), sampler.state()


def scraped(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """What a scrape returns, and why there is no GPU if there is none."""
    with sampled(settings, open_driver, _ONCE_TICKS) as sampler:
        text = Exposition(sampler, enabled(settings)).render()[0].decode()
        return text, None if sampler.state().gpus else sampler.status


def documented(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """The node document on one line, and why there is no GPU if there is none."""
    node, _ = watched(settings, open_driver, _ONCE_TICKS * settings.interval_seconds)
    return f"{dumps(document(node))}\n", None if node.gpus else node.driver_status


def wait(until: Callable[[], bool]) -> None:
    """Wait for a minute at most."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until() and time.monotonic() < deadline:
        time.sleep(0.02)
