"""`once`: one scrape, or one node document, of this machine."""

from __future__ import annotations

from collections.abc import Callable

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.commands.watch import sampled, watched
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.settings import Settings

_TICKS = 2


def metrics(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """What a scrape returns, and why there is no GPU if there is none."""
    with sampled(settings, open_driver, _TICKS) as sampler:
        text = Exposition(sampler, enabled(settings)).render()[0].decode()
        return text, None if sampler.state().gpus else sampler.status


def node(settings: Settings, open_driver: Callable[[], Driver]) -> tuple[str, str | None]:
    """The node document on one line, and why there is no GPU if there is none."""
    found = watched(settings, open_driver, _TICKS * settings.interval_seconds)
    return f"{dumps(document(found))}\n", None if found.gpus else found.driver_status
