"""The processes that feed each GPU: what they use, what they wait for, what they may use."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample, optional
from gpu_bottleneck_exporter.feeders.job import Job
from gpu_bottleneck_exporter.feeders.member import Counters
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.ledger import GpuSnapshot

_BY_PROCESS = (
    "Last second of a process's life not included; a process on several GPUs counts for each."
)
_NAMESPACE = (
    "in the network namespaces of the main processes (/proc/PID/net/dev without loopback and "
    "container bridges): with hostNetwork, those of the whole host."
)

FAMILIES = (
    Family(
        "gpu_feeder_processes",
        "gauge",
        "Processes that feed the GPU: main (hold a context on it) and worker (their descendants "
        "that hold none). Workers are absent until there are some, here and below.",
        ("role",),
    ),
    Family(
        "gpu_feeder_cpu_seconds_total",
        "counter",
        f"Seconds of CPU that the processes used, all threads (/proc/PID/stat). {_BY_PROCESS}",
        ("role",),
    ),
    Family(
        "gpu_feeder_run_queue_seconds_total",
        "counter",
        "Seconds in which the processes' first threads were runnable without a CPU "
        "(/proc/PID/schedstat): contention, or the CPU limit.",
        ("role",),
    ),
    Family(
        "gpu_feeder_wait_seconds_total",
        "counter",
        "Seconds in which the processes waited, by what on: disk (file I/O), network (asleep in a "
        "socket; while the GPU idles, owed an answer), queue (pipe, futex, semaphore), sleep "
        "(timer, poll), unknown (no permission to know): of first threads, and while the GPU "
        "idles of what is behind them. Sampled five to ten times a second (twice "
        "where nothing changes), workers in turn; each "
        "kind is absent until it was seen.",
        ("role", "on"),
    ),
    Family(
        "gpu_feeder_read_bytes_total",
        "counter",
        "Bytes that the processes had read from storage, not from the page cache (/proc/PID/io). "
        "Absent while one of them may not be looked at.",
        ("role",),
    ),
    Family(
        "gpu_feeder_written_bytes_total",
        "counter",
        "Bytes that the processes caused to be written to storage (/proc/PID/io). Workers' are "
        "absent until they have written.",
        ("role",),
    ),
    Family(
        "gpu_feeder_major_faults_total",
        "counter",
        "Page faults of the processes that had to read from storage (/proc/PID/stat).",
        ("role",),
    ),
    Family(
        "gpu_feeder_refault_bytes_total",
        "counter",
        "Bytes that were evicted from memory and read again, in the main processes' cgroups "
        "(workingset_refault of memory.stat).",
    ),
    Family(
        "gpu_feeder_worker_starts_total",
        "counter",
        "Worker processes that were started while a main process held the GPU; those that live "
        "for less than a second may be missed.",
    ),
    Family(
        "gpu_feeder_age_seconds",
        "gauge",
        "Seconds since the oldest main process started (/proc/PID/stat).",
    ),
    Family(
        "gpu_feeder_interactive",
        "gauge",
        "Whether somebody sits in front of a main process, 0 or 1: it is the kernel of a notebook "
        "(/proc/PID/cmdline) or has a controlling terminal (/proc/PID/stat), as under ssh, tmux or "
        "docker run -t. Absent while nobody feeds the GPU.",
    ),
    Family(
        "gpu_feeder_throttled_seconds_total",
        "counter",
        "Seconds in which the CPU limit held back the main processes' cgroups, summed over CPUs "
        "(cpu.stat).",
    ),
    Family(
        "gpu_feeder_cpu_limit_cores",
        "gauge",
        "CPU cores that the limit of the main processes' cgroups allows (cpu.max or "
        "cpu.cfs_quota_us, the tightest level). Absent without a limit.",
    ),
    Family(
        "gpu_feeder_cpus_allowed",
        "gauge",
        "CPUs on which the main processes may run (Cpus_allowed_list of /proc/PID/status).",
    ),
    Family(
        "gpu_feeder_memory_used_bytes",
        "gauge",
        "Memory that the main processes' cgroups use, page cache included, in bytes: of the level "
        "with the tightest limit (memory.current or memory.usage_in_bytes).",
    ),
    Family(
        "gpu_feeder_memory_limit_bytes",
        "gauge",
        "Memory limit of the main processes' cgroups, in bytes (memory.max or "
        "memory.limit_in_bytes, the tightest level). Absent without a limit.",
    ),
    Family(
        "gpu_feeder_shm_size_bytes",
        "gauge",
        "Size of the main processes' own /dev/shm, in bytes (statvfs through /proc/PID/root; "
        "absent without permission).",
    ),
    Family(
        "gpu_feeder_shm_used_bytes",
        "gauge",
        "Used part of the main processes' own /dev/shm, in bytes: when it is full, workers die of "
        "a bus error.",
    ),
    Family(
        "gpu_feeder_network_receive_bytes_total",
        "counter",
        f"Bytes received {_NAMESPACE}",
    ),
    Family(
        "gpu_feeder_network_transmit_bytes_total",
        "counter",
        f"Bytes sent {_NAMESPACE}",
    ),
    Family(
        "gpu_feeder_pressure_seconds_total",
        "counter",
        "Seconds in which some, or all (full, of io only), of the runnable tasks in the main "
        "processes' cgroups were held up for lack of the resource: cpu, io or memory (cgroup v2 "
        "*.pressure).",
        ("resource", "kind"),
    ),
)
_LEAST_USEFUL = (("cpu", "full"), ("memory", "full"))
"""For the budget of series. Little but the CPU limit, which has a counter of its own, stops all
tasks of a cgroup for want of CPU; and where memory lacks, some and full go together."""


def _samples(gpu: GpuSnapshot) -> Iterator[Sample]:
    feeding = gpu.feeding
    if feeding is None:
        return
    for role, count in feeding.processes.items():
        yield Sample("gpu_feeder_processes", float(count), (role,))
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
    if role == "main" or counters.written_bytes:
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
