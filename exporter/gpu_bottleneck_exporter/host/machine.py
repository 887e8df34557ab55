"""The machine: CPU, memory, disks, network, RDMA, shared memory, pressure."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import psutil

from gpu_bottleneck_exporter.host.aside import device_reads
from gpu_bottleneck_exporter.host.cgroup import stalled_by_resource
from gpu_bottleneck_exporter.host.files import MAX_LISTED, KeptFiles, T, list_names, read
from gpu_bottleneck_exporter.host.sharedmemory import SharedMemory, hosts_shared_memory
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace

log = logging.getLogger(__name__)

M = TypeVar("M")

MAX_DEVICES = 16
"""Devices with series per kind: disks, network interfaces, RDMA ports."""
_SIZES_INTERVAL_NS = 5_000_000_000
"""Interval between reads of sizes and RDMA."""
VIRTUAL_INTERFACES = ("veth", "cali", "lxc", "cni", "flannel", "docker", "br-", "ifb")
"""Name prefixes of interfaces of containers, or that only forward traffic."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One sample; counters start at boot. None or empty if unreadable."""

    cpus: int | None = None
    cpu_busy_seconds: float | None = None
    iowait_seconds: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shared_memory: SharedMemory | None = None
    disk_io_seconds: Mapping[str, float] = field(default_factory=dict)
    network_receive_bytes: Mapping[str, int] = field(default_factory=dict)
    network_transmit_bytes: Mapping[str, int] = field(default_factory=dict)
    rdma_receive_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes by device and port (`mlx5_0:1`)."""
    rdma_transmit_bytes: Mapping[str, int] = field(default_factory=dict)
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)


class MachineReader:
    """Reads the machine; parts fail independently.

    Network and shared memory are those of process 1: unknown in a private PID namespace.
    """

    def __init__(self, proc: Path, sysfs: Path = Path("/sys")) -> None:
        self._proc = proc
        self._sysfs = sysfs
        self._layered: frozenset[str] = frozenset()
        """Interfaces on top of others, with the same traffic."""
        self._sees_host = in_hosts_pid_namespace(proc) is not False
        self._files = KeptFiles()
        self._sizes = Machine()
        self._sizes_due_ns = 0

    def close(self) -> None:
        """Close all files until the next `read`."""
        for file in self._files.values():
            file.close()

    def read(self, now_ns: int) -> Machine:
        """The machine at monotonic time `now_ns`."""
        psutil.PROCFS_PATH = str(self._proc)  # global in psutil
        if now_ns >= self._sizes_due_ns:
            self._sizes_due_ns = now_ns + _SIZES_INTERVAL_NS
            self._sizes = self._read_sizes()
        times = _part(psutil.cpu_times, None)
        busy = ("user", "nice", "system", "irq", "softirq", "steal")
        traffic = _part(self._read_traffic, {})
        return replace(
            self._sizes,
            cpu_busy_seconds=sum(getattr(times, name, 0.0) for name in busy) if times else None,
            iowait_seconds=getattr(times, "iowait", None),
            disk_io_seconds=_part(self._read_disks, {}),
            network_receive_bytes={name: received for name, (received, _) in traffic.items()},
            network_transmit_bytes={name: sent for name, (_, sent) in traffic.items()},
            pressure_ns=_part(self._read_pressure, {}),
        )

    def _read_pressure(self) -> Mapping[tuple[str, str], int]:
        return stalled_by_resource(lambda name: self._files.text(f"{self._proc}/pressure/{name}"))

    def _read_disks(self) -> Mapping[str, float]:
        """I/O time by disk. Without diskstats, psutil would read our own /sys/block."""
        text = self._files.text(f"{self._proc}/diskstats")
        # Name, and ms with I/O in progress.
        line = r"^ *[0-9]+ +[0-9]+ (\S+)(?: [0-9]+){9} ([0-9]+)"
        disks = dict(re.findall(line, text, re.MULTILINE))
        return {name: int(disks[name]) / 1000 for name in whole_disks(disks)}

    def _read_traffic(self) -> dict[str, tuple[int, int]]:
        if not self._sees_host:
            return {}
        # /proc/net/dev would be of our own namespace.
        traffic = network_bytes(self._files.text(f"{self._proc}/1/net/dev"))
        return {name: traffic[name] for name in _bounded(traffic.keys() - self._layered)}

    def _read_sizes(self) -> Machine:
        memory = _part(psutil.virtual_memory, None)
        self._layered = _part(lambda: layered_interfaces(self._sysfs), frozenset())
        rdma = _part(lambda: rdma_bytes(self._sysfs), {})
        return Machine(
            rdma_receive_bytes={port: received for port, (received, _) in rdma.items()},
            rdma_transmit_bytes={port: sent for port, (_, sent) in rdma.items()},
            cpus=_part(psutil.cpu_count, None),
            memory_total_bytes=memory.total if memory else None,
            memory_available_bytes=memory.available if memory else None,
            shared_memory=_part(lambda: hosts_shared_memory(self._proc), None)
            if self._sees_host
            else None,
        )


def network_bytes(text: str) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by physical interface in a net/dev file."""
    line = r"^ *([^:\s]+): *([0-9]+)(?: +[0-9]+){7} +([0-9]+) "  # name, bytes received and sent
    return {
        name: (int(received), int(sent))
        for name, received, sent in re.findall(line, text, re.MULTILINE)
        if not (name == "lo" or name.startswith(VIRTUAL_INTERFACES))
    }


