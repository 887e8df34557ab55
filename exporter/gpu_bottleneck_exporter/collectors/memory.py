"""Device memory."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Memory
from gpu_bottleneck_exporter.sampling.collector import (
    UNHURRIEDLY,
    Collector,
    Sample,
    gauge,
    optional,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    gauge(
        "gpu_memory_total_bytes", "Device memory installed, in bytes (nvmlDeviceGetMemoryInfo_v2)."
    ),
    gauge(
        "gpu_memory_used_bytes",
        "Device memory that processes have allocated, in bytes. Includes the caches of frameworks "
        "and, where gpu_memory_reserved_bytes is absent, reserved memory.",
    ),
    gauge("gpu_memory_reserved_bytes", "Device memory that the driver keeps for itself, in bytes."),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    memory = gpu.reading(Memory) or Memory()
    yield from optional("gpu_memory_total_bytes", memory.total_bytes)
    yield from optional("gpu_memory_used_bytes", memory.used_bytes)
    yield from optional("gpu_memory_reserved_bytes", memory.reserved_bytes)


COLLECTOR = Collector("memory", FAMILIES, _samples, lambda device: device.memory(), UNHURRIEDLY)
