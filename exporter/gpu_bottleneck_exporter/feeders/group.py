"""The feeders of one GPU: who they are, what they do, and what they used."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Role
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.counting import CounterReader
from gpu_bottleneck_exporter.feeders.crowd import WHOLE, SamplingBudget
from gpu_bottleneck_exporter.feeders.family import Family
from gpu_bottleneck_exporter.feeders.history import WINDOW_NS, History
from gpu_bottleneck_exporter.feeders.mains import MainFacts, facts_of
from gpu_bottleneck_exporter.feeders.probe import DeepProbe
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.related import Related
from gpu_bottleneck_exporter.feeders.states import StateSampler, ends_of
from gpu_bottleneck_exporter.feeders.steadiness import Steadiness
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.schedule import RefreshSchedule
from gpu_bottleneck_exporter.workload.owners import Groups

_IDLES = 0.05
"""Idle share of a tick from which deep probes are worth their cost."""
_STAYS_NS = 10_000_000_000
"""They go on so long after the GPU last idled, to see loops that stall now and then."""
_WORKS = 0.5
"""Busy share of a tick from which it is worth asking for whom the GPU works."""
_EXPLAINED = 0.8
"""So many active workers at all times explain the waiting."""
_HARDLY = 0.1
"""Of a core: threads that use no more load nothing."""


class FeederGroup:
    """Only the watching thread changes it; any thread may call `explaining`."""

    def __init__(
        self,
        proc: Path,
        groups: Cgroups,
        timeouts: AnswerTimeouts | None = None,
        units: Groups | None = None,
    ) -> None:
        """`proc`: the host's; the owner of all feeder groups reads the control groups `groups`.

        `units` map control groups to jobs. `timeouts` says how long a question to another
        machine may stay open; None where connections cannot be inspected.
        """
        self.family = Family(proc, timeouts)
        self.mains, self.workers = self.family.mains, self.family.workers
        self.related = Related(proc, timeouts)
        self.states = StateSampler(proc, self.family, self.related)
        self.counters = CounterReader(self.family, self.related)
        self.history = History()
        self.steady = Steadiness()
        self.facts = MainFacts()
        self.ends: frozenset[Ends] = frozenset()
        """Local and remote ends of the mains' connections, as last noted; for any thread."""
        self.reverse_ends: frozenset[Ends] = frozenset()
        """The same, as the other side has them."""
        self.worker_starts = 0
        self.last_tick_ns: int | None = None
        """When the counters were last read."""
        self._proc = proc
        self._groups = groups
        self._units = units or Groups(proc)
        self._timeouts = timeouts
        self._facts_age = RefreshSchedule()
        self._busy = 0.0
        self._idled_ns: int | None = None

    def adopt(
        self,
        mains: set[int],
        workers: set[int],
        others: frozenset[int],
        share: SamplingBudget = WHOLE,
        *,
        whole: bool = True,
    ) -> None:
        """Take over a newly discovered tree; see `Family.adopt`."""
        before = set(self.mains)
        came, started = self.family.adopt(mains, workers, others, share, whole=whole)
        self.worker_starts += started if before else 0
        if came or started:
            self.steady.restart()
            self.counters.handovers.forget()
        # A runtime may move a process into its control group after it started: ask again.
        texts = (read(self._proc / str(pid) / "cgroup") for pid in self.mains)
        groups = (self._groups.of(text) for text in texts if text)
        self.counters.adopt_cgroups([group for group in groups if group])
        if self._facts_age.is_due(time.monotonic_ns(), new=bool(came) or before != mains):
            self.facts = facts_of(self._proc, self.mains, self._units)
            self.states.notebook = self.facts.notebook

    def note_busy(self, ratio: float, now_ns: int) -> None:
        """Note how busy the GPU was in its last tick, 0-1."""
        self._busy = ratio
        if ratio and self._timeouts:
            self._timeouts.worked_ns = now_ns
        if ratio < 1 - _IDLES:
            self._idled_ns = now_ns

    def idles(self, now_ns: int) -> bool:
        """Whether the GPU idles or did so lately; False until anything is known of it."""
        return self._idled_ns is not None and now_ns - self._idled_ns < _STAYS_NS

    def sample(self, now_ns: int, *, mains_only: bool = False) -> bool:
        """Sample what the mains do, and a few workers in turn.

        False if a process has ended, so that the tree is out of date.
        """
        idle = 1 - self._busy if self.idles(now_ns) else None
        bucket = self.states.look(now_ns, idle, mains_only=mains_only)
        self.history.add_pass(bucket)
        return Activity.GONE not in bucket.of(Role.WORKER).seen

    def advance(self, now_ns: int) -> bool:
        """Close a second with the counters; False if the tree is out of date."""
        before, deep = self.last_tick_ns, self.idles(now_ns)
        self.last_tick_ns = now_ns
        second = self.history.passes_since(before or 0)
        second.at_ns, second.elapsed_ns = now_ns, now_ns - (before or now_ns)
        complete = self.counters.read(second, self._busy, deep=deep)
        if not self.workers:
            self._ask_for_whom_it_works(now_ns)
        self.history.add_second(second)
        states, main, workers = self.states, second.of(Role.MAIN), second.of(Role.WORKER)
        seen = {*workers.seen, *second.of(Role.RELATED).seen}
        running = workers.mean(Activity.RUN) + workers.mean(Activity.DISK)
        others_ns = main.used.cpu_ns - main.used.leader_cpu_ns
        states.resting = deep and all(activity.rests for activity in seen)
        states.explained = (
            deep and running >= _EXPLAINED and others_ns < _HARDLY * second.elapsed_ns
        )
        if not deep:
            for process in (*self.mains.values(), *states.turns.members):
                process.close_deep()
        return complete

    def _ask_for_whom_it_works(self, now_ns: int) -> None:
        """Learn whether mains that have no workers make the GPU work for clients."""
        if self._busy < _WORKS or self._timeouts is None:
            return
        for main in self.mains.values():
            if main.works.is_due(now_ns):
                deep = main.deepen()
                deep.inspect_connections(now_ns, now=True)
                if deep.tcp and deep.tcp.ports:
                    main.works.note(clients=deep.tcp.lively_clients)

    @property
    def sees_all_threads(self) -> bool:
        """Whether no process had more threads than are looked at."""
        return all(deep.threads.complete for deep in self._deep())

    @property
    def sees_all_sockets(self) -> bool:
        """Whether no process had more sockets than are looked at."""
        return all(deep.tcp.sockets.complete for deep in self._deep() if deep.tcp)

    def _processes(self) -> Iterator[Process]:
        yield from (*self.mains.values(), *self.states.turns.members)
        yield from self.related.processes.values()

    def _deep(self) -> Iterator[DeepProbe]:
        return (one.deep for one in self._processes() if one.deep)

    def inspect_connections(self, now_ns: int) -> None:
        """Inspect those of its processes; workers only where a main asks this machine."""
        processes = [*self.mains.values(), *self.related.processes.values()]
        _inspect(processes, now_ns)
        if any(deep.tcp.asks_here for deep in self._deep() if deep.tcp):
            _inspect(self.states.turns.members, now_ns)

    def publish_ends(self) -> None:
        """Publish the mains' connections that were inspected, for other threads to read."""
        ends = ends_of(self.mains.values())
        self.reverse_ends = frozenset((remote, local) for local, remote in ends)
        self.ends = ends

    @property
    def own_ends(self) -> frozenset[Ends]:
        """Those of workers and related processes."""
        return ends_of([*self.states.turns.members, *self.related.in_the_job(1 - self._busy)])

    def ends_with(self, other: FeederGroup) -> frozenset[Ends]:
        """Connections of this group's mains that may lead to those of `other`.

        Both must be of one user, who could else make a connection that looks like the other end;
        and an address of the machine itself is another machine's in another network namespace.
        """
        if self.facts.users.isdisjoint(other.facts.users):
            return frozenset()
        if not self.facts.networks.isdisjoint(other.facts.networks):
            return self.ends
        return frozenset(ends for ends in self.ends if not ends[0].is_here)

    def joined(self, other: FeederGroup) -> bool:
        """Whether a connection leads from a main of this group to one of `other`."""
        return not self.ends_with(other).isdisjoint(other.reverse_ends)

    @property
    def lacks_clients(self) -> bool:
        """Whether a main listens, and at the last look nobody was connected."""
        return any(main.deep.lacks_clients for main in self.mains.values() if main.deep)

    def take_awaited(self) -> list[tuple[int, set[int | None]]]:
        """By pid: what mains, workers and kin waited on since the last call, see `DeepProbe`."""
        strangers = self.related.processes.keys() - self.related.kin
        probes = ((one.pid, one.deep) for one in self._processes() if one.pid not in strangers)
        return [(pid, deep.take_awaited()) for pid, deep in probes if deep]

    def is_stranger(self, pid: int) -> bool:
        """Whether a process neither holds the GPU nor is known to feed it."""
        return not (self.family.knows(pid) or pid in self.mains or pid in self.related.kin)

    def evidence(self, now_ns: int) -> tuple[str, ...]:
        """What was seen behind the waiting lately, in words. Too costly for every tick."""
        did = self.history.seconds(now_ns - WINDOW_NS, now_ns)
        if did is None or not self.idles(now_ns):
            return ()
        owed = (deep.tcp.owed for deep in self._deep() if deep.tcp)
        files = any(Activity.DISK in part.seen for part in did.parts.values())
        return (
            *evidence.asleep(did.reasons),
            *evidence.asked((one for one in owed if one), now_ns),
            *(evidence.storage(self._proc, [*self.mains, *self.workers][:4]) if files else ()),
        )

    def close(self) -> None:
        """Give all descriptors back."""
        self.related.close()
        self.family.close()


def _inspect(processes: Iterable[Process], now_ns: int) -> None:
    for process in processes:
        process.deepen().inspect_connections(now_ns)
