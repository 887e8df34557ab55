"""Process trees below the holders of a GPU: workers that load data for it, and helpers that do not.

A worker hands data over through a pipe, a socket or memory that it shares with a main or another
worker. Helpers (loggers, monitors, shells) are programs started by execve that share none of these,
or only their output or a connection on which no main waits. A program may also hand over files if a
main waits for its exit, or for changes of files; so may its descendants.

Each GPU gets a share of the exporter's budget. Counters are cumulative: read in turn, the sums of
many workers are exact, only later.
"""

from __future__ import annotations

import math
import os
import random
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.accounting.stall import NEGLIGIBLE
from gpu_bottleneck_exporter.feeders.probe import child_token
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.descriptors import (
    descriptors,
    fields,
    is_file,
    is_socket,
    query_sockets,
)
from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, read, read_bounded
from gpu_bottleneck_exporter.host.process import command_line, has_ended, parent_of, stat_of
from gpu_bottleneck_exporter.host.programs import is_no_worker
from gpu_bottleneck_exporter.host.sockets import Ends, Sockets
from gpu_bottleneck_exporter.schedule import CADENCE, SMALL_GROUP, Every, RefreshSchedule

MAX_FOLLOWED = 8_192
"""Workers whose counters are read, over all GPUs: 5 000 take 13 MiB (tests/bench)."""
MAX_READS_PER_TICK = 512
"""Workers that are read per tick, over all GPUs, at 1.3 % of a core (tests/bench)."""
MAX_DEEPLY_PROBED = 64
"""Workers of one GPU with deep probes; they rotate every `Cadence.slow_ns`."""


