"""The host: what is there, and how busy it is. Without GPU labels, also without any GPU."""

from collections.abc import Iterator

from gpu_bottleneck_exporter.collectors.base import Collector, Family, Sample, optional
from gpu_bottleneck_exporter.host.machine import MOST_DEVICES, VIRTUAL_INTERFACES, Machine

_INTERFACES = (
    f"Without the loopback and {', '.join(f'{name}*' for name in VIRTUAL_INTERFACES)}; "
    f"{MOST_DEVICES} interfaces at most."
)

FAMILIES = (
    Family(
        "gpu_host_pressure_seconds_total",
        "counter",
        "Seconds in which some, or all (full), of the host's runnable tasks were held up for lack "
        "of the resource: cpu, io or memory (/proc/pressure). CPU has no full.",
        ("resource", "kind"),
    ),
    Family("gpu_host_cpus", "gauge", "Logical CPUs that the host has online."),
    Family(
        "gpu_host_cpu_busy_seconds_total",
        "counter",
        "Seconds since boot in which CPUs worked, summed over all CPUs: everything but idle and "
        "iowait (/proc/stat).",
    ),
    Family(
        "gpu_host_iowait_seconds_total",
        "counter",
        "Seconds since boot in which CPUs idled while a task waited for a disk, summed over all "
        "CPUs (/proc/stat). Blames whoever waits, not who feeds a GPU; blind to network storage.",
    ),
    Family("gpu_host_memory_total_bytes", "gauge", "Memory of the host, in bytes (/proc/meminfo)."),
    Family(
        "gpu_host_memory_available_bytes",
        "gauge",
        "Memory that can be had without swapping, in bytes (MemAvailable of /proc/meminfo).",
    ),
    Family(
        "gpu_host_shm_size_bytes",
        "gauge",
        "Size of the host's /dev/shm, in bytes (statvfs).",
    ),
    Family(
        "gpu_host_shm_used_bytes",
        "gauge",
        "Used part of the host's /dev/shm, in bytes (statvfs).",
    ),
    Family(
        "gpu_host_disk_io_seconds_total",
        "counter",
        "Seconds since boot in which the disk had requests in work (/proc/diskstats); says little "
        "of how loaded an SSD is. Whole disks, no partitions, loop or memory devices; "
        f"{MOST_DEVICES} at most.",
        ("device",),
    ),
    Family(
        "gpu_host_network_receive_bytes_total",
        "counter",
        f"Bytes that the interface received (/proc/1/net/dev). {_INTERFACES}",
        ("device",),
    ),
    Family(
        "gpu_host_network_transmit_bytes_total",
        "counter",
        f"Bytes that the interface sent (/proc/1/net/dev). {_INTERFACES}",
        ("device",),
    ),
)
_ALWAYS_ZERO = ("cpu", "full")
"""The whole host always has a task that runs while another waits for a CPU."""


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
    for device, seconds in machine.disk_io_seconds.items():
        yield Sample("gpu_host_disk_io_seconds_total", seconds, (device,))
    for device, received in machine.network_receive_bytes.items():
        yield Sample("gpu_host_network_receive_bytes_total", float(received), (device,))
    for device, sent in machine.network_transmit_bytes.items():
        yield Sample("gpu_host_network_transmit_bytes_total", float(sent), (device,))


COLLECTOR = Collector("host", FAMILIES, lambda _: (), of_machine=_samples)
