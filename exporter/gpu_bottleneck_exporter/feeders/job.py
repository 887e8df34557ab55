"""What surrounds the main processes of a GPU: limits, memory, network, pressure, age."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.programs import is_interactive
from gpu_bottleneck_exporter.host.cgroup import Cgroup
from gpu_bottleneck_exporter.host.files import MANY_BYTES, read, read_part
from gpu_bottleneck_exporter.host.machine import network_bytes
from gpu_bottleneck_exporter.host.process import TICK_NS, allowed_cpus, network_namespace
from gpu_bottleneck_exporter.host.sharedmemory import SharedMemory, shared_memory_of
from gpu_bottleneck_exporter.schedule import RefreshSchedule

_RECEIVED, _SENT = "received", "sent"
K = TypeVar("K", bound=Hashable)


class Sums(Generic[K]):
    """By key, what its sources have counted while they were watched; never falls.

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


@dataclass(frozen=True, slots=True)
class JobLimits:
    """What the mains may use, and how much of it they use. None: unknown or unlimited."""

    cpus_allowed: int | None = None
    """CPUs that at least one main may run on (union of their affinities)."""
    cpu_cores: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    shared_memory: SharedMemory | None = None
    throttling_known: bool = False
    refaults_known: bool = False
    interactive: bool | None = None
    """Whether a main is a notebook kernel or has a terminal."""


@dataclass(frozen=True, slots=True)
class Job:
    """One reading; counters start when the mains were first seen."""

    limits: JobLimits = field(default_factory=JobLimits)
    age_seconds: float | None = None
    """Of the oldest main."""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By resource and kind."""


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
            table = read_part(self._proc / str(pid) / "net/dev", MANY_BYTES)
            whole = table.text if table and table.whole else ""  # a sum of only some would be wrong
            found = network_bytes(whole).values()
            total = sum(received for received, _ in found), sum(sent for _, sent in found)
            self._found[inode] = total if found else None
        return self._found[inode]


class JobReader:
    """Reads the surroundings of one GPU's mains: limits seldom, the rest at each call.

    Limits and their use are up to half a minute old, as `RefreshSchedule` has it.
    """

    def __init__(self, proc: Path, networks: Networks) -> None:
        """`proc`: the host's; `networks` may serve many readers."""
        self._proc = proc
        self._networks = networks
        self._limits = JobLimits()
        self._started_ns: int | None = None
        self._namespaces: dict[int, int] = {}
        self._ageing = RefreshSchedule()
        self._pids: frozenset[int] = frozenset()
        self._groups: set[Cgroup] = set()
        self._traffic: Sums[str] = Sums()
        self._pressure: Sums[tuple[str, str]] = Sums()

    def read(self, mains: Mapping[int, Process], cgroups: Iterable[Cgroup], now_ns: int) -> Job:
        """Read for `mains` and their `cgroups`, at monotonic time `now_ns`."""
        groups = set(cgroups)
        new = mains.keys() != self._pids or groups != self._groups
        if self._ageing.is_due(now_ns, new=new):
            self._pids, self._groups = frozenset(mains), groups
            self._limits = self._read_limits(groups)
            self._started_ns = _started_ns(self._proc, mains.values(), now_ns)
            self._namespaces = {
                inode: pid
                for pid in mains
                if (inode := network_namespace(self._proc, pid)) is not None
            }
        self._advance(groups, now_ns)
        traffic = self._traffic.known(sources=bool(mains))
        return Job(
            limits=self._limits,
            age_seconds=None if self._started_ns is None else (now_ns - self._started_ns) / 1e9,
            received_bytes=traffic.get(_RECEIVED),
            sent_bytes=traffic.get(_SENT),
            pressure_ns=self._pressure.known(sources=bool(mains)),
        )

    def _advance(self, groups: set[Cgroup], now_ns: int) -> None:
        traffic: dict[tuple[Hashable, str], int] = {}
        for inode, pid in self._namespaces.items():
            if found := self._networks.traffic(inode, pid, now_ns):
                traffic[inode, _RECEIVED], traffic[inode, _SENT] = found
        self._traffic.advance(traffic)
        self._pressure.advance(
            {
                (group.unified, key): value
                for group in groups
                for key, value in group.counted.pressure_ns.items()
            }
        )

    def _read_limits(self, groups: set[Cgroup]) -> JobLimits:
        if not self._pids:
            return JobLimits()
        used, limit = _memory(groups)
        return JobLimits(
            cpus_allowed=_cpus_allowed(self._proc, self._pids),
            cpu_cores=cpu_cores(groups),
            memory_used_bytes=used,
            memory_bytes=limit,
            shared_memory=_shared_memory(self._proc, self._pids),
            throttling_known=any(group.counted.throttled_ns is not None for group in groups),
            refaults_known=any(group.counted.refault_bytes is not None for group in groups),
            interactive=_interactive(self._proc, self._pids),
        )


def _started_ns(proc: Path, mains: Iterable[Process], now_ns: int) -> int | None:
    """When the oldest of `mains` started, in the monotonic clock of `now_ns`."""
    uptime = (read(proc / "uptime") or "").split()
    started = [main.started_ticks for main in mains if main.started_ticks is not None]
    if not uptime or not started:
        return None
    age_ns = int(float(uptime[0]) * 1e9) - min(started) * TICK_NS
    return now_ns - max(age_ns, 0)


def _cpus_allowed(proc: Path, pids: Iterable[int]) -> int | None:
    """From Cpus_allowed_list of /proc/PID/status."""
    texts = (read(proc / str(pid) / "status") for pid in pids)
    cpus = [allowed_cpus(text) for text in texts if text is not None]
    return len(frozenset().union(*cpus)) or None if all(cpus) else None


def _interactive(proc: Path, pids: Iterable[int]) -> bool | None:
    answers = [is_interactive(proc, pid) for pid in pids]
    known = [answer for answer in answers if answer is not None]
    return any(known) if known else None


def cpu_cores(groups: Collection[Cgroup]) -> float | None:
    """Sum of the quotas: a shared one counts once; a main without one makes it unlimited."""
    limits = [group.cpu_limit() for group in groups]
    known = dict(limit for limit in limits if limit is not None)
    return sum(known.values()) if known and None not in limits else None


def _memory(groups: set[Cgroup]) -> tuple[int | None, int | None]:
    """Bytes used and the limit, summed: a shared level counts once."""
    levels = {level.folder: level for group in groups if (level := group.memory_level())}
    limits = [level.limit_bytes for level in levels.values()]
    if not levels:
        return None, None
    used = sum(level.used_bytes for level in levels.values())
    return used, None if None in limits else sum(limit or 0 for limit in limits)


def _shared_memory(proc: Path, pids: Iterable[int]) -> SharedMemory | None:
    """The /dev/shm of the mains, each once; unknown if one is out of reach.

    Read through /proc/PID/root, which takes the permission to ptrace.
    """
    found: dict[int, SharedMemory] = {}
    for pid in pids:
        place = shared_memory_of(proc, pid)
        if place is None:
            return None
        device, memory = place
        found[device] = memory
    if not found:
        return None
    return SharedMemory(
        sum(memory.size_bytes for memory in found.values()),
        sum(memory.used_bytes for memory in found.values()),
    )
