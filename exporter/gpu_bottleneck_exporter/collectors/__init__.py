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
    stacks,
    usage,
    workload,
)
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.settings import Settings

ALL: tuple[Collector, ...] = (
    *(device.INFO, device.PROCESSES, workload.COLLECTOR),
    *(
        usage.VIDEO,
        usage.UTILIZATION,
        usage.STALL,
        prescription.COLLECTOR,
        feeders.COLLECTOR,
        usage.ACTIVITY,
    ),
    *device.OTHERS,
    host.COLLECTOR,
    stacks.COLLECTOR,
)
"""All collectors, in the order of reading and of exposition.

`processes` and `video` come before `utilization`, as stalls need the holders of the GPU and its
engines; `utilization` before `activity`, which replaces it under MIG.
"""


def enabled(settings: Settings) -> tuple[Collector, ...]:
    """The collectors that are not disabled."""
    return tuple(c for c in ALL if c.name not in settings.disabled_collectors)
