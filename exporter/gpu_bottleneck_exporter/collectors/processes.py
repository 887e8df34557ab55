"""The processes that hold each GPU."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.sampling.collector import SLOWLY, Collector, Sample, gauge, optional
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    gauge(
        "gpu_processes",
        "Processes that hold a context on the GPU: compute, graphics and MPS, each once (NVML "
        "running-process lists), except a desktop's (graphics only, in no container and no job) "
        "and the daemons of MPS. Absent if there may be some in other PID namespaces, which are "
        "not seen. Read every 10 s: the call takes the driver's global lock.",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    reading = gpu.reading(Processes)
    yield from optional("gpu_processes", reading.count if reading else None)


COLLECTOR = Collector("processes", FAMILIES, _samples, lambda device: device.processes(), SLOWLY)
