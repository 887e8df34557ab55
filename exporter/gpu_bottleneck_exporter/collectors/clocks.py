"""Clocks."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import UNHURRIEDLY, Collector, Family, Sample
from gpu_bottleneck_exporter.driver.readings import Clocks
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_clock_hertz",
        "gauge",
        "Clock at the moment, in hertz (nvmlDeviceGetClockInfo). Falls when idle.",
        ("clock",),
    ),
    Family(
        "gpu_clock_max_hertz",
        "gauge",
        "Highest clock of the model, in hertz (nvmlDeviceGetMaxClockInfo).",
        ("clock",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    clocks = gpu.reading(Clocks)
    if clocks is None:
        return
    for clock, hertz in clocks.now.items():
        yield Sample("gpu_clock_hertz", hertz, (clock,))
    for clock, hertz in clocks.maximum.items():
        yield Sample("gpu_clock_max_hertz", hertz, (clock,))


COLLECTOR = Collector("clocks", FAMILIES, _samples, lambda device: device.clocks(), UNHURRIEDLY)
