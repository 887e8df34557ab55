"""Throttling by reason."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import UNHURRIEDLY, Collector, Family, Sample
from gpu_bottleneck_exporter.driver.readings import Throttle
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_throttle_seconds_total",
        "counter",
        "Seconds for which the reason held the clocks down, since the driver was loaded (field "
        "values 74-80, 251-253 or 269-271 by driver version, else nvmlDeviceGetViolationStatus). "
        "Before driver 575, and from 580.66 to 580.81, sw_thermal is all thermal throttling. Any "
        "boost load is power-capped now and then: alert on the rate.",
        ("reason",),
    ),
    Family(
        "gpu_throttle_active",
        "gauge",
        "Whether the reason holds the clocks down at the moment, 0 or 1 "
        "(nvmlDeviceGetCurrentClocksEventReasons). board_limit and reliability from driver 615 on.",
        ("reason",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    throttle = gpu.reading(Throttle)
    if throttle is None:
        return
    for reason, nanoseconds in throttle.spent_ns.items():
        yield Sample("gpu_throttle_seconds_total", nanoseconds / 1e9, (reason,))
    for reason, active in throttle.active.items():
        yield Sample("gpu_throttle_active", float(active), (reason,))


COLLECTOR = Collector("throttle", FAMILIES, _samples, lambda device: device.throttle(), UNHURRIEDLY)
