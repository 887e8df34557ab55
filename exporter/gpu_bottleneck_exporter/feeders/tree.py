"""The descendants of the processes that hold a GPU, and which of them load for it.

Those that load nothing: loggers, monitors, servers of metrics, shells. A worker hands over what it
loads: through a pipe, a socket or memory that it shares with a main or with another worker. A
program of its own that shares none of these is a helper, however much it runs. So is one that
shares only its output or a connection, if no main is seen to wait on that. One whose end a main
waits for may hand over files, and so may what it has started, or any of them if a main waits for
changes of files. What was forked from its parent without an execve counts as a worker.

Of a crowd of workers, each GPU gets a share of the exporter's budget. A process's counters say what
it used since they were last read, however long ago. Read in turn, the sums of a crowd are as exact
as those of a few, only later. Processes beyond `MOST_FOLLOWED` are in no sum. Deep probes go to a
few workers at a time.
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
from gpu_bottleneck_exporter.accounting.stall import NEGLIGIBLE
from gpu_bottleneck_exporter.feeders.probe import child_token
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
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
from gpu_bottleneck_exporter.schedule import (
    FEW,
    HALF_AS_OFTEN,
    OFTEN_NS,
    SELDOM_NS,
    SHORTLY_NS,
    STEADY_NS,
    Every,
    RefreshSchedule,
)

MOST_FOLLOWED = 8_192
"""Workers whose counters are read at all, over all GPUs: 5 000 take 13 MiB (tests/bench)."""
READS_PER_TICK = 512
"""Those that are read per tick, over all GPUs: so many cost 1.3 % of a core (tests/bench)."""
CLOSELY = 64
"""Workers of one GPU that get deep probes at a time; after `OFTEN_NS` others do."""


class SamplingBudget(NamedTuple):
    """What may be spent on the workers of one GPU."""

    followed: int
    reads: int
    """Per tick."""

    def rounds(self, workers: int) -> int:
        """Ticks in which each of so many `workers` is read once."""
        usual = 1 if workers <= FEW else HALF_AS_OFTEN  # half in one tick, half in the next
        return max(-(-workers // self.reads), usual)

    def is_prompt(self, workers: int) -> bool:
        """Whether so many workers are read as often as those of a small tree."""
        return self.rounds(workers) <= HALF_AS_OFTEN


WHOLE = SamplingBudget(MOST_FOLLOWED, READS_PER_TICK)


def share_of(gpus: int) -> SamplingBudget:
    """The allowance of each of so many `gpus`."""
    return SamplingBudget(MOST_FOLLOWED // max(gpus, 1), max(READS_PER_TICK // max(gpus, 1), FEW))


def chosen(workers: AbstractSet[int], known: Collection[int], most: int) -> set[int]:
    """At most `most` of `workers`: those `known`, then others at random."""
    if len(workers) <= most:
        return set(workers)
    stay = [pid for pid in known if pid in workers][:most]
    others = sorted(workers - {*stay})
    return {*stay, *random.sample(others, most - len(stay))}


class RoundRobin:
    """Whose turn it is, of a crowd that changes."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int, crowd: Collection[Process]) -> list[Process]:
        """The next `count` of `crowd`, or all."""
        members = list(crowd)
        first = self._next
        self._next += min(count, len(members))
        return [members[i % len(members)] for i in range(first, self._next)]


class DeeplyProbed:
    """Workers of a crowd that get deep probes for now."""

    def __init__(self) -> None:
        self.members: list[Process] = []
        self._turns = RoundRobin()
        self._choosing = Every(OFTEN_NS)

    def choose_from(self, crowd: Mapping[int, Process], now_ns: int) -> None:
        """Choose among `crowd`, by pid, at monotonic `now_ns`; others close what they had open."""
        if len(crowd) <= CLOSELY:
            self.members = list(crowd.values())
            return
        self.members = [one for one in self.members if crowd.get(one.pid) is one]
        if self._choosing.is_due(now_ns) or len(self.members) < CLOSELY // 2:
            before, self.members = self.members, self._turns.take(CLOSELY, crowd.values())
            for process in {*before}.difference(self.members):
                process.close_deep()


