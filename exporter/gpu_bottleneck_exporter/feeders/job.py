"""What surrounds the main processes of a GPU: whose they are, limits, network, pressure, age."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from gpu_bottleneck_exporter.feeders.process import Process
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
_SPAWNED = ("from multiprocessing.spawn import ", "from multiprocessing.forkserver import ")
Key = tuple[str, ...]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What the mains may use, and how much of it they use. None: unknown or unlimited."""

    cpus_allowed: int | None = None
    """CPUs that at least one main may run on (union of their affinities)."""
    cpu_cores: float | None = None
    memory_used_bytes: int | None = None
    """Without page cache that the kernel can drop."""
    memory_bytes: int | None = None
    shared_memory: SharedMemory | None = None
    throttling_known: bool = False
    refaults_known: bool = False
    interactive: bool | None = None
    """Whether a main is a notebook kernel or has a terminal."""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What comes with the mains and hardly ever changes, and what they may use."""

    jobs: frozenset[Key] = frozenset()
    """What they have in common with those of other GPUs of the same job."""
    users: frozenset[str] = frozenset()
    """By number."""
    owners: frozenset[Key] = frozenset()
    """Their owners: the user, the pod or container, and the Slurm job."""
    lasting: frozenset[tuple[str, str]] = frozenset()
    """The same without Slurm jobs: the next one of a user has the same owner."""
    networks: Mapping[int, int] = field(default_factory=dict)
    """Their network namespaces, each with one of them."""
    shares_network: bool | None = None
    """Whether one of these is the machine's, whose traffic is also that of others."""
    addressed: bool = True
    """Whether no user can have chosen the addresses in these."""
    command: str = ""
    """The command line of one of them, as far as it is read."""
    notebook: bool = False
    started_ns: int | None = None
    """When the oldest of them started, in the monotonic clock."""
    limits: JobLimits = field(default_factory=JobLimits)

    @property
    def has_rank_variables(self) -> bool:
        """Whether one of them was started as one of several ranks."""
        return any(key[0] == GROUP for key in self.jobs)


def facts_of(
    proc: Path, mains: Mapping[int, Process], groups: Collection[Cgroup], units: Groups
) -> JobFacts:
    """Facts of `mains` in control groups `groups`, which `units` map to jobs."""
    if not mains:
        return JobFacts()
    networks = {network_namespace(proc, pid): pid for pid in mains}
    commands = {pid: command_line(proc, pid) for pid in mains}
    texts = [one.text for one in commands.values()]
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
    """Whether one of the namespaces is that of process 1, as on bare metal and with hostNetwork."""
    machines = network_namespace(proc, 1)
    return None if machines is None or None in inodes else machines in inodes


def job_keys(proc: Path, pid: int, command: FileText, groups: Groups) -> set[Key]:
    """Equal for processes of one job: the process itself, its group, those started beside it.

    The group is where ranks that work in step meet, which only the same user or one with
    CAP_SYS_PTRACE may read. Siblings are processes that Python's multiprocessing started for one
    parent.
    """
    keys: set[Key] = {("process", str(pid))}
    place = rendezvous(proc, pid, groups.claims(pid), groups.unit(pid), COLLECTIVE)
    siblings = _siblings(proc, pid, command)
    return keys | ({(GROUP, *place)} if place else set()) | ({siblings} if siblings else set())


def _siblings(proc: Path, pid: int, command: FileText) -> Key | None:
    parent = parent_of(proc, pid)
    if not command.text or not parent:
        return None
    # Of two that are cut it is not known whether they are the same.
    forked = command.whole and command == command_line(proc, parent)
    spawned = any(words in command.text for words in _SPAWNED)
    return ("siblings", str(parent), user_id(proc, pid)) if forked or spawned else None


