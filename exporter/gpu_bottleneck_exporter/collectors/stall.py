"""What each GPU waited for while it was idle."""

from gpu_bottleneck_exporter.accounting.stall import REQUESTS
from gpu_bottleneck_exporter.sampling.collector import Table, collector, counter, seconds_by
from gpu_bottleneck_exporter.sampling.ledger import GpuTotals


def _stalls(totals: GpuTotals) -> dict[str, float]:
    # Without requests that were never missing, which saves a series: only servers wait for them.
    stalls = totals.stall_ns or {}
    return seconds_by({cause: ns for cause, ns in stalls.items() if ns or cause != REQUESTS})


FAMILIES: Table[GpuTotals] = {
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
    ): _stalls,
    counter(
        "gpu_storage_stall_seconds_total",
        "Seconds of gpu_stall_seconds_total in which the GPU waited for storage, by where the "
        "files are: local or remote (NFS, SMB, Lustre, FUSE and others, by the type of the mount). "
        "Where that is unknown they are in neither. Absent until it is first known.",
        ("filesystem",),
    ): lambda totals: seconds_by(totals.storage_ns),
}

COLLECTOR = collector("stall", FAMILIES, lambda gpu: gpu.totals)
