"""Resources used by one GPU's feeders: CPU time, file data, memory, traffic."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial, reduce
from pathlib import Path
from typing import NamedTuple

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
from gpu_bottleneck_exporter.feeders.probe import LAUNCHES
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tree import ProcessFamily
from gpu_bottleneck_exporter.generics import T
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
        self._cgroup_of: Mapping[int, Cgroup] = {}
        self._turn = 0
        self.busiest_thread = ""
        """Name of the main's loading thread with the most CPU time."""

    @property
    def cgroups(self) -> frozenset[Cgroup]:
        """The mains' control groups."""
        return frozenset(self._cgroups)

    def adopt_cgroups(self, groups: Mapping[int, Cgroup]) -> None:
        """Set the mains' control groups, by pid; present ones retain their counters."""
        before, self._cgroup_of = self._cgroups, groups
        self._cgroups = {
            group: before.get(group) or _cgroup_counters(group, CgroupCounters())
            for group in groups.values()
        }

    def read(self, second: Bucket, busy: float, *, deep: bool) -> bool:
        """Add the counters to `second`; False if a process has ended.

        `busy`: the GPU's busy share of the last tick, 0-1; `deep`: whether deep probes run.
        """
        mains, complete = _count(self._family.mains.values())
        workers, whole = _count(self._workers_in_turn())
        related, _ = _count(self._family.related.values())
        piped, tenants = Counter[str](), self._family.tenants
        for process, counters in workers.items():
            piped[tenants.get(process.pid, "")] += counters.write_chars
        mains = {
            process: _accounted(
                process, counters, second.at_ns, piped[tenants.get(process.pid, "")]
            )
            for process, counters in mains.items()
        }
        workers = {
            process: _accounted(process, counters, second.at_ns)
            for process, counters in workers.items()
        }
        if busy >= NEGLIGIBLE:  # below, launches cannot be attributed to a thread
            for main, counters in mains.items():
                main.note_launches(counters, second.elapsed_ns)
        if deep:
            for worker, counters in workers.items():
                self.handovers.note(worker.pid, counters.write_calls)
        crowd = {
            Role.MAIN: mains,
            Role.WORKER: workers,
            Role.RELATED: {
                process: used for process, used in related.items() if process.counts(1 - busy)
            },
        }
        threads = {
            Role.MAIN: _drained(self._family.mains.values(), 1 - busy),
            Role.WORKER: _drained(self._family.workers.values(), 1 - busy),
            Role.RELATED: _drained(self._family.related.values(), 1 - busy),
        }
        loading = [thread for used in threads[Role.MAIN].values() for thread in used.loading]
        busiest = max(loading, key=lambda thread: thread.cpu_ns, default=None)
        self.busiest_thread = busiest.name if busiest else ""
        used = _used(crowd, threads)
        members = {
            name: {pid for pid, of in tenants.items() if of == name}
            for name in self._family.tenant_sizes
        }
        used_by = {
            name: _used(_part(crowd, pids), _part(threads, pids)) for name, pids in members.items()
        }
        children_ns = {name: part[Role.MAIN].children_ns for name, part in used_by.items()}
        children_ns[""] = used[Role.MAIN].children_ns - sum(children_ns.values())
        counted_ns = self._family.deduct_counted(children_ns)
        _add(second, used, counted_ns.total())
        grown: dict[Cgroup, CgroupCounters] = {}
        for group, before in self._cgroups.items():
            self._cgroups[group] = _cgroup_counters(group, before)
            grown[group] = less(self._cgroups[group], before)
        second.held = reduce(plus, grown.values(), second.held)
        for name, pids in members.items():
            tenant = second.tenants.setdefault(name, Bucket())
            tenant.at_ns, tenant.elapsed_ns = second.at_ns, second.elapsed_ns
            _add(tenant, used_by[name], counted_ns[name])
            groups = {self._cgroup_of[pid] for pid in pids & self._cgroup_of.keys()}
            tenant.held = reduce(plus, (grown[group] for group in groups), tenant.held)
        return complete and whole

    def _workers_in_turn(self) -> list[FeederProcess]:
        self._turn += 1
        rounds = self._family.budget.rounds(len(self._family.workers))
        return [*self._family.workers.values()][self._turn % rounds :: rounds]


