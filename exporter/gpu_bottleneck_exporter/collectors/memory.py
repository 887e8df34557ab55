"""Device memory."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Memory, Processes
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
        "gpu_memory_total_bytes",
        "Device memory installed, in bytes (nvmlDeviceGetMemoryInfo_v2); the machine's where the "
        "GPU has none of its own (GB10).",
    ),
    gauge(
        "gpu_memory_used_bytes",
        "Device memory that processes have allocated, in bytes. Includes the caches of frameworks "
        "and, where gpu_memory_reserved_bytes is absent, reserved memory. Where the GPU has no "
        "memory of its own, the sum of what the driver reports of each process.",
    ),
    gauge("gpu_memory_reserved_bytes", "Device memory that the driver keeps for itself, in bytes."),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    memory = gpu.reading(Memory) or Memory()
    yield from optional("gpu_memory_total_bytes", memory.total_bytes)
    yield from optional("gpu_memory_used_bytes", used_bytes(gpu))
    yield from optional("gpu_memory_reserved_bytes", memory.reserved_bytes)


def used_bytes(gpu: GpuSnapshot) -> int | None:
    """Device memory in use; its processes' where it is the machine's."""
    memory = gpu.reading(Memory) or Memory()
    return _processes_bytes(gpu) if memory.of_machine else memory.used_bytes


def _processes_bytes(gpu: GpuSnapshot) -> int | None:
    """What its processes use; None unless all of them, and the memory of each, are known."""
    reading = gpu.reading(Processes)
    if reading is None or reading.others_hidden:
        return None
    used = [process.used_bytes for process in reading.processes if process.used_bytes is not None]
    return sum(used) if len(used) == len(reading.processes) else None


COLLECTOR = Collector("memory", FAMILIES, _samples, lambda device: device.memory(), UNHURRIEDLY)
