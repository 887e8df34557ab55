"""Temperatures."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import UNHURRIEDLY, Collector, Family, Sample
from gpu_bottleneck_exporter.driver.readings import Thermal
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_temperature_celsius",
        "gauge",
        "Temperature in degrees Celsius (nvmlDeviceGetTemperatureV; memory: field 82).",
        ("sensor",),
    ),
    Family(
        "gpu_temperature_limit_celsius",
        "gauge",
        "GPU temperature at which it slows down, shuts down, or leaves its operating range, in "
        "degrees Celsius (nvmlDeviceGetTemperatureThreshold; from Ada on worked out once from the "
        "temperature and the driver's T.Limit margins, so it may be a degree off).",
        ("limit",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    thermal = gpu.reading(Thermal)
    if thermal is None:
        return
    for sensor, celsius in thermal.sensors.items():
        yield Sample("gpu_temperature_celsius", celsius, (sensor,))
    for limit, celsius in thermal.limits.items():
        yield Sample("gpu_temperature_limit_celsius", celsius, (limit,))


COLLECTOR = Collector("thermal", FAMILIES, _samples, lambda device: device.thermal(), UNHURRIEDLY)
