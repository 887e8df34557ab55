"""Collectors: one module per subject.

Each declares its metric families, their values, its readings and their interval. A new one is added
to `ALL`.
"""

from gpu_bottleneck_exporter.collectors import (
    device,
    feeders,
    host,
    prescription,
    tenants,
    usage,
    workload,
)
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.settings import Settings

ALL: tuple[Collector, ...] = (
    *device.HOLDERS,
    workload.COLLECTOR,
    tenants.COLLECTOR,
    *usage.TIME,
    prescription.COLLECTOR,
    feeders.COLLECTOR,
    usage.ACTIVITY,
    *device.OTHERS,
    host.COLLECTOR,
    # Lines of awaited code: in pages and documents, never as labels.
    Collector("stacks", (), lambda _: None, lambda _: [], on=False),
)
"""All collectors, in the order of reading and of exposition.

`processes`, `tenants` and `video` come before `utilization`, whose time they divide;
`utilization` before `activity`, which replaces it under MIG.
"""


def enabled(settings: Settings) -> tuple[Collector, ...]:
    """The collectors that are not disabled."""
    return tuple(c for c in ALL if c.name not in settings.disabled_collectors)
