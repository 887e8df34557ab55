"""Power and energy."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import UNHURRIEDLY, Collector, Family, Sample, optional
from gpu_bottleneck_exporter.driver.readings import Power
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_power_watts",
        "gauge",
        "Power drawn, in watts: mean of the last second where the driver has it (field 185), else "
        "nvmlDeviceGetPowerUsage, which on GA100 and older is the moment's.",
    ),
    Family(
        "gpu_power_limit_watts",
        "gauge",
        "Power limit in force, in watts (nvmlDeviceGetEnforcedPowerLimit).",
    ),
    Family(
        "gpu_power_default_limit_watts",
        "gauge",
        "Power limit that the board was made for, in watts "
        "(nvmlDeviceGetPowerManagementDefaultLimit): one in force below it was lowered.",
    ),
    Family(
        "gpu_energy_joules_total",
        "counter",
        "Energy since the driver was loaded, in joules (nvmlDeviceGetTotalEnergyConsumption, Volta "
        "and later).",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    power = gpu.reading(Power)
    if power is None:
        return
    yield from optional("gpu_power_watts", power.watts)
    yield from optional("gpu_power_limit_watts", power.limit_watts)
    yield from optional("gpu_power_default_limit_watts", power.default_limit_watts)
    yield from optional("gpu_energy_joules_total", power.energy_joules)


COLLECTOR = Collector("power", FAMILIES, _samples, lambda device: device.power(), UNHURRIEDLY)
