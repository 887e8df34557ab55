"""Descendants of a main that load nothing: loggers, monitors, servers of metrics, shells.

A worker hands over what it loads: through a pipe, a socket or memory that it shares with a main or
with another worker. A program of its own that shares none of these is a helper, however much it
runs. So is one that shares only its output or a connection, if no main is seen to wait on that. One
whose end a main waits for may hand over files, and so may what it has started, or any of them if a
main waits for changes of files.
What was forked from its parent without an execve counts as a worker.
"""

from __future__ import annotations

import math
import os
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import HARDLY
from gpu_bottleneck_exporter.feeders.crowd import CLOSELY
from gpu_bottleneck_exporter.feeders.probe import child_token
from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.descriptors import ask, descriptors, fields, is_file, is_socket
from gpu_bottleneck_exporter.host.files import MANY_BYTES, read, read_part
from gpu_bottleneck_exporter.host.process import command_line, stat_of
from gpu_bottleneck_exporter.host.sockets import Ends, Sockets
from gpu_bottleneck_exporter.schedule import SELDOM_NS, SHORTLY_NS, STEADY_NS

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
        return self.looks < MIN_LOOKS or count >= HARDLY * self.looks

    def are_for(self, child: int) -> bool:
        """Whether the main waits for the end of a child, as far as it is known."""
        count = sum(self._on[token] for pid in (0, child) for token in child_token(pid))
        return self.looks >= MIN_LOOKS and count >= HARDLY * self.looks


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
        texts = aside.call(self.pid, lambda: {n: read(f"{folder}/{n}") for n in numbers}) or {}
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
            found = ask(f"{self._proc}/{self.pid}/fd", self.pid, numbers, _unix_peer)
        except OSError:
            return {}
        return {number: peer for number, peer in found.items() if peer}

    @cached_property
    def tcp(self) -> dict[Ends, int]:
        try:
            found = Sockets(self._proc, self.pid).all()
        except OSError:
            return {}
        return {(one.local, one.remote): one.fd for one in found if one.connects}

    @cached_property
    def memory(self) -> frozenset[tuple[str, str]] | None:
        """Shared memory by device and inode; None if it is not known."""
        path = f"{self._proc}/{self.pid}/maps"
        part = aside.call(self.pid, lambda: read_part(path, MANY_BYTES))
        return frozenset(_SHARED.findall(part.text)) if part and part.whole else None


class _Program:
    """A descendant of a main, as last looked at."""

    def __init__(self) -> None:
        self.due_ns = 0
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
            # A process that was only forked has its parent's command line.
            parent = command(stat.parent) if (stat := stat_of(self._proc, pid)) else ""
            self._known[pid].is_own = bool(parent) and command(pid) not in {"", parent}
        for pid in due:
            one = self._known[pid]
            one.channels = self._channels(opened(pid), mains, opened) if one.is_own else None
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
        stat = stat_of(self._proc, program.pid)
        parent = stat.parent if stat else 0
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
