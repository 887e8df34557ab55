"""The host: its resources and how busy they are. Needs no GPU, and has no GPU labels."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.host.machine import MOST_DEVICES, VIRTUAL_INTERFACES, Machine
from gpu_bottleneck_exporter.sampling.collector import (
    Collector,
    Sample,
    counter,
    each,
    gauge,
    optional,
)

_INTERFACES = (
    f"Without the loopback and {', '.join(f'{name}*' for name in VIRTUAL_INTERFACES)}; "
    f"{MOST_DEVICES} interfaces at most."
)

FAMILIES = (
    counter(
        "gpu_host_pressure_seconds_total",
        "Seconds in which some, or all (full), of the host's runnable tasks were stalled for lack "
        "of the resource: cpu, io or memory (/proc/pressure). CPU has no full.",
        ("resource", "kind"),
    ),
    gauge("gpu_host_cpus", "Logical CPUs that the host has online."),
    counter(
        "gpu_host_cpu_busy_seconds_total",
        "Seconds since boot in which CPUs worked, summed over all CPUs: everything but idle and "
        "iowait (/proc/stat).",
    ),
    counter(
        "gpu_host_iowait_seconds_total",
        "Seconds since boot in which CPUs idled while a task waited for a disk, summed over all "
        "CPUs (/proc/stat). Counts any task, not only feeders, and misses network storage.",
    ),
    gauge("gpu_host_memory_total_bytes", "Memory of the host, in bytes (/proc/meminfo)."),
    gauge(
        "gpu_host_memory_available_bytes",
        "Memory available without swapping, in bytes (MemAvailable of /proc/meminfo).",
    ),
    gauge("gpu_host_shm_size_bytes", "Size of the host's /dev/shm, in bytes (statvfs)."),
    gauge("gpu_host_shm_used_bytes", "Used part of the host's /dev/shm, in bytes (statvfs)."),
    counter(
        "gpu_host_disk_io_seconds_total",
        "Seconds since boot in which the disk had requests in flight (/proc/diskstats); a poor "
        "measure of load on SSDs. Whole disks, no partitions, loop or memory devices; "
        f"{MOST_DEVICES} at most.",
        ("device",),
    ),
    counter(
        "gpu_host_network_receive_bytes_total",
        f"Bytes received by the interface (/proc/1/net/dev). {_INTERFACES}",
        ("device",),
    ),
    counter(
        "gpu_host_network_transmit_bytes_total",
        f"Bytes sent by the interface (/proc/1/net/dev). {_INTERFACES}",
        ("device",),
    ),
)
_ALWAYS_ZERO = ("cpu", "full")
"""On the whole host, some task always runs while another waits for a CPU."""


def _samples(machine: Machine) -> Iterator[Sample]:
    for labels, nanoseconds in machine.pressure_ns.items():
        if labels != _ALWAYS_ZERO:
            yield Sample("gpu_host_pressure_seconds_total", nanoseconds / 1e9, labels)
    yield from optional("gpu_host_cpus", machine.cpus)
    yield from optional("gpu_host_cpu_busy_seconds_total", machine.cpu_busy_seconds)
    yield from optional("gpu_host_iowait_seconds_total", machine.iowait_seconds)
    yield from optional("gpu_host_memory_total_bytes", machine.memory_total_bytes)
    yield from optional("gpu_host_memory_available_bytes", machine.memory_available_bytes)
    if machine.shared_memory is not None:
        yield Sample("gpu_host_shm_size_bytes", float(machine.shared_memory.size_bytes))
        yield Sample("gpu_host_shm_used_bytes", float(machine.shared_memory.used_bytes))
    yield from each("gpu_host_disk_io_seconds_total", machine.disk_io_seconds)
    yield from each("gpu_host_network_receive_bytes_total", machine.network_receive_bytes)
    yield from each("gpu_host_network_transmit_bytes_total", machine.network_transmit_bytes)


COLLECTOR = Collector("host", FAMILIES, lambda _: (), of_machine=_samples)
