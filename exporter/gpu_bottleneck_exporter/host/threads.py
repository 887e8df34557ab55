"""The threads of one process except the first: which of them move, and what each waits for.

A thread that was not scheduled since the last look still waits for the same thing. So a scan
reads how often each was scheduled (schedstat), and looks closer only at those that were.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import MOST_LISTED, KeptFile, NoRoomError, numbered
from gpu_bottleneck_exporter.host.process import (
    ThreadTimes,
    comm_and_state,
    parse_schedstat,
    parse_thread_times,
)
from gpu_bottleneck_exporter.host.waits import Wait, wait_of, waits_on

MOST_THREADS = 128
"""Threads watched per process; of more, those that move and some of the rest."""
MOST_ASKED = 32
"""Threads whose state is read per look."""
SCAN_NS = 900_000_000
"""Between two scans: less than the tick of a second, so that each tick has one."""
_ALONE = 3
"""Link count of the task folder of a single-threaded process: its own two and the thread's."""
MOST_UNASKED = 8 * MOST_THREADS
"""Entries that wait for a reader: those of eight scans, so of seven seconds."""
POLLERS = ("iou-sqp-",)
"""Names of the kernel's threads that poll the rings of a process for it (SQPOLL, Linux 5.12)."""


class Used(NamedTuple):
    """What one thread used between two scans, in ns."""

    name: str
    cpu_ns: int
    queue_ns: int
    """Runnable without a CPU."""
    system_ns: int = 0
    """The kernel's part of `cpu_ns`, in ticks of the clock."""
    disk_ns: int = 0
    """Delay by block I/O, in ticks; 0 unless the kernel counts it."""

    @property
    def polls(self) -> bool:
        """Whether it is a thread of the kernel that polls rings."""
        return self.name.startswith(POLLERS)


class Thread:
    """One thread as last seen.

    Read through open descriptors: schedstat's always, which shows when it moves, others while it
    moves.
    """

    def __init__(self, folder: str, tid: int, pid: int | None) -> None:
        """`pid`: None if its descriptors cannot be asked for."""
        folder = f"{folder}/{tid}"
        self.tid = tid
        self.name = ""
        self.wait = Wait.OTHER
        self.descriptors: tuple[int, ...] | None = ()
        """Those that it waits on, if on sockets, pipes or polls; None: any of the process's."""
        self.moves = False
        """Whether it was scheduled between the last two scans."""
        self._pid = pid
        self._schedstat = KeptFile(f"{folder}/schedstat")
        self._stat = KeptFile(f"{folder}/stat")
        self._channel = KeptFile(f"{folder}/wchan")
        self._call = KeptFile(f"{folder}/syscall")
        self._counted: tuple[int, int, int] | None = None
        self._text: bytes | None = None
        """Its stat, as last asked."""
        self._times: ThreadTimes | None = None
        """Those in its stat when it last moved."""

    def rest(self) -> None:
        """Note that it does not move any more."""
        self.moves = False
        for file in (self._stat, self._channel, self._call):
            file.close()

    def moved(self) -> Used | None:
        """What it used since the last call; None if it was not scheduled since."""
        counted, before = parse_schedstat(self._schedstat.read()), self._counted
        self._counted = counted
        if counted is None:
            self.wait = Wait.GONE
        if counted is None or counted == before:
            return None
        times, self._times = self._times, parse_thread_times(self._text)
        if before is None or counted < before:  # another thread with the same number
            self._times = self._text = None
            return Used(self.name, 0, 0)
        used = Used(self.name, counted[0] - before[0], counted[1] - before[1])
        if times is None or self._times is None:
            return used
        return used._replace(
            system_ns=max(self._times.system_ns - times.system_ns, 0),
            disk_ns=max(self._times.disk_ns - times.disk_ns, 0),
        )

    def ask(self) -> Wait:
        """See what it does now."""
        self._text = self._stat.read()
        found = comm_and_state(self._text)
        if found is None:
            self.wait = Wait.GONE
            return self.wait
        self.name, letter = found
        self.wait, self.descriptors, self.moves = wait_of(letter, None), (), True
        if self.name.startswith(POLLERS) and self.wait is not Wait.GONE:
            self.wait = Wait.OTHER  # spins while there is nothing to do
        if self.wait in (Wait.UNKNOWN, Wait.DISK):  # the state letter does not say enough
            self.wait = wait_of(letter, self._channel.read(), self._call.read)
            if self.wait.on_descriptors and self.wait is not Wait.ACCEPT:
                on = None if self._pid is None else waits_on(self.tid, self._call.read())
                # Since Linux 6.12 a task may fall asleep without leaving a crowded CPU's run
                # queue at once; it has no wait channel then, but its system call is known.
                self.descriptors = () if on is None and not self.wait.on_any else on
        return self.wait