class SamplingBudget(NamedTuple):
    """The sampling budget of one GPU's workers."""

    followed: int
    reads: int
    """Reads of counters per tick."""

    def rounds(self, workers: int) -> int:
        """Ticks in which all `workers` are read once."""
        # Half in one tick, half in the next.
        usual = 1 if workers <= SMALL_GROUP else CADENCE.sparse_factor
        return max(-(-workers // self.reads), usual)

    def is_prompt(self, workers: int) -> bool:
        """Whether `workers` are read as often as in a small tree."""
        return self.rounds(workers) <= CADENCE.sparse_factor


FULL_BUDGET = SamplingBudget(MAX_FOLLOWED, MAX_READS_PER_TICK)


def budget_of(gpus: int) -> SamplingBudget:
    """The budget of each of `gpus` GPUs."""
    return SamplingBudget(
        MAX_FOLLOWED // max(gpus, 1), max(MAX_READS_PER_TICK // max(gpus, 1), SMALL_GROUP)
    )


def select_workers(workers: AbstractSet[int], current: Collection[int], limit: int) -> set[int]:
    """Up to `limit` of `workers`: the `current` ones, then others at random."""
    if len(workers) <= limit:
        return set(workers)
    retained = [pid for pid in current if pid in workers][:limit]
    others = sorted(workers - {*retained})
    return {*retained, *random.sample(others, limit - len(retained))}


class RoundRobin:
    """A rotation over a changing set."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int, crowd: Collection[FeederProcess]) -> list[FeederProcess]:
        """Up to `count` next members of `crowd`."""
        members = list(crowd)
        first = self._next
        self._next += min(count, len(members))
        return [members[i % len(members)] for i in range(first, self._next)]


class DeeplyProbed:
    """The workers that currently get deep probes."""

    def __init__(self) -> None:
        self.members: list[FeederProcess] = []
        self._rotation = RoundRobin()
        self._choosing = Every(CADENCE.slow_ns)

    def choose_from(self, crowd: Mapping[int, FeederProcess], now_ns: int) -> None:
        """Choose from `crowd`, by pid; closes the deep probes of the others."""
        if len(crowd) <= MAX_DEEPLY_PROBED:
            self.members = list(crowd.values())
            return
        self.members = [process for process in self.members if crowd.get(process.pid) is process]
        if self._choosing.is_due(now_ns) or len(self.members) < MAX_DEEPLY_PROBED // 2:
            before, self.members = (
                self.members,
                self._rotation.take(MAX_DEEPLY_PROBED, crowd.values()),
            )
            for dropped in {*before}.difference(self.members):
                dropped.close_deep()


_OUTPUTS = frozenset({1, 2})
"""Descriptors of stdout and stderr, which a shell shares."""
_SHARED_MAPPINGS = re.compile(
    r"^\S+ rw.s \S+ (\S+) ([1-9][0-9]*) +/(?!dev/(?!shm/|zero|hugepages/))", re.MULTILINE
)
"""Device and inode of writable shared mappings in /proc/PID/maps, except devices'."""


class Waits:
    """Sampled waits of a main on descriptors."""

    def __init__(self) -> None:
        self.samples = 0
        self._on: Counter[int | None] = Counter()

    def note(self, on: Iterable[int | None]) -> None:
        """Add a sample; None: all descriptors of an epoll."""
        self.samples += 1
        self._on.update({*on})
        if self.samples > 4 * JUDGED.min_wait_samples:  # halves the weight of older ones
            self.samples //= 2
            halves = {number: count // 2 for number, count in self._on.items()}
            # Without zeros, as the pids of each program accumulate.
            self._on = Counter({number: count for number, count in halves.items() if count})

    def include(self, numbers: Collection[int]) -> bool:
        """Whether the main waits on one of `numbers`; true until enough samples."""
        count = sum(self._on[number] for number in (None, *numbers))
        return self.samples < JUDGED.min_wait_samples or count >= NEGLIGIBLE * self.samples

    def include_exit_of(self, child: int) -> bool:
        """Whether the main waits for a child's exit; false until enough samples."""
        count = sum(self._on[token] for pid in (0, child) for token in child_token(pid))
        return self.samples >= JUDGED.min_wait_samples and count >= NEGLIGIBLE * self.samples


class Channels(NamedTuple):
    """The channels by which a process may hand data over."""

    surely: bool = False
    """Whether it shares a private pipe, socket pair or memory with a feeder."""
    to_mains: Mapping[int, frozenset[int]] = {}
    """Descriptors by main: of the process's output, of connections, and of file watches."""
    parent: int = 0
    to_others: frozenset[int] = frozenset()
    """Programs at the other end of a channel."""


class _OpenFiles:
    """A process's open files, sockets and shared memory, read on first use."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.links = dict(descriptors(proc, pid))
        self.pid = pid
        self._proc = proc

    @cached_property
    def read(self) -> dict[str, frozenset[int]]:
        """Readable pipes and files, its own output excluded."""
        by_link: dict[str, frozenset[int]] = {}
        for number, mode in self._modes.items():
            if mode != os.O_WRONLY and number not in _OUTPUTS:
                link = self.links[number]
                by_link[link] = by_link.get(link, frozenset()) | {number}
        return by_link

    @cached_property
    def written(self) -> dict[int, str]:
        return {n: self.links[n] for n, mode in self._modes.items() if mode != os.O_RDONLY}

    @cached_property
    def _modes(self) -> dict[int, int]:
        """Access modes of pipes and files; O_RDWR if unknown."""
        pipes = [n for n, link in self.links.items() if link.startswith("pipe:")]
        files = [n for n, link in self.links.items() if is_file(link)]
        # At 12 µs each: a main has up to eight for each deeply probed worker.
        numbers, folder = [*pipes, *files][:512], f"{self._proc}/{self.pid}/fdinfo"
        texts = (
            memory_reads.call(self.pid, lambda: {n: read(f"{folder}/{n}") for n in numbers}) or {}
        )
        flags = {n: fields(texts.get(n) or "").get("flags", f"{os.O_RDWR}") for n in numbers}
        return {n: int(flag, 8) & os.O_ACCMODE for n, flag in flags.items()}

    @property
    def watches(self) -> frozenset[int]:
        watches = {"anon_inode:inotify", "anon_inode:[fanotify]"}
        return frozenset(number for number, link in self.links.items() if link in watches)

    @cached_property
    def unix(self) -> dict[int, tuple[int, bool]]:
        """The other end's creator, and whether either end has a name: a socketpair(2) has none."""
        numbers = [number for number, link in self.links.items() if is_socket(link)]
        try:
            peers = query_sockets(f"{self._proc}/{self.pid}/fd", self.pid, numbers, _unix_peer)
        except OSError:
            return {}
        return {number: peer for number, peer in peers.items() if peer}

    @cached_property
    def tcp(self) -> dict[Ends, int]:
        try:
            connections = Sockets(self._proc, self.pid).query()
        except OSError:
            return {}
        return {
            (connection.local, connection.remote): connection.fd
            for connection in connections
            if connection.connects
        }

    @cached_property
    def memory(self) -> frozenset[tuple[str, str]] | None:
        """Device and inode; None if unknown."""
        path = f"{self._proc}/{self.pid}/maps"
        part = memory_reads.call(self.pid, lambda: read_bounded(path, MAX_TABLE_BYTES))
        return frozenset(_SHARED_MAPPINGS.findall(part.text)) if part and part.whole else None


class _Program:
    """An inspected descendant of a main."""

    def __init__(self) -> None:
        self.due_ns = self.parent = 0
        self.is_own = False
        """Whether it was started by execve."""
        self.channels: Channels | None = None
        """Channels; None if only forked, or unreadable."""


class HelperFinder:
    """Finds the helpers among the descendants of one GPU's mains. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: our own procfs."""
        self._proc = proc
        self._known: dict[int, _Program] = {}
        self.undecided = False
        """Whether a program counts as a worker for lack of samples of its main."""
        self._recheck_ns = math.inf
        """Time of the next inspection of new programs."""
        self.helpers: set[int] = set()
        """Helpers as of the last `find`; a new set each time."""

    def find(self, mains: Mapping[int, Waits], workers: Collection[int]) -> set[int]:
        """The helpers among `workers`; none if these exceed `MAX_DEEPLY_PROBED`."""
        programs, crowded = self._known, len(workers) > MAX_DEEPLY_PROBED
        self._known = {} if crowded else {pid: programs.get(pid) or _Program() for pid in workers}
        self._inspect(mains, time.monotonic_ns())
        self.undecided = False
        judged = {pid: program.channels for pid, program in self._known.items() if program.channels}
        helpers = {pid for pid, channels in judged.items() if not self._hands_over(channels, mains)}
        awaited = {pid for pid in helpers if _is_awaited(pid, judged[pid], mains)}
        while below := {pid for pid in helpers - awaited if judged[pid].parent in awaited}:
            awaited |= below
        helpers -= awaited
        while feeding := {
            pid for pid in helpers if judged[pid].to_others & judged.keys() - helpers
        }:
            helpers -= feeding
        self.helpers = helpers
        return helpers

    def is_due(self, mains: Mapping[int, Waits]) -> bool:
        """Whether verdicts on helpers may change."""
        if time.monotonic_ns() >= self._recheck_ns:
            return True
        if self.undecided and all(
            waits.samples >= JUDGED.min_wait_samples for waits in mains.values()
        ):
            return True
        judged = (self._known[pid].channels for pid in self.helpers)
        return any(channels and self._hands_over(channels, mains) for channels in judged)

    def _hands_over(self, channels: Channels, mains: Mapping[int, Waits]) -> bool:
        to_mains = [(mains[pid], on) for pid, on in channels.to_mains.items() if pid in mains]
        if channels.surely:
            return True
        self.undecided |= any(waits.samples < JUDGED.min_wait_samples for waits, _ in to_mains)
        return any(waits.include(numbers) for waits, numbers in to_mains)

    def _inspect(self, mains: Collection[int], now_ns: int) -> None:
        due = [pid for pid, program in self._known.items() if now_ns >= program.due_ns]
        if now_ns >= self._recheck_ns:
            self._recheck_ns = math.inf
        opened = cache(lambda pid: _OpenFiles(self._proc, pid))
        command = cache(lambda pid: command_line(self._proc, pid).text)
        for pid in due:
            program = self._known[pid]
            program.parent = parent_of(self._proc, pid)
            # A process that was only forked has its parent's command line.
            if command(pid) and command(program.parent):
                program.is_own = command(pid) != command(program.parent)
        for pid in due:
            program = self._known[pid]
            channels = self._channels(opened(pid), mains, opened) if program.is_own else None
            program.channels = (channels or program.channels) if program.is_own else None
            lasts = program.channels is None or program.channels.surely
            # A new program may not have called execve or connected yet.
            is_new, pause_ns = not program.due_ns, CADENCE.rare_ns if lasts else CADENCE.probe_ns
            program.due_ns = now_ns + (CADENCE.gauge_ns if is_new else pause_ns)
            self._recheck_ns = min(self._recheck_ns, program.due_ns if is_new else math.inf)

    def _channels(
        self, program: _OpenFiles, mains: Collection[int], opened: Callable[[int], _OpenFiles]
    ) -> Channels | None:
        """None if its open files are unreadable."""
        if not program.links:
            return None
        others = {pid for pid, candidate in self._known.items() if candidate.is_own} - {program.pid}
        to_mains = {}
        for main in mains:
            certain, numbers = _joined(program, opened(main))
            if certain:
                return Channels(surely=True)
            to_mains[main] = numbers | opened(main).watches
        parent = self._known[program.pid].parent
        forked = parent in self._known and parent not in others
        if forked and any(_joined(program, opened(parent))):
            return Channels(surely=True)
        to_others = frozenset(pid for pid in others if any(_joined(program, opened(pid))))
        return Channels(
            parent=parent,
            to_mains={pid: on for pid, on in to_mains.items() if on},
            to_others=to_others,
        )


def _is_awaited(pid: int, channels: Channels, mains: Mapping[int, Waits]) -> bool:
    return channels.parent in mains and mains[channels.parent].include_exit_of(pid)


def _joined(program: _OpenFiles, other: _OpenFiles) -> tuple[bool, frozenset[int]]:
    """Whether `program` surely hands over to `other`, and descriptors of `other` on its output."""
    written = {n: (link, other.read.get(link)) for n, link in program.written.items()}
    shared = {n: numbers for n, (_, numbers) in written.items() if numbers}
    pipes = (n for n in shared if n not in {0, *_OUTPUTS} and written[n][0].startswith("pipe:"))
    peers = program.unix.values()
    pair = (other.pid, False) in peers
    if any(pipes) or pair or _share_memory(program, other):
        return True, frozenset()
    unix = {number for number, (pid, _) in other.unix.items() if pid == program.pid}
    ends = {(remote, local) for local, remote in program.tcp}
    tcp = {number for both, number in other.tcp.items() if both in ends}
    return False, frozenset().union(unix, tcp, *shared.values())


def _share_memory(program: _OpenFiles, other: _OpenFiles) -> bool:
    """Whether both write to the same memory, or that is unknown."""
    own = program.memory
    if not own and own is not None:
        return False
    theirs = other.memory
    return own is None or theirs is None or not own.isdisjoint(theirs)


def _unix_peer(_number: int, end: socket.socket) -> tuple[int, bool] | None:
    if end.family != socket.AF_UNIX:
        return None
    ucred = struct.Struct("=iII")  # pid, uid, gid
    raw = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size)
    pid = int(ucred.unpack(raw)[0])
    try:
        has_name = bool(end.getsockname() or end.getpeername())
    except OSError:
        return None
    return (pid, has_name) if pid else None


class Holders(NamedTuple):
    """The processes that hold a GPU."""

    pids: frozenset[int] | None = None
    """Process ids; None if unknown."""
    parent_uuid: str | None = None
    """Board of a MIG instance."""


class ProcessTree(NamedTuple):
    """The processes of a GPU, as discovered."""

    mains: AbstractSet[int]
    """Holders that run."""
    workers: AbstractSet[int] = frozenset()
    others: AbstractSet[int] = frozenset()
    """The mains of all GPUs, and the exporter with its ancestors."""
    holders: Holders = Holders()
    whole: bool = True
    """Whether `workers` is complete."""
    budget: SamplingBudget = FULL_BUDGET
    below: Mapping[int, AbstractSet[int]] = {}
    """Workers by main."""


class ProcessFamily:
    """The processes that feed one GPU."""

    def __init__(self, proc: Path, timeouts: AnswerTimeouts | None) -> None:
        """`proc`: the host's."""
        self.mains: dict[int, FeederProcess] = {}
        self.workers: dict[int, FeederProcess] = {}
        self.related: dict[int, FeederProcess] = {}
        """Kin and strangers."""
        self.searched_ns: int | None = None
        """Time of the last search for kin."""
        self.compilers: list[FeederProcess] = []
        """Compilers of kernels below mains: waiting for them is host code."""
        self.unfollowed: frozenset[int] = frozenset()
        """Workers whose counters are not read."""
        self.whole = True
        """Whether all workers are known."""
        self._ended_ns = Counter[str]()
        """CPU time of ended workers by tenant that parents do not count yet."""
        self._proc = proc
        self._timeouts = timeouts
        self._searching = RefreshSchedule()
        self.known: frozenset[int] = frozenset()
        """Workers, and the mains of all GPUs."""
        self.waits: dict[int, Waits] = {}
        self._auxiliary: dict[int, FeederProcess] = {}
        """Helpers, watched because a forkserver starts workers."""
        self._finder = HelperFinder(proc) if timeouts else None
        self.budget = FULL_BUDGET
        self._below: Mapping[int, AbstractSet[int]] = {}
        self._named: Mapping[int, str] = {}
        self.kin_of: Mapping[int, int] = {}
        """Mains by pid of their kin."""
        self.tenants: Mapping[int, str] = {}
        """Tenants of a shared GPU, by pid of mains, workers and kin."""
        self.tenant_sizes: Mapping[str, Mapping[str, int]] = {}
        """Mains and workers of each tenant, by role."""

    def name_tenants(self, mains: Mapping[int, str]) -> None:
        """Set the tenants of `mains`; empty unless the GPU is shared."""
        self._named = mains
        workers = {
            worker: name
            for main, name in mains.items()
            for worker in self._below.get(main, ())
            if worker in self.workers or worker in self.unfollowed
        }
        kin = {pid: mains[main] for pid, main in self.kin_of.items() if main in mains}
        by_role = {
            Role.MAIN: Counter(mains[pid] for pid in mains.keys() & self.mains.keys()),
            Role.WORKER: Counter(workers.values()),
        }
        self.tenants = {**kin, **workers, **mains}
        self.tenant_sizes = {
            name: {role: counts[name] for role, counts in by_role.items()}
            for name in {*mains.values()}
        }

    def adopt(self, tree: ProcessTree) -> tuple[int, int]:
        """Adopt a discovered tree. Returns the numbers of new mains and workers."""
        self.whole, self.budget, self._below = tree.whole, tree.budget, tree.below
        self.known = frozenset(tree.others | tree.workers)
        new_mains = self._replace(self.mains, tree.mains)
        self.waits = {pid: self.waits.get(pid) or Waits() for pid in self.mains}
        before = {
            pid for pid, process in self.workers.items() if not process.gone
        } | self.unfollowed
        self._follow(tree.workers)
        self.name_tenants(self._named)
        return new_mains, len((self.workers.keys() | self.unfollowed) - before)

    def _follow(self, workers: AbstractSet[int]) -> None:
        followed = select_workers(workers, [*self.workers, *self._auxiliary], self.budget.followed)
        self.unfollowed = frozenset(workers - followed)
        # A zombie remains a child until its parent reaps it, but is not a worker.
        followed -= {pid for pid in followed if self._is_zombie(pid)}
        new = followed - self.workers.keys() - self._auxiliary.keys()
        compilers = followed & {process.pid for process in self.compilers}
        before = self._finder.helpers if self._finder else set()
        auxiliary = followed & self._auxiliary.keys() - before
        auxiliary |= {
            pid for pid in sorted(new) if is_no_worker(self._proc, pid, self.mains, compilers)
        }
        if self._finder:
            helpers = self._finder.find(self.waits, followed - auxiliary)
            self._move(helpers, self.workers, self._auxiliary)
            self._move(before & followed - helpers, self._auxiliary, self.workers)
            auxiliary |= helpers
        self._replace(self._auxiliary, auxiliary)
        self._replace(self.workers, followed - auxiliary)
        self.compilers = [self._auxiliary[pid] for pid in compilers]

    @staticmethod
    def _move(
        pids: set[int], before: dict[int, FeederProcess], now: dict[int, FeederProcess]
    ) -> None:
        now |= {pid: before.pop(pid) for pid in pids & before.keys()}

    @property
    def is_undecided(self) -> bool:
        """Whether a main has too few samples to identify helpers."""
        return self._finder is not None and self._finder.undecided

    @property
    def worker_count(self) -> int:
        """Number of workers; a minimum unless `whole`."""
        return len(self.workers) + len(self.unfollowed)

    @property
    def is_prompt(self) -> bool:
        """Whether followed workers are read as often as in a small tree."""
        return self.budget.is_prompt(len(self.workers))

    @property
    def follows_all(self) -> bool:
        """Whether all workers are read as often as in a small tree."""
        return self.is_prompt and self.whole and not self.unfollowed

    def is_outdated(self) -> bool:
        """Whether a main or forkserver has started a process, or verdicts on helpers may change."""
        processes = (*self.mains.values(), *self._auxiliary.values())
        return any(process.has_unknown_child(self.known) for process in processes) or (
            self._finder is not None and self._finder.is_due(self.waits)
        )

    def is_kin_search_due(self, now_ns: int, holders: frozenset[int]) -> bool:
        """Whether a search for kin is due; also if `holders` of GPUs change."""
        since_ns = now_ns - (self.searched_ns or 0)
        # Limited, as kin may start and exit often.
        lost = any(self.related[pid].gone for pid in self.kin) and since_ns >= CADENCE.probe_ns
        if not self._searching.is_due(now_ns, holders) and not lost:
            return False
        self.searched_ns = now_ns
        return True

    def adopt_kin(self, pids: set[int], kin_of: Mapping[int, int] | None = None) -> None:
        """Replace the kin; strangers remain. `kin_of`: mains by pid."""
        self.kin_of = kin_of or {}
        self._adopt_related(pids, self.related.keys() - self.kin - pids)

    def adopt_strangers(self, pids: set[int]) -> None:
        """Replace the strangers."""
        self._adopt_related(self.kin, pids - self.kin)

    def _adopt_related(self, kin: set[int], strangers: set[int]) -> None:
        for pid in self.related.keys() - kin - strangers:
            self.related.pop(pid).close()
        for pid in kin | strangers:
            if pid not in self.related:
                # A peer may hang in an execve.
                if stat_of(self._proc, pid) is None:
                    continue
                self.related[pid] = FeederProcess(self._proc, pid, self._timeouts)
            self.related[pid].join(kin=pid in kin)

    def forget_related(self) -> None:
        """Remove kin and strangers; schedule a new search."""
        self._adopt_related(set(), set())
        self._searching = RefreshSchedule()

    @property
    def kin(self) -> set[int]:
        """Related processes that belong to the job."""
        return {pid for pid, process in self.related.items() if process.stranger is None}

    def deduct_counted(self, children_ns: Mapping[str, int]) -> Counter[str]:
        """The part of parents' `children_ns`, by tenant, that was counted before children ended.

        The balance is halved at each call, as a parent may reap late, or never.
        """
        counted_ns = Counter(
            {name: min(self._ended_ns[name], ns) for name, ns in children_ns.items()}
        )
        left = ((name, (ns - counted_ns[name]) // 2) for name, ns in self._ended_ns.items())
        self._ended_ns = Counter({name: ns for name, ns in left if ns})
        return counted_ns

    def job_related(self, idle: float) -> list[FeederProcess]:
        """The kin, and strangers that work."""
        related = self.related.values()
        return [
            process
            for process in related
            if process.stranger is None or process.stranger.works(idle)
        ]

    def close(self) -> None:
        """Close all descriptors."""
        self.forget_related()
        for process in (*self.mains.values(), *self.workers.values(), *self._auxiliary.values()):
            process.close()

    def _replace(self, processes: dict[int, FeederProcess], pids: AbstractSet[int]) -> int:
        gone = {pid for pid, process in processes.items() if process.gone}
        for pid in (processes.keys() - pids) | gone:
            process = processes.pop(pid)
            if processes is self.workers:
                # Its parent will count this time.
                self._ended_ns[self.tenants.get(pid, "")] += process.used_ns
            process.close()
        new = pids - processes.keys()
        for pid in new:
            processes[pid] = FeederProcess(self._proc, pid, self._timeouts)
        return len(new)

    def _is_zombie(self, pid: int) -> bool:
        if pid in self.workers and not self.workers[pid].gone:
            if not self.follows_all:
                last = self.workers[pid].reader.last
                return last is not None and last.ended
            return self.workers[pid].probe(0).first is Activity.GONE
        stat = stat_of(self._proc, pid)
        if stat is None:  # a known process that does not answer retains its role
            return pid not in self._auxiliary or has_ended(self._proc, pid)
        return stat.ended
