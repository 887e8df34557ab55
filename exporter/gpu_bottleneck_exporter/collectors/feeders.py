"""The feeders of each GPU: usage, waits and limits."""

from collections.abc import Callable

from gpu_bottleneck_exporter.accounting.bucket import Counters
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.sampling.collector import (
    Table,
    collector,
    counter,
    gauge,
    seconds,
    seconds_by,
)

_BY_PROCESS = (
    "The last second of a process's life is missed; a process on several GPUs counts for each."
)


def _by_role(fed: Feeding, figure: Callable[[Counters], float | None]) -> dict[str, float | None]:
    return {role: figure(counters) for role, counters in fed.counters.items()}


def _written(fed: Feeding) -> dict[str, float | None]:
    # Few workers ever write: saves a series.
    by_role = _by_role(fed, lambda counters: counters.written_bytes)
    return {role: written for role, written in by_role.items() if written or role == "main"}


def _pressure(fed: Feeding) -> dict[tuple[str, str], int]:
    """Pressure without two redundant series.

    Only the CPU limit, which has its own counter, makes all tasks of a cgroup wait; under memory
    pressure, `some` and `full` rise together.
    """
    left_out = (("cpu", "full"), ("memory", "full"))
    return {key: ns for key, ns in fed.job.pressure_ns.items() if key not in left_out}


