"""Processes that hold the GPU."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import SLOWLY, Collector, Family, Sample
from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_processes",
        "gauge",
        "Processes that hold a context on the GPU, compute, graphics and MPS, each once (NVML "
        "running-process lists), but for a desktop's: graphics alone, in no container and no job. "
        "Absent where there may be some in other PID namespaces, which are "
        "not seen. Read every 10 s: the call takes the driver's global lock.",
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    reading = gpu.reading(Processes)
    if reading is not None and (reading.processes or not reading.others_hidden):
        yield Sample("gpu_processes", float(len(reading.processes)))


COLLECTOR = Collector("processes", FAMILIES, _samples, lambda device: device.processes(), SLOWLY)
