"""What the feeders of one GPU used, second by second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

from gpu_bottleneck_exporter.accounting.bucket import (
    Bucket,
    CgroupCounters,
    Counters,
    Part,
    Role,
    less,
    plus,
)
from gpu_bottleneck_exporter.feeders.family import Family
from gpu_bottleneck_exporter.feeders.handovers import Handovers
from gpu_bottleneck_exporter.feeders.probe import LAUNCHES, DeepProbe
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.related import Related
from gpu_bottleneck_exporter.host.cgroup import Cgroup

_HARDLY_MOVED_NS = 500_000
"""A first thread that drives a GPU uses more CPU time than this in a second."""
_IDLE = 0.05
"""A GPU that works less than this share of a tick tells nothing of who drives it."""


class CounterReader:
    """Used by the watching thread only."""

    def __init__(self, family: Family, related: Related) -> None:
        self.handovers = Handovers()
        self._family = family
        self._related = related
        self._cgroups: dict[Cgroup, CgroupCounters] = {}
        """Those of the mains, as last read."""
        self._turn = 0

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
        family, related = self._family, self._related.processes.values()
        mains, complete = _count(family.mains.values())
        workers, whole = _count(self._workers_in_turn())
        near, _ = _count(related)
        used = {
            Role.MAIN: _total(mains.values()),
            Role.WORKER: _total(workers.values()),
            Role.RELATED: _total(near[one] for one in near if self._related.counts(one, 1 - busy)),
        }
        if busy >= _IDLE:
            for main, did in mains.items():
                main.leader_rests = did.leader_cpu_ns < _HARDLY_MOVED_NS
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
        rounds = self._family.rounds
        return [*self._family.workers.values()][self._turn % rounds :: rounds]

    def _add_threads(self, used: dict[str, Counters]) -> None:
        """Add what threads used, as far as deep probes counted it.

        Those of mains load, or launch kernels as the first thread does. Of those of other
        processes only the delay is news: their CPU time is part of the process's.
        """
        launching, loading = [0, 0], [0, 0]
        for deep in _deep(self._family.mains.values()):
            for thread in deep.take_used():
                launches = deep.launches_elsewhere or thread.name.startswith(LAUNCHES)
                sums = launching if launches else loading
                sums[0] += thread.cpu_ns
                sums[1] += thread.queue_ns
        if any(launching):
            cpu_ns, queue_ns = launching
            main = used[Role.MAIN]
            used[Role.MAIN] = main._replace(launch_cpu_ns=cpu_ns, launch_queue_ns=queue_ns)
        if any(loading):
            cpu_ns, queue_ns = loading
            used[Role.THREAD] = Counters(cpu_ns=cpu_ns, queue_ns=queue_ns)
        for role, processes in (
            (Role.WORKER, self._family.workers.values()),
            (Role.RELATED, self._related.processes.values()),
        ):
            delays = (thread.queue_ns for deep in _deep(processes) for thread in deep.take_used())
            if delay_ns := sum(delays):
                used[role] = used[role]._replace(queue_ns=used[role].queue_ns + delay_ns)

    def _add_children(self, used: dict[str, Counters], elapsed_ns: int) -> None:
        """Of the CPU time of ended children, keep what was not counted while they lived.

        When a worker ends, the kernel adds the CPU time of its whole life to its parent's counter
        of ended children. What was counted before must not count twice; halved each second, as a
        parent may reap late, or never.
        """
        known = min(self._family.ended_ns, used[Role.MAIN].children_ns)
        self._family.ended_ns = (self._family.ended_ns - known) // 2
        for role, counters in used.items():
            if counters.children_ns:
                children_ns = counters.children_ns - (known if role == Role.MAIN else 0)
                used[role] = counters._replace(children_ns=min(children_ns, elapsed_ns))


def _deep(processes: Iterable[Process]) -> Iterator[DeepProbe]:
    return (process.deep for process in processes if process.deep)


def _count(processes: Iterable[Process]) -> tuple[dict[Process, Counters], bool]:
    """What each has used since it was last read; whether none of them has ended."""
    used = {process: process.count() for process in processes}
    return {one: did for one, did in used.items() if did is not None}, None not in used.values()


def _total(used: Iterable[Counters]) -> Counters:
    found = list(used)
    return reduce(plus, found) if found else Counters()


def _held_back(group: Cgroup, before: CgroupCounters) -> CgroupCounters:
    """The counters of `group` now; those that cannot be read stay as they were `before`."""
    now = {name: getattr(group.counted, name) for name in CgroupCounters._fields}
    return before._replace(**{name: value for name, value in now.items() if value is not None})
