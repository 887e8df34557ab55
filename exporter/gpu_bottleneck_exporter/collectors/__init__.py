"""Collectors: one module per subject.

Each declares its metric families, their values, its readings and their interval.
To add a metric, add it to one of them; to add a collector, write its module and add it to
`ALL`.
"""

from gpu_bottleneck_exporter.collectors import (
    device,
    feeders,
    host,
    prescription,
    usage,
    workload,
)
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.settings import Settings

ALL: tuple[Collector, ...] = (
    *device.HOLDERS,
    workload.COLLECTOR,
    *usage.TIME,
    prescription.COLLECTOR,
    feeders.COLLECTOR,
    usage.ACTIVITY,
    *device.OTHERS,
    host.COLLECTOR,
    # Lines of code that GPUs wait for: in pages and documents, never as labels of a metric.
    Collector("stacks", (), lambda _: None, lambda _: [], on=False),
)
"""All collectors, in the order of reading and of exposition.

`processes` and `video` come before `utilization`, as stalls need the holders of the GPU and its
engines; `utilization` before `activity`, which replaces it under MIG.
"""


def enabled(settings: Settings) -> tuple[Collector, ...]:
    """The collectors that are not disabled."""
    return tuple(c for c in ALL if c.name not in settings.disabled_collectors)
