"""Job facts: owners, limits, network and age of a GPU's mains."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.host.cgroup import Cgroup
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, FileText, read, read_bounded
from gpu_bottleneck_exporter.host.machine import network_bytes
from gpu_bottleneck_exporter.host.process import (
    allowed_cpus,
    command_line,
    is_our_network,
    monotonic_start_ns,
    network_namespace,
    parent_of,
    stat_text,
    user_id,
)
from gpu_bottleneck_exporter.host.programs import has_terminal, runs_notebook
from gpu_bottleneck_exporter.host.sharedmemory import SharedMemory, shared_memory_of
from gpu_bottleneck_exporter.workload.owners import Groups
from gpu_bottleneck_exporter.workload.ranks import COLLECTIVE, rendezvous

GROUP = "group"
"""Kind of a job key for a rendezvous of ranks."""
Key = tuple[str, ...]
SumKey = TypeVar("SumKey", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of the mains; None: unknown or unlimited."""

    cpus_allowed: int | None = None
    """CPUs in the union of the mains' affinities."""
    cpu_cores: float | None = None
    memory_used_bytes: int | None = None
    """Memory without page cache that the kernel can drop."""
    memory_bytes: int | None = None
    shared_memory: SharedMemory | None = None
    throttling_known: bool = False
    refaults_known: bool = False
    interactive: bool | None = None
    """Whether a main is a notebook kernel or has a terminal."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Properties of the mains that rarely change."""

    jobs: frozenset[Key] = frozenset()
    """Keys shared with mains of the same job on other GPUs."""
    users: frozenset[str] = frozenset()
    owners: frozenset[Key] = frozenset()
    """Users, pods or containers, and Slurm jobs."""
    lasting: frozenset[tuple[str, str]] = frozenset()
    """Owners without Slurm jobs, the same for a user's next job."""
    networks: Mapping[int, int] = field(default_factory=dict)
    """A main by network namespace."""
    shares_network: bool | None = None
    """Whether a namespace, and its traffic, is the machine's."""
    addressed: bool = True
    """Whether no user can have set the addresses."""
    command: str = ""
    """Command line of one main, possibly cut."""
    notebook: bool = False
    started_ns: int | None = None
    """Monotonic start of the oldest main."""
    limits: JobLimits = field(default_factory=JobLimits)

    @property
    def has_rank_variables(self) -> bool:
        """Whether a main has a launcher's variables of a rank."""
        return any(key[0] == GROUP for key in self.jobs)


def facts_of(
    proc: Path, mains: Mapping[int, FeederProcess], groups: Collection[Cgroup], units: Groups
) -> JobFacts:
    """Facts of `mains` in control groups `groups`; `units` map these to jobs."""
    if not mains:
        return JobFacts()
    networks = {network_namespace(proc, pid): pid for pid in mains}
    commands = {pid: command_line(proc, pid) for pid in mains}
    texts = [command.text for command in commands.values()]
    notebook = any(map(runs_notebook, texts))
    users = {pid: user_id(proc, pid) for pid in mains}
    stats = [stat_text(proc, pid) for pid in mains]
    terminal = any(map(has_terminal, filter(None, stats))) or (None if None in stats else False)
    used, limit = _memory(groups)
    return JobFacts(
        jobs=frozenset(key for pid in mains for key in job_keys(proc, pid, commands[pid], units)),
        users=frozenset(users.values()) - {""},
        owners=frozenset((user, *units.tenant(pid)) for pid, user in users.items()),
        lasting=frozenset((user, units.tenant(pid)[0]) for pid, user in users.items()),
        networks={inode: pid for inode, pid in networks.items() if inode is not None},
        shares_network=_shares_network(proc, networks),
        addressed=all(is_our_network(proc, pid) for pid in networks.values()),
        command=min(texts),
        notebook=notebook,
        started_ns=_started_ns(mains.values()),
        limits=JobLimits(
            cpus_allowed=_cpus_allowed(proc, mains),
            cpu_cores=cpu_cores(groups),
            memory_used_bytes=used,
            memory_bytes=limit,
            shared_memory=_shared_memory(proc, mains),
            throttling_known=any(group.counters.throttled_ns is not None for group in groups),
            refaults_known=any(group.counters.refault_bytes is not None for group in groups),
            interactive=notebook or terminal,
        ),
    )


def _shares_network(proc: Path, inodes: Collection[int | None]) -> bool | None:
    """Whether a namespace is that of process 1: bare metal, hostNetwork."""
    init = network_namespace(proc, 1)
    return None if init is None or None in inodes else init in inodes


def job_keys(proc: Path, pid: int, command: FileText, groups: Groups) -> set[Key]:
    """Keys of a process that others of its job share.

    Those of a rendezvous take the same user or CAP_SYS_PTRACE. Siblings are processes that Python's
    multiprocessing started for one parent.
    """
    keys: set[Key] = {("process", str(pid))}
    place = rendezvous(proc, pid, groups.claims(pid), groups.unit(pid), COLLECTIVE)
    siblings = _siblings(proc, pid, command)
    return keys | ({(GROUP, *place)} if place else set()) | ({siblings} if siblings else set())


