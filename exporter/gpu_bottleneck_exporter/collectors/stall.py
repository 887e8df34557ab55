"""What idle GPUs waited for."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample
from gpu_bottleneck_exporter.ledger import GpuSnapshot

FAMILIES = (
    Family(
        "gpu_stall_seconds_total",
        "counter",
        "Seconds in which the GPU was idle, by what the processes that hold it were doing: "
        "unallocated (none holds it), host_code (the main thread ran), worker_cpu (it waited for "
        "workers that ran), cpu_queue (they waited for a CPU), cpu_quota (held back by the CPU "
        "limit), storage, memory (reading again what was evicted), network, peer (another GPU of "
        "the job worked), asleep (everything slept), unknown. Adds up to observed less busy "
        "seconds, exactly; the split is per tick, from states sampled five to ten times a second.",
        ("waiting_on",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    for cause, nanoseconds in (gpu.totals.stall_ns or {}).items():
        yield Sample("gpu_stall_seconds_total", nanoseconds / 1e9, (cause,))


COLLECTOR = Collector("stall", FAMILIES, _samples)
