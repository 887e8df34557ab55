"""Collectors: one module per subject.

Each declares what it reads from a device, how often, its metric families, and how readings become
samples. To add a metric, add it to one of them; to add a collector, write its module and add it to
`ALL`.
"""

from gpu_bottleneck_exporter.collectors import (
    activity,
    clocks,
    feeders,
    health,
    host,
    info,
    link,
    memory,
    power,
    prescription,
    processes,
    stall,
    thermal,
    throttle,
    utilization,
    workload,
    xid,
)
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.settings import Settings

ALL: tuple[Collector, ...] = (
    info.COLLECTOR,
    processes.COLLECTOR,
    workload.COLLECTOR,
    utilization.COLLECTOR,
    stall.COLLECTOR,
    prescription.COLLECTOR,
    feeders.COLLECTOR,
    activity.COLLECTOR,
    power.COLLECTOR,
    thermal.COLLECTOR,
    clocks.COLLECTOR,
    throttle.COLLECTOR,
    memory.COLLECTOR,
    xid.COLLECTOR,
    health.COLLECTOR,
    link.COLLECTOR,
    host.COLLECTOR,
)
"""In the order in which they read and are shown. `processes` comes before `utilization`, as stalls
need the holders of the GPU; `utilization` before `activity`, which replaces it under MIG."""


def enabled(settings: Settings) -> tuple[Collector, ...]:
    """The collectors that are not disabled."""
    return tuple(c for c in ALL if c.name not in settings.disabled_collectors)