FAMILIES: Table[Feeding] = {
    gauge(
        "gpu_feeder_processes{role}",
        "Processes that feed the GPU: main (holds a context on it) and worker (a descendant that "
        "holds none). Workers are absent until there is one, also in the other families.",
    ): lambda fed: fed.processes,
    counter(
        "gpu_feeder_cpu_seconds_total{role}",
        f"Seconds of CPU that the processes used, all threads (/proc/PID/stat). {_BY_PROCESS}",
    ): lambda fed: _by_role(fed, lambda one: one.cpu_ns / 1e9),
    counter(
        "gpu_feeder_run_queue_seconds_total{role}",
        "Seconds in which the processes' first threads were runnable without a CPU "
        "(/proc/PID/schedstat): contention, or the CPU limit.",
    ): lambda fed: _by_role(fed, lambda one: one.queue_ns / 1e9) if fed.queue_known else None,
    counter(
        "gpu_feeder_wait_seconds_total{role, state}",
        "Seconds in which the processes waited, by resource: disk (file I/O, memory of the "
        "control group), network (a socket; while the GPU idles, a response), queue (pipe, "
        "futex, semaphore, memory map), sleep (timer, poll), unknown (no permission, a lock of "
        "the GPU's driver). Covers first threads and, while the GPU idles, the threads and "
        "processes that these wait for. Sampled; each kind is absent until first seen.",
    ): lambda fed: seconds_by(dict(sorted(fed.wait_ns.items()))),
    counter(
        "gpu_feeder_read_bytes_total{role}",
        "Bytes that the processes read from storage, not from the page cache (/proc/PID/io). "
        "For file systems without a block device or I/O accounting (FUSE, GPFS), all bytes "
        "read except from pipes. Absent while one of them cannot be read.",
    ): lambda fed: _by_role(fed, lambda one: one.read_bytes),
    counter(
        "gpu_feeder_written_bytes_total{role}",
        "Bytes that the processes wrote to storage (/proc/PID/io), or all bytes that they "
        "wrote where the kernel does not account for storage. Absent for workers until one has "
        "written.",
    ): _written,
    counter(
        "gpu_feeder_major_faults_total{role}",
        "Page faults of the processes that needed a read from storage (/proc/PID/stat).",
    ): lambda fed: _by_role(fed, lambda one: one.major_faults),
    counter(
        "gpu_feeder_refault_bytes_total",
        "Bytes evicted from memory and read again, in the main processes' cgroups "
        "(workingset_refault of memory.stat).",
    ): lambda fed: fed.refault_bytes,
    counter(
        "gpu_feeder_worker_starts_total",
        "Worker processes started while a main process held the GPU; some that live for less "
        "than a second are missed.",
    ): lambda fed: fed.worker_starts,
    gauge(
        "gpu_feeder_age_seconds", "Seconds since the oldest main process started (/proc/PID/stat)."
    ): lambda fed: fed.job.age_seconds,
    gauge(
        "gpu_feeder_interactive",
        "Whether a main process is interactive, 0 or 1: a notebook kernel, or one with a "
        "controlling terminal (ssh, tmux, docker run -t). Absent while no process feeds the GPU.",
    ): lambda fed: fed.job.limits.interactive,
    counter(
        "gpu_feeder_throttled_seconds_total",
        "Seconds in which the CPU limit held back the main processes' cgroups, summed over CPUs "
        "(cpu.stat).",
    ): lambda fed: seconds(fed.throttled_ns),
    gauge(
        "gpu_feeder_cpu_limit_cores",
        "CPU cores that the tightest limit of the main processes' cgroups allows (cpu.max or "
        "cpu.cfs_quota_us). Absent without a limit.",
    ): lambda fed: fed.job.limits.cpu_cores,
    gauge(
        "gpu_feeder_cpus_allowed",
        "CPUs on which the main processes may run (Cpus_allowed_list of /proc/PID/status).",
    ): lambda fed: fed.job.limits.cpus_allowed,
    gauge(
        "gpu_feeder_memory_used_bytes",
        "Memory that the main processes' cgroups use, in bytes, without page cache that the kernel "
        "can drop, at the level with the tightest limit (memory.current or memory.usage_in_bytes, "
        "less active_file and inactive_file of memory.stat).",
    ): lambda fed: fed.job.limits.memory_used_bytes,
    gauge(
        "gpu_feeder_memory_limit_bytes",
        "Tightest memory limit of the main processes' cgroups, in bytes (memory.max, memory.high "
        "or memory.limit_in_bytes). Absent without a limit.",
    ): lambda fed: fed.job.limits.memory_bytes,
    gauge(
        "gpu_feeder_shm_size_bytes",
        "Size of the main processes' own /dev/shm, in bytes (/proc/PID/root). Absent without "
        "permission.",
    ): lambda fed: getattr(fed.job.limits.shared_memory, "size_bytes", None),
    gauge(
        "gpu_feeder_shm_used_bytes",
        "Used part of the main processes' own /dev/shm, in bytes. When it is full, workers die of "
        "a bus error.",
    ): lambda fed: getattr(fed.job.limits.shared_memory, "used_bytes", None),
    counter(
        "gpu_feeder_network_receive_bytes_total",
        "Bytes received in the network namespaces of the main processes (/proc/PID/net/dev without "
        "loopback and container bridges). With hostNetwork, and outside of containers, that is the "
        "whole host's traffic: see gpu_feeder_network_shared.",
    ): lambda fed: fed.job.received_bytes,
    counter(
        "gpu_feeder_network_transmit_bytes_total", "Bytes sent in the same network namespaces."
    ): lambda fed: fed.job.sent_bytes,
    gauge(
        "gpu_feeder_network_shared",
        "Constant 1 if the main processes share the host's network namespace, whose traffic "
        "includes that of others; absent otherwise.",
    ): lambda fed: fed.job.shares_network or None,
    counter(
        "gpu_feeder_socket_bytes_total",
        "Bytes that the job's own TCP sockets received and sent while the GPU idled, where the "
        "network namespace is that of the host; loopback included, other protocols not (TCP_INFO). "
        "Absent elsewhere, and where not all of its sockets are seen.",
    ): lambda fed: fed.job.socket_bytes,
    counter(
        "gpu_feeder_pressure_seconds_total{resource, kind}",
        "Seconds in which some, or all (full, of io only), runnable tasks in the main processes' "
        "cgroups were stalled for lack of the resource: cpu, io or memory (cgroup v2 *.pressure).",
    ): lambda fed: seconds_by(_pressure(fed)),
}

COLLECTOR = collector("feeders", FAMILIES, lambda gpu: gpu.feeding)