class Threads:
    """The threads of process `pid`, without the first."""

    def __init__(self, proc: Path, pid: int, *, same_pids: bool = True) -> None:
        """`proc`: the host's; `same_pids`: its pids are those of our own PID namespace."""
        self._same_pids = same_pids
        self.complete = True
        """Whether the last scan covered all threads."""
        self._used: list[Used] = []
        """What moving threads used, up to the last scan."""
        self.moving: frozenset[int] = frozenset()
        """Threads that moved between the last two scans."""
        self._pid = pid
        self._folder = proc / str(pid) / "task"
        self._threads: dict[int, Thread] = {}
        self._due_ns = 0
        self._links = 0
        """Link count of the folder at the last scan."""
        self._last = 0
        """Where the last choice among too many new threads began."""

    def close(self) -> None:
        """Close all descriptors: each file closes its own as it is dropped."""
        self._threads.clear()
        self.moving = frozenset()
        self._due_ns = 0

    def look(self, now_ns: int) -> list[Thread]:
        """What they do at monotonic `now_ns`; threads that do not move are as last seen."""
        links = _link_count(self._folder)
        if links == _ALONE:
            self.close()
            return []
        try:
            # A changed link count shows that threads came or went: servers start one per request.
            # A recreated pool may have as many as the old one, but some of these are gone.
            if now_ns >= self._due_ns or links != self._links:
                self._due_ns, self._links = now_ns + SCAN_NS, links
                self._scan()
            elif Wait.GONE in self._ask(self.moving):
                self._scan()
        except NoRoomError:
            self.close()  # some were counted, others were not: begin anew
            raise
        return [*self._threads.values()]

    def drain_used(self) -> list[Used]:
        """What moving threads used, from the last call up to the last scan."""
        used, self._used = self._used, []
        return used

    def _scan(self) -> None:
        if len(self._used) > MOST_UNASKED:  # nobody reads it
            self._used.clear()
        moving = self._count(self._threads)
        for tid in self.moving.difference(moving):
            if tid in self._threads:
                self._threads[tid].ask()
                self._threads[tid].rest()
        moving += self._count(self._follow(frozenset(moving)))
        self.moving = frozenset(self._threads.keys() & moving)  # without those that ended meanwhile
        self._ask(self.moving)

    def _count(self, tids: Iterable[int]) -> list[int]:
        """The `tids` that moved since they were last counted, and those never counted."""
        used = {tid: found for tid in tids if (found := self._threads[tid].moved())}
        self._used += used.values()
        return [*used]

    def _ask(self, tids: Collection[int]) -> list[Wait]:
        """At most `MOST_ASKED` of `tids`, each time others."""
        chosen = random.sample([*tids], min(len(tids), MOST_ASKED))
        return [self._threads[tid].ask() for tid in chosen]

    def _follow(self, moving: frozenset[int]) -> list[int]:
        """Drop dead threads, and resting ones if there are too many; return the new ones."""
        tids = {*numbered(self._folder, MOST_LISTED)} - {self._pid}
        for tid in self._threads.keys() - tids:
            del self._threads[tid]
        new = sorted(tids - self._threads.keys())
        self.complete = len(tids) <= MOST_THREADS
        if not self.complete:
            new = self._make_room(new, moving)
        for tid in new:
            pid = self._pid if self._same_pids else None
            self._threads[tid] = Thread(f"{self._folder}", tid, pid)
        return new

    def _make_room(self, new: list[int], moving: frozenset[int]) -> list[int]:
        # A runnable thread that was not scheduled waits for a CPU: it is not resting.
        resting = [
            tid
            for tid, thread in self._threads.items()
            if tid not in moving and thread.wait is not Wait.RUN
        ]
        for tid in resting[: len(self._threads) + len(new) - MOST_THREADS]:
            del self._threads[tid]
        room = max(MOST_THREADS - len(self._threads), 0)
        # The newest first: libraries start their pools long before the job starts to load.
        turn = bisect_left(new, self._last)
        chosen = (new[turn:] + new[:turn])[-room:] if room else []
        self._last = chosen[0] if chosen else self._last
        return chosen


def _link_count(folder: Path) -> int:
    """Link count of a task folder: number of threads plus two; 0 if the process has ended."""
    try:
        return os.stat(folder).st_nlink  # noqa: PTH116 - a third of the time
    except OSError:
        return 0