def layered_interfaces(sysfs: Path) -> frozenset[str]:
    """Interfaces that count others' traffic again: bonds, bridges, VLANs, veth.

    A container's only interface, one end of a veth, is none of them.
    """
    folder = sysfs / "class/net"
    names, _ = list_names(folder, MAX_LISTED)
    names = [name for name in names if not name.startswith(VIRTUAL_INTERFACES)]
    virtual = [name for name in names if not (folder / name / "device").exists()]
    on_a_host = len(virtual) < len(names)
    return frozenset(
        name
        for name in virtual
        if any(entry.startswith("lower_") for entry in list_names(folder / name, MAX_LISTED)[0])
        or (on_a_host and read(folder / name / "iflink") != read(folder / name / "ifindex"))
    )


def rdma_bytes(sysfs: Path) -> dict[str, tuple[int, int]]:
    """Bytes received and sent by RDMA port, as `mlx5_0:1`."""
    # On a helper thread, as a card may be slow.
    ports = sorted((sysfs / "class/infiniband").glob("*/ports/*/counters"))[:MAX_DEVICES]
    return (device_reads.call(os.getpid(), lambda: _rdma_bytes(ports)) or {}) if ports else {}


def _rdma_bytes(ports: Iterable[Path]) -> dict[str, tuple[int, int]]:
    traffic = {}
    for counters in ports:
        words = [read(counters / f"port_{way}_data") for way in ("rcv", "xmit")]
        # In words of four bytes (Documentation/ABI/stable/sysfs-class-infiniband).
        counts = [int(text) * 4 for text in words if text]
        if len(counts) == len(words):
            card, port = counters.parents[2].name, counters.parent.name
            traffic[f"{card}:{port}"] = counts[0], counts[1]
    return traffic


def whole_disks(names: Iterable[str]) -> list[str]:
    """Disks without partitions, RAM disks and loop devices."""
    disks = {name for name in names if not name.startswith(("loop", "ram", "zram", "sr", "fd"))}
    return _bounded(name for name in disks if _disk_of(name) not in disks)


def _disk_of(name: str) -> str | None:
    """The disk of a partition: nvme0n1 of nvme0n1p2, sda of sda1."""
    match = re.fullmatch(r"(.*\d)p\d+|(.*\D)\d+", name)
    return match[1] or match[2] if match else None


def _bounded(names: Iterable[str]) -> list[str]:
    """The first `MAX_DEVICES`, stacked block devices last: they count I/O again."""
    return sorted(names, key=lambda name: (name.startswith(("dm-", "md", "drbd")), name))[
        :MAX_DEVICES
    ]


def _part(reading: Callable[[], T], missing: M) -> T | M:
    try:
        return reading()
    except Exception:
        log.debug("reading the machine failed", exc_info=True)
        return missing
