"""This machine, watched for a while: what `once` prints, and what `check` reports on."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
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
from gpu_bottleneck_exporter.sampling.sampler import Sampler, SamplerState
from gpu_bottleneck_exporter.settings import Settings

_PATIENCE_SECONDS = 60.0
"""A driver opens slowly without its persistence daemon, and on a busy machine."""
_WARM_UP_TICKS = 3
"""Until all counters have been read twice, and the feeders are known."""
_ONCE_TICKS = 2
"""The least from which there are means."""

_LOOKS_APART_SECONDS = 1.0
_SOON_SECONDS = 0.1
"""After which an interruption is noticed."""


class Watched(NamedTuple):
    """What was seen of this machine."""

    node: Node
    state: SamplerState
    seconds: float
    """For which it was watched; 0 if it has no GPU."""
    interrupted: bool
    """Whether that is less than was asked for."""


class _Interrupt:
    """Ctrl-C: at first it ends the command with an error, then it only ends the watching."""

    def __init__(self) -> None:
        self.came = False
        self._before = signal.signal(signal.SIGINT, self._too_early)

    def begin(self) -> None:
        """From now on, there is something to report."""
        signal.signal(signal.SIGINT, self._note)

    def end(self) -> None:
        """Let it do again what it did before."""
        signal.signal(signal.SIGINT, self._before)

    def _too_early(self, *_: object) -> NoReturn:
        self.end()
        raise ExporterError("interrupted before anything was measured")

    def _note(self, *_: object) -> None:
        self.came = True
        self.end()  # a second one does not wait for the report


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


def watched(
    settings: Settings,
    open_driver: Callable[[], Driver],
    seconds: float,
    tell: Callable[[float, Callable[[], Node]], None] | None = None,
) -> Watched:
    """This machine after a few ticks and then `seconds`, which its shares cover.

    With `tell`, Ctrl-C ends it before; it is called each second with the seconds that are left,
    and what reads what was seen so far. Raises ExporterError if Ctrl-C comes before anything was.
    """
    interrupt = _Interrupt() if tell else None
    try:
        with sampled(settings, open_driver, _WARM_UP_TICKS) as sampler:
            local = LocalNode(sampler, math.inf, judged_seconds=0.0)
            local.record()
            if interrupt:
                interrupt.begin()
            began = time.monotonic()
            end = began + (seconds if sampler.state().gpus else 0)
            while (left := end - time.monotonic()) > 0 and not (interrupt and interrupt.came):
                if sampler.lines:
                    for gpu in sampler.state().gpus:
                        sampler.lines.ask(gpu.identity.uuid, left)
                if tell:
                    tell(left, local.read)
                look = min(time.monotonic() + _LOOKS_APART_SECONDS, end)
                while time.monotonic() < look and not (interrupt and interrupt.came):
                    time.sleep(min(_SOON_SECONDS, max(look - time.monotonic(), 0.0)))
                local.record()  # a GPU that comes later is measured from there
            took = min(time.monotonic(), end) - began
            return Watched(local.read(), sampler.state(), took, bool(interrupt and interrupt.came))
    finally:
        if interrupt:
            interrupt.end()


def scraped(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """What a scrape returns, and why there is no GPU if there is none."""
    with sampled(settings, open_driver, _ONCE_TICKS) as sampler:
        text = Exposition(sampler, enabled(settings)).render()[0].decode()
        return text, None if sampler.state().gpus else sampler.status


def documented(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """The node document on one line, and why there is no GPU if there is none."""
    node = watched(settings, open_driver, _ONCE_TICKS * settings.interval_seconds).node
    return f"{dumps(document(node))}\n", None if node.gpus else node.driver_status


def wait(until: Callable[[], bool]) -> None:
    """Wait for a minute at most."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until() and time.monotonic() < deadline:
        time.sleep(0.02)
