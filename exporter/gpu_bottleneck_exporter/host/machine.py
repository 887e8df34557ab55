"""The machine as a whole: CPU, memory, disks, network, shared memory, pressure.

psutil reads CPU and memory; once a tick is not the hot path.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.pressure import stalled_by_resource

log = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M")

MOST_DEVICES = 16
"""Disks, and network interfaces, that are told apart: a bound on the number of series."""
VIRTUAL_INTERFACES = ("veth", "cali", "lxc", "cni", "flannel", "docker", "br-", "ifb")
"""Beginnings of the names of interfaces that come and go with containers, or only relay."""
_LOOPBACK = "lo"
_RECEIVED, _SENT = 0, 8
"""Columns of /proc/net/dev."""
_DISK, _MILLISECONDS = 2, 12
"""Columns of /proc/diskstats: its name, and how long it had requests in work."""
_NO_TRAFFIC: tuple[dict[str, int], dict[str, int]] = ({}, {})
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd")
_STACKED = ("dm-", "md", "drbd")
"""Block devices made of others, whose time is also that of the disks below."""
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_SHARED_MEMORY = "dev/shm"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """A tmpfs: bytes in all and used."""

    size_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """One reading; seconds and bytes count since boot. None or empty: could not be read."""

    cpus: int | None = None
    cpu_busy_seconds: float | None = None
    iowait_seconds: float | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shared_memory: SharedMemory | None = None
    disk_io_seconds: Mapping[str, float] = field(default_factory=dict)
    network_receive_bytes: Mapping[str, int] = field(default_factory=dict)
    network_transmit_bytes: Mapping[str, int] = field(default_factory=dict)
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)


def read_machine(proc: Path) -> Machine:
    """The machine whose procfs is mounted at `proc`; a part that fails costs itself only.

    Network and shared memory are those of process 1, the host's.
    """
    psutil.PROCFS_PATH = str(proc)
    times, memory = _part(psutil.cpu_times, None), _part(psutil.virtual_memory, None)
    received, sent = _part(lambda: network_bytes(proc / "1"), _NO_TRAFFIC)
    return Machine(
        cpus=_part(psutil.cpu_count, None),
        cpu_busy_seconds=sum(getattr(times, name, 0.0) for name in _BUSY) if times else None,
        iowait_seconds=getattr(times, "iowait", None),
        memory_total_bytes=memory.total if memory else None,
        memory_available_bytes=memory.available if memory else None,
        shared_memory=_part(lambda: _host_shared_memory(proc), None),
        disk_io_seconds=_part(lambda: _disk_io_seconds(proc), {}),
        network_receive_bytes=received,
        network_transmit_bytes=sent,
        pressure_ns=_part(lambda: stalled_by_resource(lambda name: proc / "pressure" / name), {}),
    )


def shared_memory(path: Path) -> SharedMemory | None:
    """The tmpfs mounted at `path`, None where it cannot be looked at."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    size = stat.f_blocks * stat.f_frsize
    return SharedMemory(size, size - stat.f_bfree * stat.f_frsize)


def network_bytes(process: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes received and sent by interface, in the network namespace of `process`.

    From /proc/PID/net/dev, without the loopback and `VIRTUAL_INTERFACES`.
    """
    counters: dict[str, tuple[int, int]] = {}
    for line in (read(process / "net/dev") or "").splitlines()[2:]:
        name, _, columns = line.partition(":")
        fields = columns.split()
        if len(fields) > _SENT and _is_told(name.strip()):
            counters[name.strip()] = int(fields[_RECEIVED]), int(fields[_SENT])
    names = _bounded(counters)
    return {n: counters[n][0] for n in names}, {n: counters[n][1] for n in names}


def whole_disks(names: Iterable[str]) -> list[str]:
    """The disks among block devices `names`: no partitions, no memory, no images of disks."""
    found = {name for name in names if not name.startswith(_NOT_DISKS)}
    return _bounded(name for name in found if _disk_of(name) not in found)


def _is_told(interface: str) -> bool:
    return interface != _LOOPBACK and not interface.startswith(VIRTUAL_INTERFACES)


def _disk_of(name: str) -> str | None:
    """The disk that `name` would be a partition of: nvme0n1 of nvme0n1p2, sda of sda1."""
    match = re.fullmatch(r"(.*\d)p\d+|(.*\D)\d+", name)
    return match[1] or match[2] if match else None


def _bounded(names: Iterable[str]) -> list[str]:
    """The first ones by name, real devices before those made of others."""
    return sorted(names, key=lambda name: (name.startswith(_STACKED), name))[:MOST_DEVICES]


def _disk_io_seconds(proc: Path) -> dict[str, float]:
    # Not psutil: without diskstats it takes what /sys/block of our own machine says.
    lines = [line.split() for line in (read(proc / "diskstats") or "").splitlines()]
    disks = {fields[_DISK]: int(fields[_MILLISECONDS]) for fields in lines}
    return {name: disks[name] / 1000 for name in whole_disks(disks)}


def _host_shared_memory(proc: Path) -> SharedMemory | None:
    """That of process 1, which takes the right to ptrace it; else ours, on the host itself."""
    found = shared_memory(proc / "1/root" / _SHARED_MEMORY)
    on_the_host = proc == Path("/proc")
    return found or (shared_memory(Path("/") / _SHARED_MEMORY) if on_the_host else None)


def _part(reading: Callable[[], T], missing: M) -> T | M:
    """What `reading` gives, `missing` when it fails in whatever way."""
    try:
        return reading()
    except Exception:  # kernels and psutil fail in many ways
        log.debug("reading the machine", exc_info=True)
        return missing
