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
from gpu_bottleneck_exporter.accounting.stall import IDLES
from gpu_bottleneck_exporter.feeders.family import Family
from gpu_bottleneck_exporter.feeders.handovers import Handovers
from gpu_bottleneck_exporter.feeders.probe import LAUNCHES, DeepProbe
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.host.cgroup import Cgroup
from gpu_bottleneck_exporter.host.threads import Used


class CounterReader:
    """Used by the watching thread only."""

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
        if busy >= IDLES:  # one that hardly works tells nothing of who drives it
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


def _drained(processes: Iterable[Process]) -> Iterator[tuple[DeepProbe, Used]]:
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
    now = {name: getattr(group.counted, name) for name in CgroupCounters._fields}
    return before._replace(**{name: value for name, value in now.items() if value is not None})
