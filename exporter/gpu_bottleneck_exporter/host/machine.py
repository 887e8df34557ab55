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

from gpu_bottleneck_exporter.host.files import KeptFile
from gpu_bottleneck_exporter.host.mounts import mount_at
from gpu_bottleneck_exporter.host.pressure import RESOURCES, stalled_by_resource
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace
from gpu_bottleneck_exporter.news import News

log = logging.getLogger(__name__)

_news = News()
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
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at only
_SIZES_EVERY_NS = 5_000_000_000


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


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What is no counter, and need not be asked for every second."""

    cpus: int | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    shared_memory: SharedMemory | None


class MachineReader:
    """Reads the machine whose procfs is mounted at `proc`; a part that fails costs itself only.

    Counters at each call, sizes every 5 s. Network and shared memory are those of
    process 1, the host's; in a PID namespace of our own it is not, and they are unknown. So is
    shared memory where only a container's can be seen.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._sees_host = in_hosts_pid_namespace(proc) is not False
        self._network = KeptFile(proc / "1/net/dev")
        self._disks = KeptFile(proc / "diskstats")
        self._pressure = {name: KeptFile(proc / "pressure" / name) for name in RESOURCES}
        self._sees_hosts_memory: bool | None = None
        """Whether our own /dev/shm is the host's; None: not looked yet."""
        self._sizes = _Sizes(None, None, None, None)
        self._sizes_due_ns: int | None = None

    def read(self, now_ns: int) -> Machine:
        """The machine at monotonic time `now_ns`."""
        psutil.PROCFS_PATH = str(self._proc)
        if self._sizes_due_ns is None or now_ns >= self._sizes_due_ns:
            self._sizes_due_ns = now_ns + _SIZES_EVERY_NS
            self._sizes = self._read_sizes()
        times = _part(psutil.cpu_times, None)
        received, sent = _NO_TRAFFIC
        if self._sees_host:
            received, sent = _part(lambda: network_bytes(_text(self._network)), _NO_TRAFFIC)
        return Machine(
            cpus=self._sizes.cpus,
            cpu_busy_seconds=sum(getattr(times, name, 0.0) for name in _BUSY) if times else None,
            iowait_seconds=getattr(times, "iowait", None),
            memory_total_bytes=self._sizes.memory_total_bytes,
            memory_available_bytes=self._sizes.memory_available_bytes,
            shared_memory=self._sizes.shared_memory,
            disk_io_seconds=_part(lambda: _disk_io_seconds(_text(self._disks)), {}),
            network_receive_bytes=received,
            network_transmit_bytes=sent,
            pressure_ns=_part(lambda: stalled_by_resource(self._read_pressure), {}),
        )

    def close(self) -> None:
        """Give the descriptors back."""
        for file in (self._network, self._disks, *self._pressure.values()):
            file.close()

    def _read_pressure(self, resource: str) -> bytes | None:
        return self._pressure[resource].read()

    def _read_sizes(self) -> _Sizes:
        memory = _part(psutil.virtual_memory, None)
        return _Sizes(
            cpus=_part(psutil.cpu_count, None),
            memory_total_bytes=memory.total if memory else None,
            memory_available_bytes=memory.available if memory else None,
            shared_memory=_part(self._read_shared_memory, None) if self._sees_host else None,
        )

    def _read_shared_memory(self) -> SharedMemory | None:
        """That of process 1, which takes the right to ptrace it; else ours if it is the same."""
        found = shared_memory(Path(f"{self._proc}/1/root{_SHARED_MEMORY}"))
        if found is None and self._sees_hosts_memory is None:
            self._sees_hosts_memory = _is_hosts(self._proc, _SHARED_MEMORY)
        return found or (shared_memory(Path(_SHARED_MEMORY)) if self._sees_hosts_memory else None)


def shared_memory(path: Path) -> SharedMemory | None:
    """The tmpfs mounted at `path`, None where it cannot be looked at."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    size = stat.f_blocks * stat.f_frsize
    return SharedMemory(size, size - stat.f_bfree * stat.f_frsize)


def network_bytes(
    text: str, most: int | None = MOST_DEVICES
) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes received and sent by interface, from a /proc/PID/net/dev file; of `most`, None: all.

    Without the loopback and `VIRTUAL_INTERFACES`.
    """
    counters: dict[str, tuple[int, int]] = {}
    for line in text.splitlines()[2:]:
        name, _, columns = line.partition(":")
        fields = columns.split()
        if len(fields) > _SENT and _is_told(name.strip()):
            counters[name.strip()] = int(fields[_RECEIVED]), int(fields[_SENT])
    names = _bounded(counters, most)
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


def _bounded(names: Iterable[str], most: int | None = MOST_DEVICES) -> list[str]:
    """The first ones by name, real devices before those made of others."""
    return sorted(names, key=lambda name: (name.startswith(_STACKED), name))[:most]


def _text(file: KeptFile) -> str:
    return (file.read() or b"").decode()


def _disk_io_seconds(text: str) -> dict[str, float]:
    """From /proc/diskstats; without it psutil takes what /sys/block of our own machine says."""
    lines = [line.split() for line in text.splitlines()]
    disks = {fields[_DISK]: int(fields[_MILLISECONDS]) for fields in lines}
    return {name: disks[name] / 1000 for name in whole_disks(disks)}


def _is_hosts(proc: Path, point: str) -> bool:
    """Whether the file system that we see at `point` is the one that process 1 has there.

    A container in the host's PID namespace has the host's /proc, and a /dev/shm of its own. Its
    mount namespace does not tell: to look at that of process 1 takes the right to ptrace it, and
    a service has one of its own, too (PrivateTmp=), with the host's /dev/shm. So the file systems
    are compared, and at this place only: elsewhere the host has those that it made for pods.
    """
    mount = mount_at(proc / "1", point)
    device = Path(point).stat().st_dev
    return mount is not None and mount.device == f"{os.major(device)}:{os.minor(device)}"


def _part(reading: Callable[[], T], missing: M) -> T | M:
    """What `reading` gives, `missing` when it fails in whatever way."""
    try:
        return reading()
    except Exception as error:
        if _news.is_new("reading the machine", str(error)):
            log.debug("reading the machine", exc_info=True)
        return missing
