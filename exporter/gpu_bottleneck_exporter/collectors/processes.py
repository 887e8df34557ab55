"""The processes that hold each GPU."""

from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.sampling.collector import SLOWLY, Table, collector, gauge, latest

FAMILIES: Table[Processes] = {
    gauge(
        "gpu_processes",
        "Processes that hold a context on the GPU: compute, graphics and MPS, each once (NVML "
        "running-process lists), except a desktop's (graphics only, in no container and no job) "
        "and the daemons of MPS. Absent if there may be some in other PID namespaces, which are "
        "not seen. Read every 10 s: the call takes the driver's global lock.",
    ): lambda held: held.count,
}

COLLECTOR = collector(
    "processes", FAMILIES, latest(Processes), lambda device: device.processes(), SLOWLY
)
