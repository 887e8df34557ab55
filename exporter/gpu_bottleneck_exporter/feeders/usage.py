"""Resources used by one GPU's feeders: CPU time, file data, memory, traffic."""

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
from gpu_bottleneck_exporter.accounting.stall import NEGLIGIBLE
from gpu_bottleneck_exporter.feeders.probe import LAUNCHES, DeepProbe
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tree import ProcessFamily
from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.cgroup import PAGE_BYTES, Cgroup
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES, parse_numbers, read
from gpu_bottleneck_exporter.host.process import living_thread
from gpu_bottleneck_exporter.host.threads import ThreadUsage
from gpu_bottleneck_exporter.schedule import CADENCE, Every


class Handovers:
    """Tells loader workers from loggers and trackers by their write calls while the GPU idles.

    A worker writes batches to pipes, and loads with reads and receives: see `syscw` in
    /proc/PID/io.
    """

    def __init__(self) -> None:
        self._calls: Counter[int] = Counter()
        self._readings: Counter[int] = Counter()

    def note(self, worker: int, calls: int) -> None:
        """Add a worker's write `calls`."""
        self._calls[worker] += calls
        self._readings[worker] += 1
        # About the last minute of eight workers.
        if self._readings.total() > 320:  # noqa: PLR2004
            self._calls, self._readings = _halved(self._calls), _halved(self._readings)

    def forget(self) -> None:
        """Reset, as workers have changed."""
        self._calls.clear()
        self._readings.clear()

    def idlers(self) -> int:
        """Number of processes that write too rarely to hand over batches."""
        least = NEGLIGIBLE * max(self._calls.values(), default=0)
        # A batch may take several intervals.
        judged = (pid for pid, readings in self._readings.items() if readings >= 5)  # noqa: PLR2004
        return sum(self._calls[pid] < least for pid in judged)


