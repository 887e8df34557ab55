"""Power and energy."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Power
from gpu_bottleneck_exporter.sampling.collector import (
    UNHURRIEDLY,
    Collector,
    Sample,
    counter,
    gauge,
    optional,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    gauge(
        "gpu_power_watts",
        "Power drawn, in watts: mean of the last second if the driver has it (field 185), else "
        "nvmlDeviceGetPowerUsage, which is instantaneous on GA100 and older.",
    ),
    gauge(
        "gpu_power_limit_watts", "Power limit in force, in watts (nvmlDeviceGetEnforcedPowerLimit)."
    ),
    gauge(
        "gpu_power_default_limit_watts",
        "Default power limit of the board, in watts (nvmlDeviceGetPowerManagementDefaultLimit). A "
        "limit in force below it has been lowered.",
    ),
    counter(
        "gpu_energy_joules_total",
        "Energy since the driver was loaded, in joules (nvmlDeviceGetTotalEnergyConsumption, Volta "
        "and later).",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    power = gpu.reading(Power) or Power()
    yield from optional("gpu_power_watts", power.watts)
    yield from optional("gpu_power_limit_watts", power.limit_watts)
    yield from optional("gpu_power_default_limit_watts", power.default_limit_watts)
    yield from optional("gpu_energy_joules_total", power.energy_joules)


COLLECTOR = Collector("power", FAMILIES, _samples, lambda device: device.power(), UNHURRIEDLY)
