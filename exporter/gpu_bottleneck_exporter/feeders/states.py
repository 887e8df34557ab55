"""Samples the activities of one GPU's feeders, one bucket per pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Part, Role, add_up
from gpu_bottleneck_exporter.feeders.evidence import POLLS
from gpu_bottleneck_exporter.feeders.probe import ProbeContext, ProbeResult
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.tree import DeeplyProbed, ProcessFamily, RoundRobin
from gpu_bottleneck_exporter.host.mounts import Places
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import CADENCE

_SAMPLES_PER_PASS = 2
"""Workers, and related processes, sampled per pass in turn: forty samples in the 4 s over which
helpers are judged, at constant cost."""


@dataclass(frozen=True, slots=True)
class JobConnections:
    """Connections of a GPU's processes with others of their job."""

    ends: frozenset[Ends] = frozenset()
    """Ends of the mains' connections."""
    ours: frozenset[Ends] = frozenset()
    """Ends of the job's other processes."""
    peers: frozenset[Ends] = frozenset()
    """Ends of its other GPUs only."""
    joined: frozenset[str] = frozenset()
    """UUIDs of GPUs with mains connected to these."""
    is_rank: bool = False


UNCONNECTED = JobConnections()


class Situation(NamedTuple):
    """Context of a sample of the feeders."""

    idle: float | None = None
    """Idle share of the GPU's time, 0-1; None if deep probes are not worth their cost."""
    connections: JobConnections = UNCONNECTED
    notebook: bool = False
    """Whether a main is a notebook's kernel."""
    fresh_ns: int = 0
    """Maximum age of a main's reused probe."""