MIN_LOOKS = 30
"""Looks at a main, three seconds of them, before it counts as never waiting on a descriptor."""
_MAX_LOOKS = 4 * MIN_LOOKS
"""Of more, those before count half."""
_MOST_OPEN = 512
"""Pipes and files of a process whose access modes are read, at 12 µs each: a main has up to eight
for each of its workers that are looked at."""
_OUTPUT, _ERRORS = 1, 2
"""Numbers of the standard streams, which a shell gives to many."""
_WATCHES = frozenset({"anon_inode:inotify", "anon_inode:[fanotify]"})
"""Links of descriptors that tell of new and changed files."""
_CREDENTIALS = struct.Struct("=iII")
"""struct ucred: pid, uid, gid."""
_SHARED = re.compile(
    r"^\S+ rw.s \S+ (\S+) ([1-9][0-9]*) +/(?!dev/(?!shm/|zero|hugepages/))", re.MULTILINE
)
"""Device and inode of memory in /proc/PID/maps that its processes write, but for that of devices.
"""


class Waits:
    """Descriptors on which a main was seen to wait, while its GPU idled at times."""

    def __init__(self) -> None:
        self.looks = 0
        self._on: Counter[int | None] = Counter()

    def note(self, on: Iterable[int | None]) -> None:
        """Add one look; None: on any of those in an epoll."""
        self.looks += 1
        self._on.update({*on})
        if self.looks > _MAX_LOOKS:
            self.looks //= 2
            halves = {number: count // 2 for number, count in self._on.items()}
            # Without zeros: a main that waits for each of its programs waits for new pids forever.
            self._on = Counter({number: count for number, count in halves.items() if count})

    def are_on(self, numbers: Collection[int]) -> bool:
        """Whether the main waits on one of `numbers`, or too little is known."""
        count = sum(self._on[number] for number in (None, *numbers))
        return self.looks < MIN_LOOKS or count >= NEGLIGIBLE * self.looks

    def are_for(self, child: int) -> bool:
        """Whether the main waits for the end of a child, as far as it is known."""
        count = sum(self._on[token] for pid in (0, child) for token in child_token(pid))
        return self.looks >= MIN_LOOKS and count >= NEGLIGIBLE * self.looks


class Channels(NamedTuple):
    """How a process may hand data over."""

    surely: bool = False
    """It writes a pipe, a socket pair or memory that was made for it and a main or a worker."""
    to_mains: Mapping[int, frozenset[int]] = {}
    """By main, its descriptors that tell of data from the process: the other ends of its output and
    of its connections, and watches of files."""
    parent: int = 0
    to_others: frozenset[int] = frozenset()
    """Programs below the same mains that are at the other end of one."""


class _Opened:
    """What a process has open; read as it is asked for."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.links = dict(descriptors(proc, pid))
        self.pid = pid
        self._proc = proc

    @cached_property
    def read(self) -> dict[str, frozenset[int]]:
        """Numbers by pipe and file that it may read, but for its own output."""
        found: dict[str, frozenset[int]] = {}
        for number, mode in self._modes.items():
            if mode != os.O_WRONLY and number not in {_OUTPUT, _ERRORS}:
                link = self.links[number]
                found[link] = found.get(link, frozenset()) | {number}
        return found

    @cached_property
    def written(self) -> dict[int, str]:
        """Pipes and files that it may write to, by number."""
        return {n: self.links[n] for n, mode in self._modes.items() if mode != os.O_RDONLY}

    @cached_property
    def _modes(self) -> dict[int, int]:
        """Access modes of its first pipes and files, by number; O_RDWR if unknown."""
        pipes = [n for n, link in self.links.items() if link.startswith("pipe:")]
        files = [n for n, link in self.links.items() if is_file(link)]
        numbers, folder = [*pipes, *files][:_MOST_OPEN], f"{self._proc}/{self.pid}/fdinfo"
        texts = (
            memory_reads.call(self.pid, lambda: {n: read(f"{folder}/{n}") for n in numbers}) or {}
        )
        flags = {n: fields(texts.get(n) or "").get("flags", f"{os.O_RDWR}") for n in numbers}
        return {n: int(flag, 8) & os.O_ACCMODE for n, flag in flags.items()}

    @property
    def watches(self) -> frozenset[int]:
        """Numbers of those that tell of new and changed files."""
        return frozenset(number for number, link in self.links.items() if link in _WATCHES)

    @cached_property
    def unix(self) -> dict[int, tuple[int, bool]]:
        """UNIX sockets by number: the pid that made the other end, and whether either has a name.

        Neither end of a socketpair(2) has one.
        """
        numbers = [number for number, link in self.links.items() if is_socket(link)]
        try:
            found = query_sockets(f"{self._proc}/{self.pid}/fd", self.pid, numbers, _unix_peer)
        except OSError:
            return {}
        return {number: peer for number, peer in found.items() if peer}

    @cached_property
    def tcp(self) -> dict[Ends, int]:
        try:
            found = Sockets(self._proc, self.pid).query()
        except OSError:
            return {}
        return {(one.local, one.remote): one.fd for one in found if one.connects}

    @cached_property
    def memory(self) -> frozenset[tuple[str, str]] | None:
        """Shared memory by device and inode; None if it is not known."""
        path = f"{self._proc}/{self.pid}/maps"
        part = memory_reads.call(self.pid, lambda: read_bounded(path, MAX_TABLE_BYTES))
        return frozenset(_SHARED.findall(part.text)) if part and part.whole else None


class _Program:
    """A descendant of a main, as last looked at."""

    def __init__(self) -> None:
        self.due_ns = self.parent = 0
        self.is_own = False
        """Whether it was started by execve."""
        self.channels: Channels | None = None
        """None: only forked, or not to be seen."""


class HelperFinder:
    """Finds the helpers among the descendants of one GPU's mains. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: our own procfs."""
        self._proc = proc
        self._known: dict[int, _Program] = {}
        self.undecided = False
        """Whether one of them counts as a worker for want of looks at its main."""
        self._again_ns = math.inf
        """When to look again at those that were new."""
        self.helpers: set[int] = set()
        """Those last found; a new set each time."""

    def find(self, mains: Mapping[int, Waits], workers: Collection[int]) -> set[int]:
        """The pids among `workers`, descendants of `mains`, that load nothing.

        None of a crowd: a few helpers among so many workers change little.
        """
        known, crowded = self._known, len(workers) > CLOSELY
        self._known = {} if crowded else {pid: known.get(pid) or _Program() for pid in workers}
        self._look(mains, time.monotonic_ns())
        self.undecided = False
        judged = {pid: one.channels for pid, one in self._known.items() if one.channels}
        helpers = {pid for pid, one in judged.items() if not self._hands_over(one, mains)}
        ending = {pid for pid in helpers if _is_awaited(pid, judged[pid], mains)}
        while below := {pid for pid in helpers - ending if judged[pid].parent in ending}:
            ending |= below
        helpers -= ending
        while feeding := {
            pid for pid in helpers if judged[pid].to_others & judged.keys() - helpers
        }:
            helpers -= feeding
        self.helpers = helpers
        return helpers

    def is_due(self, mains: Mapping[int, Waits]) -> bool:
        """Whether more may be known by now of those that were undecided, new, or not waited for.

        Each new program of a main may have another descriptor there.
        """
        if time.monotonic_ns() >= self._again_ns:
            return True
        if self.undecided and all(waits.looks >= MIN_LOOKS for waits in mains.values()):
            return True
        judged = (self._known[pid].channels for pid in self.helpers)
        return any(channels and self._hands_over(channels, mains) for channels in judged)

    def _hands_over(self, channels: Channels, mains: Mapping[int, Waits]) -> bool:
        to_mains = [(mains[pid], on) for pid, on in channels.to_mains.items() if pid in mains]
        if channels.surely:
            return True
        self.undecided |= any(waits.looks < MIN_LOOKS for waits, _ in to_mains)
        return any(waits.are_on(numbers) for waits, numbers in to_mains)

    def _look(self, mains: Collection[int], now_ns: int) -> None:
        due = [pid for pid, one in self._known.items() if now_ns >= one.due_ns]
        if now_ns >= self._again_ns:
            self._again_ns = math.inf
        opened = cache(lambda pid: _Opened(self._proc, pid))
        command = cache(lambda pid: command_line(self._proc, pid).text)
        for pid in due:
            one = self._known[pid]
            one.parent = parent_of(self._proc, pid)
            # One that was only forked has its parent's command line; without both, nothing is new.
            if command(pid) and command(one.parent):
                one.is_own = command(pid) != command(one.parent)
        for pid in due:
            one = self._known[pid]
            found = self._channels(opened(pid), mains, opened) if one.is_own else None
            one.channels = (found or one.channels) if one.is_own else None
            lasts = one.channels is None or one.channels.surely
            # A new one may not have called execve yet, nor have connected.
            is_new, pause_ns = not one.due_ns, SELDOM_NS if lasts else SHORTLY_NS
            one.due_ns = now_ns + (STEADY_NS if is_new else pause_ns)
            self._again_ns = min(self._again_ns, one.due_ns if is_new else math.inf)

    def _channels(
        self, program: _Opened, mains: Collection[int], opened: Callable[[int], _Opened]
    ) -> Channels | None:
        """None if we may not see what it has open."""
        if not program.links:
            return None
        others = {pid for pid, one in self._known.items() if one.is_own} - {program.pid}
        to_mains = {}
        for main in mains:
            surely, numbers = _joined(program, opened(main))
            if surely:
                return Channels(surely=True)
            to_mains[main] = numbers | opened(main).watches
        parent = self._known[program.pid].parent
        forked = parent in self._known and parent not in others
        if forked and any(_joined(program, opened(parent))):
            return Channels(surely=True)
        found = frozenset(pid for pid in others if any(_joined(program, opened(pid))))
        return Channels(
            parent=parent, to_mains={pid: on for pid, on in to_mains.items() if on}, to_others=found
        )


def _is_awaited(pid: int, channels: Channels, mains: Mapping[int, Waits]) -> bool:
    """Whether a main waits until its child `pid` ends, which may hand over files."""
    return channels.parent in mains and mains[channels.parent].are_for(pid)


def _joined(program: _Opened, other: _Opened) -> tuple[bool, frozenset[int]]:
    """Whether `program` surely hands over to `other`, and what that has open of its output."""
    written = {n: (link, other.read.get(link)) for n, link in program.written.items()}
    shared = {n: numbers for n, (_, numbers) in written.items() if numbers}
    pipes = (n for n in shared if n > _ERRORS and written[n][0].startswith("pipe:"))
    peers = program.unix.values()
    pair = (other.pid, False) in peers
    if any(pipes) or pair or _share_memory(program, other):
        return True, frozenset()
    unix = {number for number, (pid, _) in other.unix.items() if pid == program.pid}
    ends = {(remote, local) for local, remote in program.tcp}
    tcp = {number for both, number in other.tcp.items() if both in ends}
    return False, frozenset().union(unix, tcp, *shared.values())


def _share_memory(program: _Opened, other: _Opened) -> bool:
    """Whether both write to the same memory; true if that is not known."""
    own = program.memory
    if not own and own is not None:
        return False
    theirs = other.memory
    return own is None or theirs is None or not own.isdisjoint(theirs)


def _unix_peer(_number: int, one: socket.socket) -> tuple[int, bool] | None:
    if one.family != socket.AF_UNIX:
        return None
    raw = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid = int(_CREDENTIALS.unpack(raw)[0])
    try:
        named = bool(one.getsockname() or one.getpeername())
    except OSError:
        return None
    return (pid, named) if pid else None


class Holders(NamedTuple):
    """The processes that hold a GPU."""

    pids: frozenset[int] | None = None
    """None: unknown."""
    parent_uuid: str | None = None
    """Of a MIG instance: its board."""


class ProcessTree(NamedTuple):
    """Who belongs to a GPU, as discovered."""

    mains: AbstractSet[int]
    """Those of its holders that are there."""
    workers: AbstractSet[int] = frozenset()
    """Their descendants."""
    others: AbstractSet[int] = frozenset()
    """The mains of all GPUs, as one main may have started another; and ourselves."""
    holders: Holders = Holders()
    whole: bool = True
    """Whether `workers` are all of them."""
    share: SamplingBudget = WHOLE
    """What may be spent on them."""


class Family:
    """The processes that feed one GPU: its holders (mains), their workers, and related ones.

    As last discovered; those that stay keep their counters.
    """

    def __init__(self, proc: Path, timeouts: AnswerTimeouts | None) -> None:
        """`proc`: the host's."""
        self.mains: dict[int, Process] = {}
        self.workers: dict[int, Process] = {}
        self.related: dict[int, Process] = {}
        """They feed it without descending from a main: kin, and strangers that may do enough."""
        self.searched_ns: int | None = None
        """When kin were last sought."""
        self.compilers: list[Process] = []
        """Descendants of mains that compile kernels: who waits for them does so itself."""
        self.unfollowed: frozenset[int] = frozenset()
        """Workers of which nothing is known but that they are there."""
        self.whole = True
        """Whether these and the workers are all."""
        self._ended_ns = 0
        """CPU time of workers that ended and that no parent's counters have told of yet."""
        self._proc = proc
        self._timeouts = timeouts
        self._searching = RefreshSchedule()
        self.known: frozenset[int] = frozenset()
        """Processes that are sampled by themselves, or need not be."""
        self.waits: dict[int, Waits] = {}
        """By main, what it waits on."""
        self._auxiliary: dict[int, Process] = {}
        """They load nothing, but a forkserver starts workers."""
        self._finder = HelperFinder(proc) if timeouts else None
        self.share = WHOLE
        """What may be spent on workers."""

    def adopt(self, tree: ProcessTree) -> tuple[int, int]:
        """Take over a newly discovered tree; how many of its mains and workers are new."""
        self.whole, self.share = tree.whole, tree.share
        self.known = frozenset(tree.others | tree.workers)
        came = self._replace(self.mains, tree.mains)
        self.waits = {pid: self.waits.get(pid) or Waits() for pid in self.mains}
        before = {pid for pid, one in self.workers.items() if not one.gone} | self.unfollowed
        self._follow(tree.workers)
        return came, len((self.workers.keys() | self.unfollowed) - before)

    def _follow(self, workers: AbstractSet[int]) -> None:
        followed = chosen(workers, [*self.workers, *self._auxiliary], self.share.followed)
        self.unfollowed = frozenset(workers - followed)
        # A zombie is a child until its parent asks for it: known, but no worker any more.
        followed -= {pid for pid in followed if self._is_zombie(pid)}
        new = followed - self.workers.keys() - self._auxiliary.keys()
        compilers = followed & {one.pid for one in self.compilers}
        # Helpers may turn out to be workers.
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
    def _move(pids: set[int], before: dict[int, Process], now: dict[int, Process]) -> None:
        """Change the role of those of `pids` that are known; their counters go on."""
        now |= {pid: before.pop(pid) for pid in pids & before.keys()}

    @property
    def is_undecided(self) -> bool:
        """Whether too little is known of a main's waits to tell its helpers from its workers."""
        return self._finder is not None and self._finder.undecided

    @property
    def worker_count(self) -> int:
        """Number of workers, as far as `whole` says so."""
        return len(self.workers) + len(self.unfollowed)

    @property
    def is_prompt(self) -> bool:
        """Whether the workers that are read are read as often as those of a small tree."""
        return self.share.is_prompt(len(self.workers))

    @property
    def follows_all(self) -> bool:
        """Whether all workers are read as often."""
        return self.is_prompt and self.whole and not self.unfollowed

    def is_outdated(self) -> bool:
        """Whether a main or a forkserver has started a process since the tree was discovered.

        Or whether by now more is known of those that may be helpers.
        """
        processes = (*self.mains.values(), *self._auxiliary.values())
        return any(process.has_unknown_child(self.known) for process in processes) or (
            self._finder is not None and self._finder.is_due(self.waits)
        )

    def is_kin_search_due(self, now_ns: int, holders: frozenset[int]) -> bool:
        """Whether to seek kin; `holders` of all GPUs are none. If so, it is due again later."""
        since_ns = now_ns - (self.searched_ns or 0)
        # Kin may come and go many times a second.
        lost = any(self.related[pid].gone for pid in self.kin) and since_ns >= SHORTLY_NS
        if not self._searching.is_due(now_ns, holders) and not lost:
            return False
        self.searched_ns = now_ns
        return True

    def adopt_kin(self, pids: set[int]) -> None:
        """Take over newly found kin; strangers stay."""
        self._adopt_related(pids, self.related.keys() - self.kin - pids)

    def adopt_strangers(self, pids: set[int]) -> None:
        """Take over newly found strangers."""
        self._adopt_related(self.kin, pids - self.kin)

    def _adopt_related(self, kin: set[int], strangers: set[int]) -> None:
        for pid in self.related.keys() - kin - strangers:
            self.related.pop(pid).close()
        for pid in kin | strangers:
            if pid not in self.related:
                # The kernel names peers without asking them: one may hang in an execve.
                if stat_of(self._proc, pid) is None:
                    continue
                self.related[pid] = Process(self._proc, pid, self._timeouts)
            self.related[pid].join(kin=pid in kin)

    def forget_related(self) -> None:
        """Drop kin and strangers, to be sought again."""
        self._adopt_related(set(), set())
        self._searching = RefreshSchedule()

    @property
    def kin(self) -> set[int]:
        """Related processes that are no strangers."""
        return {pid for pid, one in self.related.items() if one.stranger is None}

    def take_ended(self, children_ns: int) -> int:
        """How much of `children_ns`, which parents tell of ended children, has been counted before.

        The rest is halved at each call, as a parent may reap late, or never.
        """
        known = min(self._ended_ns, children_ns)
        self._ended_ns = (self._ended_ns - known) // 2
        return known

    def in_the_job(self, idle: float) -> list[Process]:
        """The kin, with strangers whose work, not the network, is what is waited for."""
        related = self.related.values()
        return [one for one in related if one.stranger is None or one.stranger.works(idle)]

    def close(self) -> None:
        """Give all descriptors back."""
        self.forget_related()
        for process in (*self.mains.values(), *self.workers.values(), *self._auxiliary.values()):
            process.close()

    def _replace(self, processes: dict[int, Process], pids: AbstractSet[int]) -> int:
        gone = {pid for pid, process in processes.items() if process.gone}
        for pid in (processes.keys() - pids) | gone:
            process = processes.pop(pid)
            if processes is self.workers:
                # Its parent's counters will tell of this time once more.
                self._ended_ns += process.used_ns
            process.close()
        new = pids - processes.keys()
        for pid in new:
            processes[pid] = Process(self._proc, pid, self._timeouts)
        return len(new)

    def _is_zombie(self, pid: int) -> bool:
        if pid in self.workers and not self.workers[pid].gone:
            if not self.follows_all:
                last = self.workers[pid].reader.last
                return last is not None and last.ended
            return self.workers[pid].probe(0).first is Activity.GONE
        stat = stat_of(self._proc, pid)
        if stat is None:  # of one that does not answer, but is known, nothing is new
            return pid not in self._auxiliary or has_ended(self._proc, pid)
        return stat.ended
