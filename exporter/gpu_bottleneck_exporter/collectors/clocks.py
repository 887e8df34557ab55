"""Clocks."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Clocks
from gpu_bottleneck_exporter.sampling.collector import UNHURRIEDLY, Collector, Sample, each, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    gauge(
        "gpu_clock_hertz",
        "Current clock, in hertz (nvmlDeviceGetClockInfo). Falls when idle.",
        ("clock",),
    ),
    gauge(
        "gpu_clock_max_hertz",
        "Highest clock of the model, in hertz (nvmlDeviceGetMaxClockInfo).",
        ("clock",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    clocks = gpu.reading(Clocks) or Clocks()
    yield from each("gpu_clock_hertz", clocks.now)
    yield from each("gpu_clock_max_hertz", clocks.maximum)


COLLECTOR = Collector("clocks", FAMILIES, _samples, lambda device: device.clocks(), UNHURRIEDLY)
