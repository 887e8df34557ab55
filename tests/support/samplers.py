"""A sampler that runs until the end of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

FAST = Settings(interval_seconds=0.2, deadline_seconds=1.0)
EVERY_TICK = tuple(replace(one, every_ns=0) for one in ALL)
"""All collectors, each running at every tick."""


@contextmanager
def sampling(
    open_driver: Callable[[], Driver],
    settings: Settings = FAST,
    collectors: Sequence[Collector] = ALL,
    fatal: list[str] | None = None,
) -> Iterator[Sampler]:
    """A started sampler; fatal errors go to `fatal`, or fail the test if that is None."""
    values: list[str] = [] if fatal is None else fatal
    sampler = Sampler(open_driver, collectors, settings, values.append)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()
    assert fatal is not None or values == []