def _halved(counts: Counter[int]) -> Counter[int]:
    return Counter({pid: number // 2 for pid, number in counts.items()})


class SocketTraffic:
    """Bytes moved by a job's connections while its GPU idled. Not thread-safe.

    From deep probes, for jobs that share a network namespace. A shared connection counts once; a
    closed one remains in the sum.
    """

    def __init__(self) -> None:
        self._known = False
        self._moved_bytes = 0
        self._last: dict[int, int] | None = None
        """Bytes by socket; None: the next reading is the baseline."""
        self._sampling = Every(CADENCE.probe_ns)

    @property
    def moved_bytes(self) -> int | None:
        """Bytes received and sent; None if connections are unknown."""
        return self._moved_bytes if self._known else None

    def advance(self, processes: Collection[FeederProcess], now_ns: int, *, whole: bool) -> None:
        """Add traffic of `processes`; `whole`: whether these are the whole job."""
        if not self._sampling.is_due(now_ns):
            return
        readings = [_moved(process) for process in processes]
        self._known = whole and bool(readings) and None not in readings
        now: dict[int, int] = {}
        for moved in filter(None, readings):
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
        """Exclude traffic up to the next reading, as the GPU works."""
        self._last = None


def _moved(process: FeederProcess) -> Mapping[int, int] | None:
    tcp = process.deep.tcp if process.deep else None
    return tcp.moved_bytes if tcp else None


_MAX_WALKED_BYTES = 2 * 2**30
"""Resident bytes above which smaps_rollup, a walk over all pages, is too slow."""


def private_bytes(proc: Path, pid: int) -> float | None:
    """Private memory of a process; None if unreadable.

    An upper bound for large ones, which includes pages shared with the process that forked it.
    """
    folder = f"{proc}/{living_thread(proc, pid)}"
    fields = parse_numbers(read(f"{folder}/statm") or "") or []
    # Pages; all zero once the process has ended.
    if len(fields) < 3 or not fields[1]:  # noqa: PLR2004
        return None
    resident, shared = fields[1] * PAGE_BYTES, fields[2] * PAGE_BYTES
    walk = partial(read, f"{folder}/smaps_rollup")
    # In a helper thread: the lock of the memory may be held forever.
    if resident <= _MAX_WALKED_BYTES and (text := memory_reads.call(pid, walk)):
        sizes = re.findall(r"^Private_\w+:\s+(\d+) kB$", text, re.MULTILINE)
        return float(sum(map(int, sizes)) * 1024)
    return float(max(resident - shared, 0))


def free_bytes(groups: frozenset[Cgroup], available: float | None) -> float | None:
    """Bytes that a job can still allocate, by its limits and `available` on the machine.

    Inactive page cache counts as free, as in the kubelet.
    """
    left = [] if available is None else [available]
    for group in groups:
        level = group.memory_level()
        if level is not None and level.limit_bytes is not None:
            cache = level.cache_bytes("inactive_file") or 0
            left.append(float(max(level.limit_bytes - level.used_bytes + cache, 0)))
    return min(left, default=None)


class CounterReader:
    """Reads the CPU, I/O and cgroup counters of one GPU's feeders. Not thread-safe."""

    def __init__(self, family: ProcessFamily) -> None:
        self.handovers = Handovers()
        self._family = family
        self._cgroups: dict[Cgroup, CgroupCounters] = {}
        self._turn = 0
        self.busiest_thread = ""
        """Name of the main's loading thread with the most CPU time."""

    @property
    def cgroups(self) -> frozenset[Cgroup]:
        """The mains' control groups."""
        return frozenset(self._cgroups)

    def adopt_cgroups(self, groups: Iterable[Cgroup]) -> None:
        """Set the mains' control groups; present ones retain their counters."""
        before = self._cgroups
        self._cgroups = {
            group: before.get(group) or _cgroup_counters(group, CgroupCounters())
            for group in groups
        }

    def read(self, second: Bucket, busy: float, *, deep: bool) -> bool:
        """Add the counters to `second`; False if a process has ended.

        `busy`: the GPU's busy share of the last tick, 0-1; `deep`: whether deep probes run.
        """
        mains, complete = _count(self._family.mains.values())
        workers, whole = _count(self._workers_in_turn())
        related, _ = _count(self._family.related.values())
        piped = sum(counters.write_chars for counters in workers.values())
        mains = {
            process: _accounted(process, counters, second.at_ns, piped)
            for process, counters in mains.items()
        }
        workers = {
            process: _accounted(process, counters, second.at_ns)
            for process, counters in workers.items()
        }
        used = {
            Role.MAIN: reduce(plus, mains.values(), Counters()),
            Role.WORKER: reduce(plus, workers.values(), Counters()),
            Role.RELATED: reduce(
                plus,
                (related[process] for process in related if process.counts(1 - busy)),
                Counters(),
            ),
        }
        if busy >= NEGLIGIBLE:  # below, launches cannot be attributed to a thread
            for main, counters in mains.items():
                main.note_launches(counters, second.elapsed_ns)
        if deep:
            for worker, counters in workers.items():
                self.handovers.note(worker.pid, counters.write_calls)
        self._add_threads(used)
        self._add_children(used, second.elapsed_ns)
        for role, total in used.items():
            second.parts.setdefault(role, Part()).used = total
        for group, before in self._cgroups.items():
            self._cgroups[group] = _cgroup_counters(group, before)
            second.held = plus(second.held, less(self._cgroups[group], before))
        return complete and whole

    def _workers_in_turn(self) -> list[FeederProcess]:
        self._turn += 1
        rounds = self._family.budget.rounds(len(self._family.workers))
        return [*self._family.workers.values()][self._turn % rounds :: rounds]

    def _add_threads(self, used: dict[str, Counters]) -> None:
        """Add the threads that deep probes counted.

        Threads of mains load or launch kernels. Others add delays only, as the process's CPU time
        includes theirs.
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
            launch_cpu_ns=sum(thread.cpu_ns for thread in launching),
            launch_queue_ns=sum(thread.queue_ns for thread in launching),
            poller_cpu_ns=sum(thread.cpu_ns for _, thread in threads if thread.polls),
        )
        used[Role.THREAD] = Counters(
            cpu_ns=sum(thread.cpu_ns for thread in loading),
            system_ns=sum(thread.system_ns for thread in loading),
            queue_ns=sum(thread.queue_ns for thread in loading),
            disk_ns=sum(thread.disk_ns for thread in loading),
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
        """Add the CPU time of ended children that was not counted while they ran.

        The kernel adds a child's whole life to its parent's counter.
        """
        counted_ns = self._family.deduct_counted(used[Role.MAIN].children_ns)
        for role, counters in used.items():
            if counters.children_ns:
                children_ns = counters.children_ns - (counted_ns if role == Role.MAIN else 0)
                used[role] = counters._replace(children_ns=min(children_ns, elapsed_ns))


def _drained(processes: Iterable[FeederProcess]) -> Iterator[tuple[DeepProbe, ThreadUsage]]:
    probes = (process.deep for process in processes if process.deep)
    return ((deep, thread) for deep in probes for thread in deep.drain_used())


def _count(processes: Iterable[FeederProcess]) -> tuple[dict[FeederProcess, Counters], bool]:
    """Resources since the last reading; whether all processes run."""
    used = {process: process.count() for process in processes}
    return {
        process: counters for process, counters in used.items() if counters is not None
    }, None not in used.values()


def _accounted(process: FeederProcess, used: Counters, now_ns: int, piped: int = 0) -> Counters:
    hides_io = process.hides_io(now_ns)
    return used.accounted(piped, process.unaccounted_bytes) if hides_io else used


def _cgroup_counters(group: Cgroup, before: CgroupCounters) -> CgroupCounters:
    """The counters of `group`; unreadable ones as `before`."""
    now = {name: getattr(group.counters, name) for name in CgroupCounters._fields}
    return before._replace(**{name: value for name, value in now.items() if value is not None})
