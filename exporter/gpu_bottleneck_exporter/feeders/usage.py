"""What the feeders of one GPU used, second by second: CPU time, file data, memory, traffic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial, reduce
from pathlib import Path

from gpu_bottleneck_exporter.accounting.bucket import (
    Bucket,
    CgroupCounters,
    Counters,
    Part,
    Role,
    less,
    plus,
)
from gpu_bottleneck_exporter.accounting.stall import MIN_IDLE_SHARE, NEGLIGIBLE
from gpu_bottleneck_exporter.feeders.probe import LAUNCHES, DeepProbe
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.tree import Family
from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.cgroup import PAGE_BYTES, Cgroup
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES, parse_numbers, read
from gpu_bottleneck_exporter.host.process import living_thread
from gpu_bottleneck_exporter.host.threads import ThreadUsage
from gpu_bottleneck_exporter.schedule import SHORTLY_NS, Every

_MOST_LOOKS = 320
"""Over all workers: more than a minute of eight that are read every other second. Of more, those
before count half."""
_KNOWN_LOOKS = 5
"""Until a worker is judged: a batch may take longer than from one look to the next."""


class Handovers:
    """Write calls of the workers of one GPU, while it waits for them.

    A worker hands each batch over through a pipe, and loads with reads and receives: `syscw` of
    /proc/PID/io follows how many batches it has finished. Loggers and trackers hand nothing over.
    """

    def __init__(self) -> None:
        self._calls: Counter[int] = Counter()
        self._looks: Counter[int] = Counter()

    def note(self, worker: int, calls: int) -> None:
        """Note the `calls` of a worker since it was last noted."""
        self._calls[worker] += calls
        self._looks[worker] += 1
        if self._looks.total() > _MOST_LOOKS:
            self._calls, self._looks = _halved(self._calls), _halved(self._looks)

    def forget(self) -> None:
        """Drop all: other workers feed the GPU now."""
        self._calls.clear()
        self._looks.clear()

    def idlers(self) -> int:
        """Number of processes that write so seldom that they cannot hand batches over."""
        # Of the calls of the one that writes most.
        least = NEGLIGIBLE * max(self._calls.values(), default=0)
        known = (one for one, looks in self._looks.items() if looks >= _KNOWN_LOOKS)
        return sum(self._calls[one] < least for one in known)


def _halved(counts: Counter[int]) -> Counter[int]:
    return Counter({one: number // 2 for one, number in counts.items()})


class SocketTraffic:
    """The bytes that a job's connections moved while its GPU idled. Not thread-safe.

    Reads nothing: it adds up what deep probes saw, where the network namespace, whose counters
    would tell, is also that of others. A connection that processes share counts once, and one that
    was closed keeps what it counted.
    """

    def __init__(self) -> None:
        self._known = False
        self._moved_bytes = 0
        self._last: dict[int, int] | None = None
        """Bytes by socket, as last seen; None: the next look is the first to count from."""
        self._looking = Every(SHORTLY_NS)

    @property
    def moved_bytes(self) -> int | None:
        """Bytes received and sent since the start; None if not all connections are known."""
        return self._moved_bytes if self._known else None

    def advance(self, processes: Collection[Process], now_ns: int, *, whole: bool) -> None:
        """Take what was seen of `processes`; `whole`: they are all of the job."""
        if not self._looking.is_due(now_ns):
            return
        looks = [_moved(process) for process in processes]
        self._known = whole and bool(looks) and None not in looks
        now: dict[int, int] = {}
        for moved in filter(None, looks):
            for cookie, total_bytes in moved.items():
                now[cookie] = max(total_bytes, now.get(cookie, 0))
        if self._known and self._last is None:
            self._last = now
        elif self._known and self._last is not None:
            before = self._last
            self._moved_bytes += sum(
                max(total_bytes - before.get(cookie, 0), 0) for cookie, total_bytes in now.items()
            )
            self._last = {**before, **now} if len(before) < MAX_CACHE_ENTRIES else now

    def pause(self) -> None:
        """Leave out what is moved until the next look: the GPU works, and nothing is looked at."""
        self._last = None


def _moved(process: Process) -> Mapping[int, int] | None:
    tcp = process.deep.tcp if process.deep else None
    return tcp.moved_bytes if tcp else None


_PRIVATE = re.compile(r"^Private_\w+:\s+(\d+) kB$", re.MULTILINE)
_WALKED_BYTES = 2 * 2**30
"""Of a larger process the kernel takes long to add its pages up."""


def private_bytes(proc: Path, pid: int) -> float | None:
    """Memory that a process shares with no other (/proc/PID/smaps_rollup); None if unreadable.

    Of a large one an upper bound: its resident memory without files and shared memory, which
    counts pages that it still shares with the process it was forked from.
    """
    folder = f"{proc}/{living_thread(proc, pid)}"
    fields = parse_numbers(read(f"{folder}/statm") or "") or []
    # Size, resident, shared; all are zero for a process that has ended.
    if len(fields) < 3 or not fields[1]:  # noqa: PLR2004
        return None
    resident, shared = fields[1] * PAGE_BYTES, fields[2] * PAGE_BYTES
    walk = partial(read, f"{folder}/smaps_rollup")
    # Adding up takes the lock of its memory, which may be held for ever.
    if resident <= _WALKED_BYTES and (text := memory_reads.call(pid, walk)):
        return float(sum(int(kib) for kib in _PRIVATE.findall(text)) * 1024)
    return float(max(resident - shared, 0))


def free_bytes(groups: frozenset[Cgroup], available: float | None) -> float | None:
    """Memory that a job may still take: `available` on the machine, or less by its limits.

    Page cache that is not in use is free (memory.stat's inactive_file, as the kubelet counts).
    """
    left = [] if available is None else [available]
    for group in groups:
        level = group.memory_level()
        if level is not None and level.limit_bytes is not None:
            cache = level.cache_bytes("inactive_file") or 0
            left.append(float(max(level.limit_bytes - level.used_bytes + cache, 0)))
    return min(left, default=None)


class CounterReader:
    """Reads the counters of all feeders once a second; used by the watching thread only."""

    def __init__(self, family: Family) -> None:
        self.handovers = Handovers()
        self._family = family
        self._cgroups: dict[Cgroup, CgroupCounters] = {}
        """Those of the mains, as last read."""
        self._turn = 0
        self.busiest_thread = ""
        """The name of the loading thread of a main that used most of the last second."""

    @property
    def cgroups(self) -> frozenset[Cgroup]:
        """The control groups of the mains."""
        return frozenset(self._cgroups)

    def adopt_cgroups(self, groups: Iterable[Cgroup]) -> None:
        """Take over the control groups of the mains; known ones keep their counters."""
        known = self._cgroups
        self._cgroups = {one: known.get(one) or _held_back(one, CgroupCounters()) for one in groups}

    def read(self, second: Bucket, busy: float, *, deep: bool) -> bool:
        """Add the counters to `second`; False if a process has ended.

        `busy`: share of the last tick, 0-1, in which the GPU worked; `deep`: whether it idles at
        times, so that feeders are probed deeply.
        """
        mains, complete = _count(self._family.mains.values())
        workers, whole = _count(self._workers_in_turn())
        related, _ = _count(self._family.related.values())
        piped = sum(did.write_chars for did in workers.values())
        mains = {one: _accounted(one, did, second.at_ns, piped) for one, did in mains.items()}
        workers = {one: _accounted(one, did, second.at_ns) for one, did in workers.items()}
        used = {
            Role.MAIN: reduce(plus, mains.values(), Counters()),
            Role.WORKER: reduce(plus, workers.values(), Counters()),
            Role.RELATED: reduce(
                plus, (related[one] for one in related if one.counts(1 - busy)), Counters()
            ),
        }
        if busy >= MIN_IDLE_SHARE:  # one that hardly works tells nothing of who drives it
            for main, did in mains.items():
                main.note_launches(did, second.elapsed_ns)
        if deep:
            for worker, did in workers.items():
                self.handovers.note(worker.pid, did.write_calls)
        self._add_threads(used)
        self._add_children(used, second.elapsed_ns)
        for role, total in used.items():
            second.parts.setdefault(role, Part()).used = total
        for group, before in self._cgroups.items():
            self._cgroups[group] = _held_back(group, before)
            second.held = plus(second.held, less(self._cgroups[group], before))
        return complete and whole

    def _workers_in_turn(self) -> list[Process]:
        self._turn += 1
        rounds = self._family.share.rounds(len(self._family.workers))
        return [*self._family.workers.values()][self._turn % rounds :: rounds]

    def _add_threads(self, used: dict[str, Counters]) -> None:
        """Add what threads used, as far as deep probes counted it.

        Those of mains load, or launch kernels as the first thread does. Of those of other
        processes only the delay is news: their CPU time is part of the process's.
        """
        threads = [
            (deep.launches_elsewhere or thread.name.startswith(LAUNCHES), thread)
            for deep, thread in _drained(self._family.mains.values())
        ]
        launching = [thread for launches, thread in threads if launches and not thread.polls]
        loading = [thread for launches, thread in threads if not (launches or thread.polls)]
        busiest = max(loading, key=lambda thread: thread.cpu_ns, default=None)
        self.busiest_thread = busiest.name if busiest else ""
        used[Role.MAIN] = used[Role.MAIN]._replace(
            launch_cpu_ns=sum(one.cpu_ns for one in launching),
            launch_queue_ns=sum(one.queue_ns for one in launching),
            poller_cpu_ns=sum(thread.cpu_ns for _, thread in threads if thread.polls),
        )
        used[Role.THREAD] = Counters(
            cpu_ns=sum(one.cpu_ns for one in loading),
            system_ns=sum(one.system_ns for one in loading),
            queue_ns=sum(one.queue_ns for one in loading),
            disk_ns=sum(one.disk_ns for one in loading),
        )
        for role, processes in (
            (Role.WORKER, self._family.workers.values()),
            (Role.RELATED, self._family.related.values()),
        ):
            threads_used = [thread for _, thread in _drained(processes)]
            if not threads_used:
                continue
            delays = (thread.queue_ns for thread in threads_used if not thread.polls)
            polling = (thread.cpu_ns for thread in threads_used if thread.polls)
            counters = Counters(queue_ns=sum(delays), poller_cpu_ns=sum(polling))
            used[role] = plus(used[role], counters)

    def _add_children(self, used: dict[str, Counters], elapsed_ns: int) -> None:
        """Add the CPU time of ended children that was not counted while they lived.

        When a worker ends, the kernel adds the CPU time of its whole life to its parent's counter
        of ended children. What was counted before must not count twice.
        """
        known = self._family.take_ended(used[Role.MAIN].children_ns)
        for role, counters in used.items():
            if counters.children_ns:
                children_ns = counters.children_ns - (known if role == Role.MAIN else 0)
                used[role] = counters._replace(children_ns=min(children_ns, elapsed_ns))


def _drained(processes: Iterable[Process]) -> Iterator[tuple[DeepProbe, ThreadUsage]]:
    """What their threads used, with the deep probe that counted it."""
    probes = (process.deep for process in processes if process.deep)
    return ((deep, thread) for deep in probes for thread in deep.drain_used())


def _count(processes: Iterable[Process]) -> tuple[dict[Process, Counters], bool]:
    """What each has used since it was last read; whether none of them has ended."""
    used = {process: process.count() for process in processes}
    return {one: did for one, did in used.items() if did is not None}, None not in used.values()


def _accounted(process: Process, did: Counters, now_ns: int, piped: int = 0) -> Counters:
    hides_io = process.hides_io(now_ns)
    return did.accounted(piped, process.unaccounted_bytes) if hides_io else did


def _held_back(group: Cgroup, before: CgroupCounters) -> CgroupCounters:
    """The counters of `group` now; those that cannot be read stay as they were `before`."""
    now = {name: getattr(group.counters, name) for name in CgroupCounters._fields}
    return before._replace(**{name: value for name, value in now.items() if value is not None})