@dataclass(frozen=True, slots=True)
class Job:
    """One reading; counters start when the mains were first seen."""

    limits: JobLimits = field(default_factory=JobLimits)
    age_seconds: float | None = None
    """Of the oldest main."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    shares_network: bool | None = None
    """Whether these bytes are also those of other processes of the machine."""
    socket_bytes: int | None = None
    """Received and sent by the job's own TCP sockets while the GPU idled; only if so."""
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By resource and kind."""


class Sums(Generic[K]):
    """What the sources of each key have counted while they were watched; never falls.

    A source is a cgroup, a network namespace: whatever has counters of its own.
    """

    def __init__(self) -> None:
        self._totals: dict[K, int] = {}
        self._last: Mapping[tuple[Hashable, K], int] = {}

    def advance(self, readings: Mapping[tuple[Hashable, K], int]) -> None:
        """Take the counters by source and key; a source that is new counts from now on."""
        for (source, key), value in readings.items():
            before = self._last.get((source, key), value)
            self._totals[key] = self._totals.get(key, 0) + max(value - before, 0)
        self._last = dict(readings)

    def known(self, *, sources: bool) -> dict[K, int]:
        """The sums that may be told; `sources`: whether there are any to be read.

        One that the present sources do not give is unknown; without sources all stand.
        """
        if not sources:
            return dict(self._totals)
        given = {key for _, key in self._last}
        return {key: total for key, total in self._totals.items() if key in given}


class Networks:
    """Traffic of network namespaces; each is read once a tick, however many mains share it."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._at_ns: int | None = None
        self._found: dict[int, tuple[int, int] | None] = {}

    def traffic(self, inode: int, pid: int, now_ns: int) -> tuple[int, int] | None:
        """Bytes received and sent in namespace `inode`, that of `pid`, at monotonic `now_ns`.

        None if they cannot be read. The file is reopened each time: an open descriptor would
        keep the namespace of an ended job alive.
        """
        if now_ns != self._at_ns:
            self._at_ns = now_ns
            self._found.clear()
        if inode not in self._found:
            table = read_bounded(f"{self._proc}/{pid}/net/dev", MAX_TABLE_BYTES)
            whole = table.text if table and table.whole else ""  # a sum of only some would be wrong
            found = network_bytes(whole).values()
            total = sum(received for received, _ in found), sum(sent for _, sent in found)
            self._found[inode] = total if found else None
        return self._found[inode]


def _started_ns(mains: Iterable[Process]) -> int | None:
    """Start of the oldest of `mains`, in the monotonic clock."""
    started = [ticks for main in mains if (ticks := main.reader.started_ticks) is not None]
    return monotonic_start_ns(min(started)) if started else None


def _cpus_allowed(proc: Path, pids: Iterable[int]) -> int | None:
    """CPUs of any of them (Cpus_allowed_list of /proc/PID/status)."""
    texts = (read(f"{proc}/{pid}/status") for pid in pids)
    cpus = [allowed_cpus(text) for text in texts if text is not None]
    return len(frozenset().union(*cpus)) or None if all(cpus) else None


def cpu_cores(groups: Collection[Cgroup]) -> float | None:
    """Sum of the quotas: a shared one counts once; a main without one makes it unlimited."""
    limits = [group.cpu_limit() for group in groups]
    known = dict(limit for limit in limits if limit is not None)
    return sum(known.values()) if known and None not in limits else None


def _memory(groups: Collection[Cgroup]) -> tuple[int | None, int | None]:
    """Bytes used without page cache, and the limit, summed: a shared level counts once."""
    levels = {level.folder: level for group in groups if (level := group.memory_level())}
    if not levels:
        return None, None
    caches = {level: level.cache_bytes("active_file", "inactive_file") for level in levels.values()}
    used = (None if cache is None else level.used_bytes - cache for level, cache in caches.items())
    return _sum(used), _sum(level.limit_bytes for level in levels.values())


def _sum(sizes: Iterable[int | None]) -> int | None:
    """None if one is unknown."""
    known = [*sizes]
    return None if None in known else sum(max(size or 0, 0) for size in known)


def _shared_memory(proc: Path, pids: Iterable[int]) -> SharedMemory | None:
    """The /dev/shm of the mains, each once; unknown if one is out of reach.

    Read through /proc/PID/root, which takes the permission to ptrace.
    """
    places = [shared_memory_of(proc, pid) for pid in pids]
    if not all(places):
        return None
    found = dict(filter(None, places)).values()  # by device
    return SharedMemory(sum(one.size_bytes for one in found), sum(one.used_bytes for one in found))
