"""Threads of one process except the first, and their waits.

Only those whose schedstat changed are sampled: others wait as before.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import MAX_LISTED, FileLimitError, KeptFile, list_numbers
from gpu_bottleneck_exporter.host.process import (
    ThreadTimes,
    comm_and_state,
    parse_schedstat,
    parse_thread_times,
)
from gpu_bottleneck_exporter.host.waits import Wait, wait_of, waits_on

MAX_WATCHED_THREADS = 128
"""Threads watched per process, moving ones first."""
_MAX_SAMPLED_THREADS = 32
"""Threads sampled at a time per process."""
SCAN_INTERVAL_NS = 900_000_000
"""Scan interval, less than a tick of 1 s."""
_SINGLE_THREADED_LINKS = 3
"""Link count of a single-threaded process's task folder."""
MAX_PENDING_USAGE = 8 * MAX_WATCHED_THREADS
"""Usage records of eight scans, about 7 s."""


class ThreadUsage(NamedTuple):
    """Usage of one thread between two scans, in ns."""

    name: str
    cpu_ns: int
    queue_ns: int
    """Run-queue delay."""
    system_ns: int = 0
    """Kernel part of `cpu_ns`, with the resolution of a clock tick."""
    disk_ns: int = 0
    """Block I/O delay, likewise; 0 unless the kernel counts it."""
    missed: bool = False
    """Whether samples missed it."""

    @property
    def polls(self) -> bool:
        """Whether it is a kernel thread that polls rings (SQPOLL, Linux 5.12)."""
        return _polls(self.name)


def _polls(name: str) -> bool:
    return name.startswith("iou-sqp-")


class Thread:
    """One thread as last sampled; its schedstat remains open."""

    def __init__(self, folder: str, tid: int, pid: int | None) -> None:
        """`pid`: None if its descriptors cannot be queried."""
        folder = f"{folder}/{tid}"
        self.tid = tid
        self.name = ""
        self.wait = Wait.OTHER
        self.descriptors: tuple[int, ...] | None = ()
        """Descriptors that it waits on; None: any of the process's."""
        self.moves = False
        """Whether it was scheduled between the last two scans."""
        self._pid = pid
        self._schedstat = KeptFile(f"{folder}/schedstat")
        self._stat = KeptFile(f"{folder}/stat")
        self._channel = KeptFile(f"{folder}/wchan")
        self._call = KeptFile(f"{folder}/syscall")
        self._counters: tuple[int, int, int] | None = None
        self._text: bytes | None = None
        """Last stat."""
        self._times: ThreadTimes | None = None
        """Times when it last moved."""

    def mark_asleep(self) -> None:
        """Close the files for moving threads."""
        self.moves = False
        for file in (self._stat, self._channel, self._call):
            file.close()

    def take_usage(self) -> ThreadUsage | None:
        """Usage since the last call; None if not scheduled."""
        counters, before = parse_schedstat(self._schedstat.read()), self._counters
        self._counters = counters
        if counters is None:
            self.wait = Wait.GONE
        if counters is None or counters == before:
            return None
        times, self._times = self._times, parse_thread_times(self._text)
        if before is None or counters < before:  # another thread with the same number
            self._times = self._text = None
            return ThreadUsage(self.name, 0, 0)
        used = ThreadUsage(self.name, counters[0] - before[0], counters[1] - before[1])
        if times is None or self._times is None:
            return used
        return used._replace(
            system_ns=max(self._times.system_ns - times.system_ns, 0),
            disk_ns=max(self._times.disk_ns - times.disk_ns, 0),
        )

    def sample(self) -> Wait:
        """Its current wait."""
        self._text = self._stat.read()
        state = comm_and_state(self._text)
        if state is None:
            self.wait = Wait.GONE
            return self.wait
        self.name, letter = state
        self.wait, self.descriptors, self.moves = wait_of(letter, None), (), True
        if _polls(self.name) and self.wait is not Wait.GONE:
            self.wait = Wait.OTHER  # spins while idle
        if self.wait in (Wait.UNKNOWN, Wait.DISK):  # the state letter is not enough
            self.wait = wait_of(letter, self._channel.read(), self._call.read)
            if self.wait.on_descriptors and self.wait is not Wait.ACCEPT:
                on = None if self._pid is None else waits_on(self.tid, self._call.read())
                # Since Linux 6.12 a task may remain on a crowded CPU's run queue without a wait
                # channel.
                self.descriptors = () if on is None and not self.wait.on_any else on
        return self.wait


