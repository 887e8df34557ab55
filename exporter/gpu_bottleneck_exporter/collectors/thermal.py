"""Temperatures."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Thermal
from gpu_bottleneck_exporter.sampling.collector import UNHURRIEDLY, Collector, Sample, each, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    gauge(
        "gpu_temperature_celsius",
        "Temperature in degrees Celsius (nvmlDeviceGetTemperatureV; memory: field 82).",
        ("sensor",),
    ),
    gauge(
        "gpu_temperature_limit_celsius",
        "GPU temperature at which it slows down, shuts down, or leaves its operating range, in "
        "degrees Celsius (nvmlDeviceGetTemperatureThreshold; from Ada on derived once from the "
        "temperature and the driver's T.Limit margins, so it may be a degree off).",
        ("limit",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    thermal = gpu.reading(Thermal) or Thermal()
    yield from each("gpu_temperature_celsius", thermal.sensors)
    yield from each("gpu_temperature_limit_celsius", thermal.limits)


COLLECTOR = Collector("thermal", FAMILIES, _samples, lambda device: device.thermal(), UNHURRIEDLY)
