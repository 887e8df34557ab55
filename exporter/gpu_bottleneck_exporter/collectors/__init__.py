"""Collectors: one module per subject.

Each declares what it reads from a device, how often, its metric families, and how
readings become samples. To add a metric, add it to one of them; to add a
collector, write its module and name it in `ALL`.
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
    processes,
    stall,
    thermal,
    throttle,
    utilization,
    workload,
    xid,
)
from gpu_bottleneck_exporter.collectors.base import Collector

ALL: tuple[Collector, ...] = (
    info.COLLECTOR,
    processes.COLLECTOR,
    workload.COLLECTOR,
    utilization.COLLECTOR,
    stall.COLLECTOR,
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
"""In the order in which they read and are shown: `processes` first, for the stalls to know who
holds the GPU, and `utilization` before `activity`, which stands in for it under MIG."""
