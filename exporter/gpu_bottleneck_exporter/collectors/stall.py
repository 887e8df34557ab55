"""What idle GPUs waited for."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.stall import REQUESTS

FAMILIES = (
    Family(
        "gpu_stall_seconds_total",
        "counter",
        "Seconds in which the GPU was idle, by what the processes that hold it were doing: "
        "unallocated (none holds it), host_code (the main thread ran), worker_cpu (it waited for "
        "workers that ran), cpu_queue (they waited for a CPU), cpu_quota (held back by the CPU "
        "limit), storage, memory (reading again what was evicted), network (they waited for an "
        "answer that they had asked for, or that was arriving), requests (a server had none in "
        "flight; absent until that was so), peer (another GPU of the job worked), asleep "
        "(everything slept), unknown. Adds up to observed less busy seconds, exactly; the split is "
        "per tick, from states sampled five to ten times a second (twice where nothing changes).",
        ("waiting_on",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    for cause, nanoseconds in (gpu.totals.stall_ns or {}).items():
        if cause == REQUESTS and not nanoseconds:
            continue  # for the budget of series: who is a server has few of a loader's
        yield Sample("gpu_stall_seconds_total", nanoseconds / 1e9, (cause,))


COLLECTOR = Collector("stall", FAMILIES, _samples)
