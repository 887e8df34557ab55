"""Throttling by reason."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Throttle
from gpu_bottleneck_exporter.sampling.collector import (
    UNHURRIEDLY,
    Collector,
    Sample,
    counter,
    each,
    gauge,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    counter(
        "gpu_throttle_seconds_total",
        "Seconds for which the reason held the clocks down, since the driver was loaded (field "
        "values 74-80, 251-253 or 269-271 by driver version, else nvmlDeviceGetViolationStatus). "
        "Before driver 575, and from 580.66 to 580.81, sw_thermal covers all thermal throttling. "
        "Any load that boosts is power-capped at times: alert on the rate.",
        ("reason",),
    ),
    gauge(
        "gpu_throttle_active",
        "Whether the reason holds the clocks down right now, 0 or 1 "
        "(nvmlDeviceGetCurrentClocksEventReasons). board_limit and reliability need driver 615 or "
        "later.",
        ("reason",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    throttle = gpu.reading(Throttle) or Throttle()
    for reason, nanoseconds in throttle.spent_ns.items():
        yield Sample("gpu_throttle_seconds_total", nanoseconds / 1e9, (reason,))
    yield from each("gpu_throttle_active", throttle.active)


COLLECTOR = Collector("throttle", FAMILIES, _samples, lambda device: device.throttle(), UNHURRIEDLY)
