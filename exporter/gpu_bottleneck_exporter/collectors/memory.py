"""Device memory."""

from gpu_bottleneck_exporter.driver.readings import Memory, Processes
from gpu_bottleneck_exporter.sampling.collector import UNHURRIEDLY, Table, collector, gauge
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot


def used_bytes(gpu: GpuSnapshot) -> int | None:
    """Device memory in use; its processes' where it is the machine's."""
    memory = _memory(gpu)
    if not memory.of_machine:
        return memory.used_bytes
    reading = gpu.reading(Processes)
    if reading is None or reading.others_hidden:
        return None
    used = [process.used_bytes for process in reading.processes]
    return None if None in used else sum(filter(None, used))


def _memory(gpu: GpuSnapshot) -> Memory:
    return gpu.reading(Memory) or Memory()


FAMILIES: Table[GpuSnapshot] = {
    gauge(
        "gpu_memory_total_bytes",
        "Device memory installed, in bytes (nvmlDeviceGetMemoryInfo_v2); the machine's where the "
        "GPU has none of its own (GB10).",
    ): lambda gpu: _memory(gpu).total_bytes,
    gauge(
        "gpu_memory_used_bytes",
        "Device memory that processes have allocated, in bytes. Includes the caches of frameworks "
        "and, where gpu_memory_reserved_bytes is absent, reserved memory. Where the GPU has no "
        "memory of its own, the sum of what the driver reports of each process.",
    ): used_bytes,
    gauge(
        "gpu_memory_reserved_bytes", "Device memory that the driver keeps for itself, in bytes."
    ): lambda gpu: _memory(gpu).reserved_bytes,
}

COLLECTOR = collector(
    "memory", FAMILIES, lambda gpu: gpu, lambda device: device.memory(), UNHURRIEDLY
)