class StateSampler:
    """Samples the activities of one GPU's feeders. Not thread-safe."""

    def __init__(self, proc: Path, family: ProcessFamily) -> None:
        self._situation = Situation()
        self.helpers_idle = False
        """Whether no worker or related process was active in the last second."""
        self.explained = False
        """Whether running tasks, or tasks in D state, explain the wait without deep probes."""
        self.probed = DeeplyProbed()
        self.wait_ns: dict[tuple[str, str], int] = {}
        """Total wait time by role and kind (`Activity.waits_as`)."""
        self._busy = 0.0
        """Busy share of the last tick, 0-1; 0 without deep probes."""
        self._sampled_ns = self._worked_ns = 0
        """Monotonic time of the last sample while the GPU worked."""
        self._family = family
        self._places = Places(proc)
        self._workers_in_turn, self._related_in_turn = RoundRobin(), RoundRobin()
        self._role_sampled_ns: dict[str, int] = {}
        """Monotonic time of the last sample, by role."""

    def sample(self, now_ns: int, situation: Situation, *, mains_only: bool) -> Bucket:
        """Sample the mains, and a few workers in turn."""
        bucket, idle = Bucket(now_ns), situation.idle
        bucket.tenants = {name: Bucket(now_ns) for name in self._family.tenant_sizes}
        self._sampled_ns, self._situation = now_ns, situation
        self._busy = 0.0 if idle is None else 1 - idle
        if idle is None or idle < 1:
            self._worked_ns = now_ns
        self._sample_mains(bucket, deep=idle is not None)
        others = bool(self._family.related) or not mains_only
        context = self._others_context() if others and idle is not None else None
        self.probed.choose_from(self._family.workers, now_ns)
        if not mains_only:
            self._begin(bucket, Role.WORKER, self._family.worker_count)
            # Idle workers each need an expensive deep probe.
            count = 1 if self.helpers_idle else _SAMPLES_PER_PASS
            for worker in self._workers_in_turn.take(count, self.probed.members):
                activity = self._sample_helper(worker, bucket, context)
                for part in self._buckets(bucket, worker.pid):
                    part.parts[Role.WORKER].note(activity)
        if idle is not None:
            self._sample_related(bucket, idle, context)
            self._count_runnable(bucket)
        for role in (Role.MAIN, Role.WORKER):
            self._count_waits(role, bucket)
        return bucket

    def conclude(self, second: Bucket, *, deep: bool) -> None:
        """Update `helpers_idle` and `explained` from the last `second`; `deep`: the GPU idles."""
        main, workers = second.of(Role.MAIN).used, second.of(Role.WORKER)
        activities = {*workers.by_activity, *second.of(Role.RELATED).by_activity}
        running = workers.mean(Activity.RUN) + workers.mean(Activity.DISK)
        others_ns = main.own_cpu_ns - main.leader_cpu_ns
        self.helpers_idle = deep and all(activity.rests for activity in activities)
        min_running = 0.8  # active workers
        # Threads below a tenth of a core load nothing.
        self.explained = (
            deep
            and running >= min_running
            and others_ns < 0.1 * second.elapsed_ns
            and not self._family.is_undecided
        )

    @property
    def _may_serve(self) -> bool:
        situation = self._situation
        is_rank = situation.connections.is_rank
        return not (self._family.workers or is_rank or situation.notebook)

    def is_server(self, *, asked: bool) -> bool:
        """Whether a main is a server; `asked`: a client has a request in flight."""
        may_serve = self._may_serve and (asked or self._is_unused)
        works = [main.works for main in self._family.mains.values()]
        return any(work.for_clients or (may_serve and not work.by_itself) for work in works)

    @property
    def job_ends(self) -> frozenset[Ends]:
        """Connection ends of the job's other processes and GPUs."""
        connections = self._situation.connections
        return connections.ours | connections.peers

    def _begin(self, bucket: Bucket, role: str, present: int) -> None:
        """Begin a round of samples, of the whole and of each tenant."""
        bucket.parts[role] = Part(present=present, rounds=1)
        for name, part in bucket.tenants.items():
            part.parts[role] = Part(present=self._family.tenant_sizes[name][role], rounds=1)

    def _buckets(self, bucket: Bucket, pid: int) -> tuple[Bucket, ...]:
        """`bucket`, and the part of the process's tenant."""
        tenant = bucket.tenants.get(self._family.tenants.get(pid, "")) if bucket.tenants else None
        return (bucket, tenant) if tenant else (bucket,)

    def _sample_mains(self, bucket: Bucket, *, deep: bool) -> None:
        behind = deep and not self.explained
        self._begin(bucket, Role.MAIN, len(self._family.mains))
        for process in self._family.mains.values():
            result = process.probe(bucket.at_ns, self._context(process) if behind else None)
            if deep and not behind and result.first is Activity.NETWORK:
                # Only its connections show whether it waits for running workers.
                behind, result = True, process.probe(bucket.at_ns, self._context(process))
            activity = self._activity(process, result, bucket.reasons) if behind else result.first
            process.note(activity)
            self._record_hidden_io(process, result, bucket.at_ns)
            if behind and (waits := self._family.waits.get(process.pid)):
                waits.note(process.deepen().awaits)
            for part in self._buckets(bucket, process.pid):
                part.parts[Role.MAIN].note(activity)
                if result.active and activity is not Activity.REQUESTS:
                    _add_threads(part, result.active, awaited=activity is Activity.QUEUE)
            if deep:
                self._record_place(result, bucket)
        for part in (bucket, *bucket.tenants.values()) if behind else ():
            part.parts.setdefault(Role.THREAD, Part(rounds=1))

    def _context(self, main: FeederProcess) -> ProbeContext:
        connections = self._situation.connections
        return ProbeContext(
            connections.ours,
            connections.peers,
            self._family.known,
            main.leader_rests,
            self._situation.fresh_ns,
            holds=True,
            may_serve=self._may_serve and not main.works.by_itself,
        )

    def _activity(
        self, main: FeederProcess, result: ProbeResult, reasons: dict[str, int]
    ) -> Activity:
        related_probes = [self._family.related[pid].deep for pid in self._family.kin]
        for_peer = result.peer or any(probe.peer for probe in related_probes if probe)
        if for_peer and result.first.rests and not result.active:
            return Activity.PEER
        if result.reason != Wait.STOPPED.value and self._lacks_demand(main, result):
            if result.whole is Activity.RUN:
                add_up(reasons, {POLLS: 1})
            return Activity.REQUESTS
        if not result.first.rests or result.active:
            return result.first
        if any(
            process.reader.wait() in (Wait.RUN, Wait.DISK, Wait.CHILD)
            for process in self._family.compilers
        ):
            return Activity.RUN
        add_up(reasons, {result.reason: 1})
        return result.first

    def _lacks_demand(self, main: FeederProcess, result: ProbeResult) -> bool:
        """Whether a main, or a process that it works for, waits for a request or task."""
        related_probes = (self._family.related[pid].deep for pid in self._family.kin)
        deep = [probe for probe in (main.deep, *related_probes) if probe is not None]
        rests = result.first.rests and not result.active
        servers = [probe for probe in deep if probe.listens]
        has_request = any(probe.has_request for probe in servers)
        if servers:
            main.works.note(clients=has_request, busy=self._busy)
        if any(probe.lacks_tasks for probe in deep) and rests:
            return True
        serves = any(probe.serving for probe in deep) and not (has_request or main.works.by_itself)
        if not serves or not (self._may_serve or main.works.for_clients):
            return False
        # A server that spins, or reports to its cluster, awaits no response.
        polls = result.whole is Activity.RUN and self._is_unused
        return rests or polls or (main.works.for_clients and not result.whole.on_files)

    @property
    def _is_unused(self) -> bool:
        return self._sampled_ns - self._worked_ns > CADENCE.recent_ns

    def _others_context(self) -> ProbeContext:
        """Context of processes without a GPU: connections to mains are no network waits."""
        connections = self._situation.connections
        ours = ends_of(self._family.mains.values()) | connections.ours
        return ProbeContext(ours, connections.peers, self._family.known)

    def _sample_helper(
        self, process: FeederProcess, bucket: Bucket, context: ProbeContext | None
    ) -> Activity:
        result = process.probe(bucket.at_ns, context)
        if context:
            self._record_place(result, bucket)
        self._record_hidden_io(process, result, bucket.at_ns)
        activity = result.whole
        process.note(activity)
        # These are no waits for a task.
        is_away = result.reason in {Wait.TIMER.value, Wait.SOCKET.value}
        return Activity.TIMER if activity is Activity.SLEEP and is_away else activity

    def _sample_related(self, bucket: Bucket, idle: float, context: ProbeContext | None) -> None:
        """Sample two related processes in turn; those that do little do not count."""
        related = self._family.related.values()
        if not related:
            return
        for part in (bucket, *bucket.tenants.values()):
            part.parts[Role.RELATED] = Part(rounds=1)
        for process in self._related_in_turn.take(_SAMPLES_PER_PASS, related):
            activity = self._sample_helper(process, bucket, context)
            for part in self._buckets(bucket, process.pid) if process.counts(idle) else ():
                part.parts[Role.RELATED].note(activity)
        for process in related:
            for part in self._buckets(bucket, process.pid) if process.counts(idle) else ():
                part.parts[Role.RELATED].present += 1

    def _count_runnable(self, bucket: Bucket) -> None:
        mains = self._family.mains.items()
        counted = {pid: main.runnable(bucket.at_ns) for pid, main in mains}
        if None in counted.values():
            return
        for pid, usage in counted.items():
            for part in self._buckets(bucket, pid):
                part.runnable_ns += usage[0] if usage else 0
                part.counted_ns += usage[1] if usage else 0

    def _record_place(self, result: ProbeResult, bucket: Bucket) -> None:
        """Record the place of one awaited file per pass.

        Mains come first, so that places count as often as the GPU waits for them.
        """
        if result.in_file and not bucket.places:
            bucket.places = {self._places.locate(*result.in_file, bucket.at_ns): 1}

    def _record_hidden_io(self, process: FeederProcess, result: ProbeResult, now_ns: int) -> None:
        """Record a wait for a file without I/O accounting in the kernel."""
        if not (process.may_hide_io and result.in_file):
            return
        is_due = not process.hides_io(now_ns + CADENCE.probe_ns)
        if is_due and self._places.is_without_device(*result.in_file, now_ns):
            process.note_hidden_io(now_ns)

    def _count_waits(self, role: str, bucket: Bucket) -> None:
        """Add the time since the last sample to the waits of a role."""
        if role not in bucket.parts:
            return  # its time counts at the next sample
        part, samples = bucket.parts[role], bucket.parts[role].samples
        elapsed_ns = (bucket.at_ns - self._role_sampled_ns.get(role, bucket.at_ns)) * part.present
        self._role_sampled_ns[role] = bucket.at_ns
        for activity, number in part.by_activity.items():
            if activity.waits:
                add_up(self.wait_ns, {(role, activity.waits_as): elapsed_ns * number // samples})


def _add_threads(bucket: Bucket, active: Mapping[Activity, int], *, awaited: bool) -> None:
    """Add the active threads of a main, which are all sampled."""
    threads, number = bucket.parts.setdefault(Role.THREAD, Part(rounds=1)), sum(active.values())
    add_up(threads.by_activity, active)
    threads.present += number
    bucket.awaited_threads += number if awaited else 0


def ends_of(processes: Iterable[FeederProcess]) -> frozenset[Ends]:
    """Ends of the inspected connections of `processes`."""
    probes = (process.deep for process in processes)
    return frozenset().union(*(probe.tcp.ends for probe in probes if probe and probe.tcp))
