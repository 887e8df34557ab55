"""The host: its resources and how busy they are. No GPU labels."""

from functools import partial

from gpu_bottleneck_exporter.host.machine import MAX_DEVICES, VIRTUAL_INTERFACES, Machine
from gpu_bottleneck_exporter.sampling.collector import (
    Collector,
    Table,
    counter,
    gauge,
    seconds_by,
    series,
)


def _pressure(machine: Machine) -> dict[tuple[str, str], int]:
    # On the whole host, some task always runs: it would be 0.
    return {key: ns for key, ns in machine.pressure_ns.items() if key != ("cpu", "full")}


FAMILIES: Table[Machine] = {
    counter(
        "gpu_host_pressure_seconds_total{resource, kind}",
        "Seconds in which some, or all (full), of the host's runnable tasks were stalled for lack "
        "of the resource: cpu, io or memory (/proc/pressure). CPU has no full.",
    ): lambda machine: seconds_by(_pressure(machine)),
    gauge("gpu_host_cpus", "Logical CPUs that the host has online."): lambda machine: machine.cpus,
    counter(
        "gpu_host_cpu_busy_seconds_total",
        "Seconds since boot in which CPUs worked, summed over all: everything but idle and iowait "
        "(/proc/stat).",
    ): lambda machine: machine.cpu_busy_seconds,
    counter(
        "gpu_host_iowait_seconds_total",
        "Seconds since boot in which CPUs idled while a task waited for a disk, summed over all "
        "(/proc/stat). Counts tasks of all jobs, and misses network storage.",
    ): lambda machine: machine.iowait_seconds,
    gauge(
        "gpu_host_memory_total_bytes", "Memory of the host, in bytes (/proc/meminfo)."
    ): lambda machine: machine.memory_total_bytes,
    gauge(
        "gpu_host_memory_available_bytes",
        "Memory available without swapping, in bytes (MemAvailable of /proc/meminfo).",
    ): lambda machine: machine.memory_available_bytes,
    gauge(
        "gpu_host_shm_size_bytes", "Size of the host's /dev/shm, in bytes (statvfs)."
    ): lambda machine: getattr(machine.shared_memory, "size_bytes", None),
    gauge(
        "gpu_host_shm_used_bytes", "Used part of the host's /dev/shm, in bytes (statvfs)."
    ): lambda machine: getattr(machine.shared_memory, "used_bytes", None),
    counter(
        "gpu_host_disk_io_seconds_total{device}",
        "Seconds since boot in which the disk had requests in flight (/proc/diskstats); a poor "
        "measure of load on SSDs. Whole disks, no partitions, loop or memory devices; "
        f"{MAX_DEVICES} at most.",
    ): lambda machine: machine.disk_io_seconds,
    counter(
        "gpu_host_network_receive_bytes_total{device}",
        "Bytes received by the interface (/proc/1/net/dev), without the loopback, those on top of "
        f"others (bonds, bridges, VLANs) and {', '.join(f'{it}*' for it in VIRTUAL_INTERFACES)}; "
        f"{MAX_DEVICES} interfaces at most.",
    ): lambda machine: machine.network_receive_bytes,
    counter(
        "gpu_host_network_transmit_bytes_total{device}",
        "Bytes sent by the same interfaces (/proc/1/net/dev).",
    ): lambda machine: machine.network_transmit_bytes,
    counter(
        "gpu_host_rdma_receive_bytes_total{device}",
        "Bytes received by RDMA, which other counters miss, by card and port: mlx5_0:1 "
        "(port_rcv_data in /sys/class/infiniband, times 4). Read every 5 s; "
        f"{MAX_DEVICES} ports at most.",
    ): lambda machine: machine.rdma_receive_bytes,
    counter(
        "gpu_host_rdma_transmit_bytes_total{device}",
        "Bytes sent by the same ports (port_xmit_data, times 4).",
    ): lambda machine: machine.rdma_transmit_bytes,
}

COLLECTOR = Collector(
    "host", tuple(FAMILIES), lambda _: None, partial(series, FAMILIES), of_machine=True
)