def _siblings(proc: Path, pid: int, command: FileText) -> Key | None:
    parent = parent_of(proc, pid)
    if not command.text or not parent:
        return None
    # Cut command lines may differ in the rest.
    forked = command.whole and command == command_line(proc, parent)
    spawned = re.search(r"from multiprocessing\.(spawn|forkserver) import ", command.text)
    return ("siblings", str(parent), user_id(proc, pid)) if forked or spawned else None


@dataclass(frozen=True, slots=True)
class JobReading:
    """A reading of a job; counters start with the first sample of its mains."""

    limits: JobLimits = field(default_factory=JobLimits)
    age_seconds: float | None = None
    received_bytes: int | None = None
    sent_bytes: int | None = None
    shares_network: bool | None = None
    """Whether these bytes include other processes'."""
    socket_bytes: int | None = None
    """Bytes of the job's TCP sockets while the GPU idled; None unless it shares a network."""
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Stall time by resource and kind."""


class Sums(Generic[SumKey]):
    """Monotonic sums over sources: cgroups or network namespaces."""

    def __init__(self) -> None:
        self._totals: dict[SumKey, int] = {}
        self._last: Mapping[tuple[Hashable, SumKey], int] = {}

    def advance(self, readings: Mapping[tuple[Hashable, SumKey], int]) -> None:
        """Add the counters by source and key; a new source counts from now on."""
        for (source, key), value in readings.items():
            before = self._last.get((source, key), value)
            self._totals[key] = self._totals.get(key, 0) + max(value - before, 0)
        self._last = dict(readings)

    def known(self, *, sources: bool) -> dict[SumKey, int]:
        """The sums of present keys; all without `sources`."""
        if not sources:
            return dict(self._totals)
        keys = {key for _, key in self._last}
        return {key: total for key, total in self._totals.items() if key in keys}


class Networks:
    """Reads the traffic of network namespaces, each once a tick. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._at_ns: int | None = None
        self._bytes: dict[int, tuple[int, int] | None] = {}

    def traffic(self, inode: int, pid: int, now_ns: int) -> tuple[int, int] | None:
        """Bytes received and sent in namespace `inode` of `pid`; None if unreadable.

        Reopens the file, as an open descriptor would keep an ended job's namespace alive.
        """
        if now_ns != self._at_ns:
            self._at_ns = now_ns
            self._bytes.clear()
        if inode not in self._bytes:
            table = read_bounded(f"{self._proc}/{pid}/net/dev", MAX_TABLE_BYTES)
            whole = table.text if table and table.whole else ""  # no partial sums
            by_interface = network_bytes(whole).values()
            total = (
                sum(received for received, _ in by_interface),
                sum(sent for _, sent in by_interface),
            )
            self._bytes[inode] = total if by_interface else None
        return self._bytes[inode]


def _started_ns(mains: Iterable[FeederProcess]) -> int | None:
    started = [ticks for main in mains if (ticks := main.reader.started_ticks) is not None]
    return monotonic_start_ns(min(started)) if started else None


def _cpus_allowed(proc: Path, pids: Iterable[int]) -> int | None:
    texts = (read(f"{proc}/{pid}/status") for pid in pids)
    cpus = [allowed_cpus(text) for text in texts if text is not None]
    return len(frozenset().union(*cpus)) or None if all(cpus) else None


def cpu_cores(groups: Collection[Cgroup]) -> float | None:
    """CPU quota in cores; a shared one counts once; None if a main has none."""
    limits = [group.cpu_limit() for group in groups]
    by_level = dict(limit for limit in limits if limit is not None)
    return sum(by_level.values()) if by_level and None not in limits else None


def _memory(groups: Collection[Cgroup]) -> tuple[int | None, int | None]:
    """Bytes used without page cache, and the limit; a shared level counts once."""
    levels = {level.folder: level for group in groups if (level := group.memory_level())}
    if not levels:
        return None, None
    caches = {level: level.cache_bytes("active_file", "inactive_file") for level in levels.values()}
    used = (None if cache is None else level.used_bytes - cache for level, cache in caches.items())
    return _sum(used), _sum(level.limit_bytes for level in levels.values())


def _sum(sizes: Iterable[int | None]) -> int | None:
    """The sum; None if a size is unknown."""
    values = [*sizes]
    return None if None in values else sum(max(size or 0, 0) for size in values)


def _shared_memory(proc: Path, pids: Iterable[int]) -> SharedMemory | None:
    """The /dev/shm of the mains, each once; None without the permission to ptrace."""
    places = [shared_memory_of(proc, pid) for pid in pids]
    if not all(places):
        return None
    mounts = dict(filter(None, places)).values()
    return SharedMemory(
        sum(mount.size_bytes for mount in mounts), sum(mount.used_bytes for mount in mounts)
    )
