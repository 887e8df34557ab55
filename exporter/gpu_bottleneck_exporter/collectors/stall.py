"""What each GPU waited for while it was idle."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.accounting.stall import REQUESTS
from gpu_bottleneck_exporter.sampling.collector import Collector, Sample, counter
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

FAMILIES = (
    counter(
        "gpu_stall_seconds_total",
        "Idle seconds of the GPU, by what its holders and feeders were doing: unallocated (no "
        "holder), host_code (the main thread ran), worker_cpu (it waited for workers that ran), "
        "cpu_queue (they waited for a CPU), cpu_quota (the CPU limit held them back), storage, "
        "memory (reading evicted data again), network (they waited for an answer from a "
        "connection), requests (a server had none in flight; absent until first seen), peer "
        "(another GPU of the job worked), asleep (all of them slept), unknown. Adds up to observed "
        "minus busy seconds, exactly; split per tick, from states sampled five to ten times a "
        "second (twice if nothing changes).",
        ("waiting_on",),
    ),
    counter(
        "gpu_storage_stall_seconds_total",
        "Seconds of gpu_stall_seconds_total in which the GPU waited for storage, by where the "
        "files are: local or remote (NFS, SMB, Lustre, FUSE and others, by the type of the mount). "
        "Where that is unknown they are in neither. Absent until it is first known.",
        ("filesystem",),
    ),
)


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    for cause, nanoseconds in (gpu.totals.stall_ns or {}).items():
        if cause == REQUESTS and not nanoseconds:
            continue  # saves a series: only servers wait for requests
        yield Sample("gpu_stall_seconds_total", nanoseconds / 1e9, (cause,))
    for place, nanoseconds in gpu.totals.storage_ns.items():
        yield Sample("gpu_storage_stall_seconds_total", nanoseconds / 1e9, (place,))


COLLECTOR = Collector("stall", FAMILIES, _samples)
