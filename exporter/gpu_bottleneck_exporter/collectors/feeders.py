"""The feeders of each GPU: what they use, what they wait for, and their limits."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.accounting.bucket import Counters
from gpu_bottleneck_exporter.feeders.job import Job
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.sampling.collector import (
    Collector,
    Sample,
    counter,
    each,
    gauge,
    optional,
)
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot

_BY_PROCESS = (
    "The last second of a process's life is missed; a process on several GPUs counts for each."
)
_NAMESPACE = (
    "in the network namespaces of the main processes (/proc/PID/net/dev without loopback and "
    "container bridges). With hostNetwork that is the whole host's traffic."
)

FAMILIES = (
    gauge(
        "gpu_feeder_processes",
        "Processes that feed the GPU: main (holds a context on it) and worker (a descendant that "
        "holds none). Workers are absent until there is one, also in the other families.",
        ("role",),
    ),
    counter(
        "gpu_feeder_cpu_seconds_total",
        f"Seconds of CPU that the processes used, all threads (/proc/PID/stat). {_BY_PROCESS}",
        ("role",),
    ),
    counter(
        "gpu_feeder_run_queue_seconds_total",
        "Seconds in which the processes' first threads were runnable without a CPU "
        "(/proc/PID/schedstat): contention, or the CPU limit.",
        ("role",),
    ),
    counter(
        "gpu_feeder_wait_seconds_total",
        "Seconds in which the processes waited, by what for: disk (file I/O), network (asleep in a "
        "socket; while the GPU idles, waiting for an answer), queue (pipe, futex, semaphore), "
        "sleep (timer, poll), unknown (no permission to find out). Covers first threads and, while "
        "the GPU idles, what those wait for. Sampled five to ten times a second (twice if nothing "
        "changes), workers in turn; each kind is absent until it is first seen.",
        ("role", "state"),
    ),
    counter(
        "gpu_feeder_read_bytes_total",
        "Bytes that the processes read from storage, not from the page cache (/proc/PID/io). "
        "Absent while one of them cannot be read.",
        ("role",),
    ),
    counter(
        "gpu_feeder_written_bytes_total",
        "Bytes that the processes wrote to storage (/proc/PID/io). Absent for workers until one "
        "has written.",
        ("role",),
    ),
    counter(
        "gpu_feeder_major_faults_total",
        "Page faults of the processes that needed a read from storage (/proc/PID/stat).",
        ("role",),
    ),
    counter(
        "gpu_feeder_refault_bytes_total",
        "Bytes evicted from memory and read again, in the main processes' cgroups "
        "(workingset_refault of memory.stat).",
    ),
    counter(
        "gpu_feeder_worker_starts_total",
        "Worker processes started while a main process held the GPU; those that live for less than "
        "a second may be missed.",
    ),
    gauge(
        "gpu_feeder_age_seconds", "Seconds since the oldest main process started (/proc/PID/stat)."
    ),
    gauge(
        "gpu_feeder_interactive",
        "Whether a main process is interactive, 0 or 1: a notebook kernel (/proc/PID/cmdline) or a "
        "process with a controlling terminal (/proc/PID/stat), as under ssh, tmux or docker run "
        "-t. Absent while no process feeds the GPU.",
    ),
    counter(
        "gpu_feeder_throttled_seconds_total",
        "Seconds in which the CPU limit held back the main processes' cgroups, summed over CPUs "
        "(cpu.stat).",
    ),
    gauge(
        "gpu_feeder_cpu_limit_cores",
        "CPU cores that the limit of the main processes' cgroups allows (cpu.max or "
        "cpu.cfs_quota_us, the tightest level). Absent without a limit.",
    ),
    gauge(
        "gpu_feeder_cpus_allowed",
        "CPUs on which the main processes may run (Cpus_allowed_list of /proc/PID/status).",
    ),
    gauge(
        "gpu_feeder_memory_used_bytes",
        "Memory that the main processes' cgroups use, page cache included, in bytes, at the level "
        "with the tightest limit (memory.current or memory.usage_in_bytes).",
    ),
    gauge(
        "gpu_feeder_memory_limit_bytes",
        "Memory limit of the main processes' cgroups, in bytes (memory.max or "
        "memory.limit_in_bytes, the tightest level). Absent without a limit.",
    ),
    gauge(
        "gpu_feeder_shm_size_bytes",
        "Size of the main processes' own /dev/shm, in bytes (statvfs through /proc/PID/root). "
        "Absent without permission.",
    ),
    gauge(
        "gpu_feeder_shm_used_bytes",
        "Used part of the main processes' own /dev/shm, in bytes. When it is full, workers die of "
        "a bus error.",
    ),
    counter("gpu_feeder_network_receive_bytes_total", f"Bytes received {_NAMESPACE}"),
    counter("gpu_feeder_network_transmit_bytes_total", f"Bytes sent {_NAMESPACE}"),
    counter(
        "gpu_feeder_pressure_seconds_total",
        "Seconds in which some, or all (full, of io only), runnable tasks in the main processes' "
        "cgroups were stalled for lack of the resource: cpu, io or memory (cgroup v2 *.pressure).",
        ("resource", "kind"),
    ),
)
_LEAST_USEFUL = (("cpu", "full"), ("memory", "full"))
"""Left out to save series. Hardly anything but the CPU limit, which has its own counter, makes all
tasks of a cgroup wait for a CPU; and under memory pressure, `some` and `full` rise together."""


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    feeding = gpu.feeding
    if feeding is None:
        return
    yield from each("gpu_feeder_processes", feeding.processes)
    for role, counters in feeding.counters.items():
        yield from _of_processes(role, counters, queue_known=feeding.queue_known)
    for labels, nanoseconds in sorted(feeding.wait_ns.items()):
        yield Sample("gpu_feeder_wait_seconds_total", nanoseconds / 1e9, labels)
    yield from optional("gpu_feeder_worker_starts_total", feeding.worker_starts)
    yield from optional("gpu_feeder_refault_bytes_total", feeding.refault_bytes)
    throttled = feeding.throttled_ns
    if throttled is not None:
        yield Sample("gpu_feeder_throttled_seconds_total", throttled / 1e9)
    yield from _of_job(feeding.job)
    yield from _of_limits(feeding)


def _of_processes(role: str, counters: Counters, *, queue_known: bool) -> Iterator[Sample]:
    yield Sample("gpu_feeder_cpu_seconds_total", counters.cpu_ns / 1e9, (role,))
    if queue_known:
        yield Sample("gpu_feeder_run_queue_seconds_total", counters.queue_ns / 1e9, (role,))
    yield from optional("gpu_feeder_read_bytes_total", counters.read_bytes, role)
    if role == "main" or counters.written_bytes:  # few workers ever write: saves a series
        yield from optional("gpu_feeder_written_bytes_total", counters.written_bytes, role)
    yield Sample("gpu_feeder_major_faults_total", float(counters.major_faults), (role,))


def _of_job(job: Job) -> Iterator[Sample]:
    yield from optional("gpu_feeder_age_seconds", job.age_seconds)
    yield from optional("gpu_feeder_network_receive_bytes_total", job.received_bytes)
    yield from optional("gpu_feeder_network_transmit_bytes_total", job.sent_bytes)
    for labels, nanoseconds in job.pressure_ns.items():
        if labels not in _LEAST_USEFUL:
            yield Sample("gpu_feeder_pressure_seconds_total", nanoseconds / 1e9, labels)


def _of_limits(feeding: Feeding) -> Iterator[Sample]:
    limits = feeding.job.limits
    yield from optional("gpu_feeder_interactive", limits.interactive)
    yield from optional("gpu_feeder_cpu_limit_cores", limits.cpu_cores)
    yield from optional("gpu_feeder_cpus_allowed", limits.cpus_allowed)
    yield from optional("gpu_feeder_memory_used_bytes", limits.memory_used_bytes)
    yield from optional("gpu_feeder_memory_limit_bytes", limits.memory_bytes)
    if limits.shared_memory is not None:
        yield Sample("gpu_feeder_shm_size_bytes", float(limits.shared_memory.size_bytes))
        yield Sample("gpu_feeder_shm_used_bytes", float(limits.shared_memory.used_bytes))


COLLECTOR = Collector("feeders", FAMILIES, _samples)