class Threads:
    """The threads of process `pid`, without the first."""

    def __init__(self, proc: Path, pid: int, *, same_pids: bool = True) -> None:
        """`same_pids`: `proc`, the host's, has the pids of our own PID namespace."""
        self._same_pids = same_pids
        self.complete = True
        """Whether the last scan covered all threads."""
        self._usage: list[ThreadUsage] = []
        self.moving: frozenset[int] = frozenset()
        """Threads scheduled between two scans."""
        self._pid = pid
        self._folder = proc / str(pid) / "task"
        self._threads: dict[int, Thread] = {}
        self._due_ns = 0
        self._paused = False
        """Whether samples had paused."""
        self._links = 0
        """Link count at the last scan."""
        self._first_chosen = 0
        """First thread of the last choice among too many."""

    def close(self) -> None:
        """Drop all threads, which closes their files."""
        self._threads.clear()
        self.moving = frozenset()
        self._due_ns = 0

    def sample(self, now_ns: int) -> list[Thread]:
        """Threads at monotonic `now_ns`, unscheduled ones as last sampled."""
        links = _link_count(self._folder)
        if links == _SINGLE_THREADED_LINKS:
            self.close()
            return []
        try:
            # A changed link count shows started or ended threads; ended ones show a recreated pool.
            if now_ns >= self._due_ns or links != self._links:
                self._paused = now_ns > self._due_ns + SCAN_INTERVAL_NS
                self._due_ns, self._links = now_ns + SCAN_INTERVAL_NS, links
                self._scan()
            elif Wait.GONE in self._sample(self.moving):
                self._scan()
        except FileLimitError:
            self.close()  # only some were counted
            raise
        return [*self._threads.values()]

    def drain_used(self) -> list[ThreadUsage]:
        """Usage from the last call up to the last scan."""
        used, self._usage = self._usage, []
        return used

    def _scan(self) -> None:
        if len(self._usage) > MAX_PENDING_USAGE:
            self._usage.clear()
        moving = self._count(self._threads)
        for tid in self.moving.difference(moving):
            if tid in self._threads:
                self._threads[tid].sample()
                self._threads[tid].mark_asleep()
        moving += self._count(self._follow(frozenset(moving)))
        self.moving = frozenset(self._threads.keys() & moving)  # some may have ended meanwhile
        self._sample(self.moving)

    def _count(self, tids: Iterable[int]) -> list[int]:
        """Record usage; return `tids` that moved, or are new."""
        usage = {tid: used for tid in tids if (used := self._threads[tid].take_usage())}
        sampled = self._threads.keys() if self._paused else self.moving
        self._usage += (used._replace(missed=tid not in sampled) for tid, used in usage.items())
        return [*usage]

    def _sample(self, tids: Collection[int]) -> list[Wait]:
        chosen = random.sample([*tids], min(len(tids), _MAX_SAMPLED_THREADS))
        return [self._threads[tid].sample() for tid in chosen]

    def _follow(self, moving: frozenset[int]) -> list[int]:
        """Drop ended threads, and sleeping ones if too many; return new ones."""
        tids = {*list_numbers(self._folder, MAX_LISTED)} - {self._pid}
        for tid in self._threads.keys() - tids:
            del self._threads[tid]
        new = sorted(tids - self._threads.keys())
        self.complete = len(tids) <= MAX_WATCHED_THREADS
        if not self.complete:
            new = self._evict(new, moving)
        for tid in new:
            pid = self._pid if self._same_pids else None
            self._threads[tid] = Thread(f"{self._folder}", tid, pid)
        return new

    def _evict(self, new: list[int], moving: frozenset[int]) -> list[int]:
        # It waits for a CPU: it is not asleep.
        asleep = [
            tid
            for tid, thread in self._threads.items()
            if tid not in moving and thread.wait is not Wait.RUN
        ]
        for tid in asleep[: len(self._threads) + len(new) - MAX_WATCHED_THREADS]:
            del self._threads[tid]
        room = max(MAX_WATCHED_THREADS - len(self._threads), 0)
        # The newest first: libraries start their pools early.
        turn = bisect_left(new, self._first_chosen)
        chosen = (new[turn:] + new[:turn])[-room:] if room else []
        self._first_chosen = chosen[0] if chosen else self._first_chosen
        return chosen


def _link_count(folder: Path) -> int:
    """Number of threads plus two; 0 if the process has ended."""
    try:
        return os.stat(folder).st_nlink  # noqa: PTH116 - a third of the time
    except OSError:
        return 0