class _ThreadsUsed(NamedTuple):
    """The usage of a process's threads, from deep probes."""

    loading: list[ThreadUsage]
    launching: list[ThreadUsage]
    """Threads that launch kernels."""
    polling: list[ThreadUsage]


_ByRole = Mapping[str, Mapping[FeederProcess, T]]


def _drained(processes: Iterable[FeederProcess], idle: float) -> dict[FeederProcess, _ThreadsUsed]:
    used = {}
    for process in processes:
        deep = process.deep
        threads = deep.drain_used() if deep else []
        if deep and threads and process.counts(idle):
            by_kind = used[process] = _ThreadsUsed([], [], [])
            for thread in threads:
                if thread.polls:
                    by_kind.polling.append(thread)
                elif deep.launches_elsewhere or thread.name.startswith(LAUNCHES):
                    by_kind.launching.append(thread)
                else:
                    by_kind.loading.append(thread)
    return used


def _part(by_role: _ByRole[T], pids: Collection[int]) -> _ByRole[T]:
    """The part of the processes `pids`."""
    return {
        role: {process: used for process, used in members.items() if process.pid in pids}
        for role, members in by_role.items()
    }


def _used(crowd: _ByRole[Counters], threads: _ByRole[_ThreadsUsed]) -> dict[str, Counters]:
    """The counters by role.

    Threads of mains load or launch kernels. Others add delays only, as the process's CPU time
    includes theirs.
    """
    used = {role: reduce(plus, members.values(), Counters()) for role, members in crowd.items()}
    by_role = {role: [*members.values()] for role, members in threads.items()}
    of_mains = by_role[Role.MAIN]
    launching = [thread for by_kind in of_mains for thread in by_kind.launching]
    loading = [thread for by_kind in of_mains for thread in by_kind.loading]
    used[Role.MAIN] = used[Role.MAIN]._replace(
        launch_cpu_ns=sum(thread.cpu_ns for thread in launching),
        launch_queue_ns=sum(thread.queue_ns for thread in launching),
    )
    used[Role.THREAD] = Counters(
        cpu_ns=sum(thread.cpu_ns for thread in loading),
        system_ns=sum(thread.system_ns for thread in loading),
        queue_ns=sum(thread.queue_ns for thread in loading),
        disk_ns=sum(thread.disk_ns for thread in loading),
        missed_ns=_missed_ns(loading),
    )
    for role, members in by_role.items():
        running = [thread for kinds in members for thread in (*kinds.loading, *kinds.launching)]
        polling_ns = sum(thread.cpu_ns for kinds in members for thread in kinds.polling)
        counters = Counters(poller_cpu_ns=polling_ns)
        if role != Role.MAIN:
            delays_ns, missed_ns = sum(thread.queue_ns for thread in running), _missed_ns(running)
            counters = counters._replace(queue_ns=delays_ns, missed_ns=missed_ns)
        if members:
            used[role] = plus(used[role], counters)
    return used


def _missed_ns(threads: Iterable[ThreadUsage]) -> int:
    return sum(thread.cpu_ns for thread in threads if thread.missed)


def _add(bucket: Bucket, used: Mapping[str, Counters], counted_ns: int) -> None:
    """Add the counters `used` by role.

    The kernel adds an ended child's whole life to its parent's counter: without `counted_ns`, which
    was counted before it ended.
    """
    for role, counters in used.items():
        children_ns = counters.children_ns - (counted_ns if role == Role.MAIN else 0)
        children_ns = max(min(children_ns, bucket.elapsed_ns), 0)
        bucket.parts.setdefault(role, Part()).used = counters._replace(children_ns=children_ns)


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
