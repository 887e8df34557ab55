"""Device memory."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import UNHURRIEDLY, Collector, Family, Sample, optional
from gpu_bottleneck_exporter.driver.readings import Memory
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_memory_total_bytes",
        "gauge",
        "Device memory installed, in bytes (nvmlDeviceGetMemoryInfo_v2).",
    ),
    Family(
        "gpu_memory_used_bytes",
        "gauge",
        "Device memory that processes have allocated, in bytes; includes what frameworks keep in "
        "their caches, and the reserved memory where gpu_memory_reserved_bytes is absent.",
    ),
    Family(
        "gpu_memory_reserved_bytes",
        "gauge",
        "Device memory that the driver keeps for itself, in bytes.",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    memory = gpu.reading(Memory)
    if memory is None:
        return
    yield from optional("gpu_memory_total_bytes", memory.total_bytes)
    yield from optional("gpu_memory_used_bytes", memory.used_bytes)
    yield from optional("gpu_memory_reserved_bytes", memory.reserved_bytes)


COLLECTOR = Collector("memory", FAMILIES, _samples, lambda device: device.memory(), UNHURRIEDLY)
