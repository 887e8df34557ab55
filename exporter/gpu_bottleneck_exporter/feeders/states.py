"""What the feeders of one GPU do, pass by pass: each pass is a bucket of samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Part, Role, add_up
from gpu_bottleneck_exporter.feeders.evidence import POLLS
from gpu_bottleneck_exporter.feeders.probe import Seen, Surroundings
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.tree import DeeplyProbed, Family, RoundRobin
from gpu_bottleneck_exporter.host.mounts import Places
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import LATELY_NS, SHORTLY_NS

_PER_PASS = 2
"""Of workers and of related processes, in turn: forty looks at workers in the 4 s over which
helpers are judged, at a cost that does not grow with them."""
_EXPLAINED = 0.8
"""So many active workers at all times explain the waiting."""
_HARDLY_RUN = 0.1
"""Of a core: threads that use no more load nothing."""
_AWAY = frozenset({Wait.TIMER.value, Wait.SOCKET.value})
"""Where a worker does not wait for its next task, even if nobody owes it an answer."""


@dataclass(frozen=True, slots=True)
class JobConnections:
    """How the processes of a GPU are connected with the others of their job."""

    ends: frozenset[Ends] = frozenset()
    """Local and remote ends of the mains' connections."""
    ours: frozenset[Ends] = frozenset()
    """Those of the job's other processes."""
    peers: frozenset[Ends] = frozenset()
    """Those of its other GPUs only."""
    joined: frozenset[str] = frozenset()
    """UUIDs of GPUs with whose mains these are connected."""
    is_rank: bool = False


UNCONNECTED = JobConnections()


class Situation(NamedTuple):
    """What is known around a GPU when its feeders are sampled."""

    idle: float | None = None
    """Share of the time, 0-1, in which the GPU idles; None if deep probes are not worth their
    cost."""
    connections: JobConnections = UNCONNECTED
    notebook: bool = False
    """Whether a main is a notebook's kernel."""
    fresh_ns: int = 0
    """What is younger than this is not read again for a main."""


class StateSampler:
    """Used by the watching thread only."""

    def __init__(self, proc: Path, family: Family) -> None:
        """`proc`: the host's."""
        self._situation = Situation()
        """At the last sample."""
        self.resting = False
        """Whether no worker and no related process was active in the last second."""
        self.explained = False
        """Whether tasks that run or are in D state explain the waiting without deep probes."""
        self.probed = DeeplyProbed()
        """The workers that are sampled."""
        self.wait_ns: dict[tuple[str, str], int] = {}
        """By role and what was waited on, since the start (`Activity.waits_as`)."""
        self._busy = 0.0
        """Share of the last tick in which the GPU worked, 0-1; 0 if it is not idle at all."""
        self._sampled_ns = self._worked_ns = 0
        """Monotonic time of the last sample at which the GPU had worked in the last tick."""
        self._family = family
        self._places = Places(proc)
        self._workers_in_turn, self._related_in_turn = RoundRobin(), RoundRobin()
        self._at_ns: dict[str, int] = {}
        """By role, when it was last looked at."""

    def sample(self, now_ns: int, situation: Situation, *, mains_only: bool) -> Bucket:
        """Sample the mains, and a few workers in turn."""
        bucket, idle = Bucket(now_ns), situation.idle
        self._sampled_ns, self._situation = now_ns, situation
        self._busy = 0.0 if idle is None else 1 - idle
        if idle is None or idle < 1:
            self._worked_ns = now_ns
        self._sample_mains(bucket, deep=idle is not None)
        others = bool(self._family.related) or not mains_only
        around = self._around_others() if others and idle is not None else None
        self.probed.choose_from(self._family.workers, now_ns)
        if not mains_only:
            workers = Part(present=self._family.worker_count, rounds=1)
            bucket.parts[Role.WORKER] = workers
            # While all workers rest, each needs a costly deep probe: one per pass is enough.
            count = 1 if self.resting else _PER_PASS
            for worker in self._workers_in_turn.take(count, self.probed.members):
                workers.note(self._whole(worker, bucket, around))
        if idle is not None:
            self._sample_related(bucket, idle, around)
            self._count_runnable(bucket)
        for role in (Role.MAIN, Role.WORKER):
            self._count_waits(role, bucket)
        return bucket

    def conclude(self, second: Bucket, *, deep: bool) -> None:
        """Note what the last `second` says of the next one; `deep`: the GPU idles."""
        main, workers = second.of(Role.MAIN).used, second.of(Role.WORKER)
        seen = {*workers.by_activity, *second.of(Role.RELATED).by_activity}
        running = workers.mean(Activity.RUN) + workers.mean(Activity.DISK)
        others_ns = main.own_cpu_ns - main.leader_cpu_ns
        self.resting = deep and all(activity.rests for activity in seen)
        self.explained = (
            deep
            and running >= _EXPLAINED
            and others_ns < _HARDLY_RUN * second.elapsed_ns
            and not self._family.is_undecided
        )

    @property
    def _may_serve(self) -> bool:
        """Whether mains that listen may be servers."""
        situation = self._situation
        is_rank = situation.connections.is_rank
        return not (self._family.workers or is_rank or situation.notebook)

    def _sample_mains(self, bucket: Bucket, *, deep: bool) -> None:
        behind = deep and not self.explained
        main = bucket.parts[Role.MAIN] = Part(present=len(self._family.mains), rounds=1)
        threads = Part(rounds=1)
        for process in self._family.mains.values():
            seen = process.probe(bucket.at_ns, self._around(process) if behind else None)
            if deep and not behind and seen.first is Activity.NETWORK:
                # Only its sockets tell whether it waits for the workers that run.
                behind, seen = True, process.probe(bucket.at_ns, self._around(process))
            activity = self._activity(process, seen, bucket.reasons) if behind else seen.first
            main.note(activity)
            process.note(activity)
            self._find_hidden_io(process, seen, bucket.at_ns)
            if behind and (waits := self._family.waits.get(process.pid)):
                waits.note(process.deepen().awaits)
            if seen.active and activity is not Activity.REQUESTS:
                add_up(threads.by_activity, seen.active)
                if activity is Activity.QUEUE:
                    bucket.awaited_threads += sum(seen.active.values())
            if deep:
                self._locate(seen, bucket)
        if behind:
            threads.present = threads.samples  # each that is active is seen at each look
            bucket.parts[Role.THREAD] = threads

    def _around(self, main: Process) -> Surroundings:
        connections = self._situation.connections
        return Surroundings(
            connections.ours,
            connections.peers,
            self._family.known,
            main.leader_rests,
            self._situation.fresh_ns,
            holds=True,
            may_serve=self._may_serve and not main.works.by_itself,
        )

    def _activity(self, main: Process, seen: Seen, reasons: dict[str, int]) -> Activity:
        """What a main does, given what is behind its sleep."""
        kin = [self._family.related[pid].deep for pid in self._family.kin]
        for_peer = seen.peer or any(one.peer for one in kin if one)
        if for_peer and seen.first.rests and not seen.active:
            return Activity.PEER
        if seen.reason != Wait.STOPPED.value and self._lacks_demand(main, seen):
            if seen.whole is Activity.RUN:
                add_up(reasons, {POLLS: 1})
            return Activity.REQUESTS
        if not seen.first.rests or seen.active:
            return seen.first
        if any(
            one.reader.wait() in (Wait.RUN, Wait.DISK, Wait.CHILD) for one in self._family.compilers
        ):
            return Activity.RUN
        add_up(reasons, {seen.reason: 1})
        return seen.first

    def _lacks_demand(self, main: Process, seen: Seen) -> bool:
        """Whether a main, or what it works for, waits for a request or for a task."""
        kin = (self._family.related[pid].deep for pid in self._family.kin)
        deep = [one for one in (main.deep, *kin) if one is not None]
        rests = seen.first.rests and not seen.active
        servers = [one for one in deep if one.listens]
        asked = any(one.asked for one in servers)
        if servers:
            main.works.note(clients=asked, busy=self._busy)
        if any(one.lacks_tasks for one in deep) and rests:
            return True
        serves = any(one.serving for one in deep) and not (asked or main.works.by_itself)
        if not serves or not (self._may_serve or main.works.for_clients):
            return False
        # A server that spins, or that reports to its cluster, waits for no answer.
        polls = seen.whole is Activity.RUN and self._is_unused
        return rests or polls or (main.works.for_clients and not seen.whole.on_files)

    @property
    def _is_unused(self) -> bool:
        """Whether the GPU has not worked lately."""
        return self._sampled_ns - self._worked_ns > LATELY_NS

    def _around_others(self) -> Surroundings:
        """Surroundings of processes without a GPU: a main's answer does not come by network."""
        connections = self._situation.connections
        ours = ends_of(self._family.mains.values()) | connections.ours
        return Surroundings(ours, connections.peers, self._family.known)

    def _whole(self, process: Process, bucket: Bucket, around: Surroundings | None) -> Activity:
        """What a process that holds no GPU does, as a whole."""
        seen = process.probe(bucket.at_ns, around)
        if around:
            self._locate(seen, bucket)
        self._find_hidden_io(process, seen, bucket.at_ns)
        activity = seen.whole
        process.note(activity)
        away = activity is Activity.SLEEP and seen.reason in _AWAY
        return Activity.TIMER if away else activity

    def _sample_related(self, bucket: Bucket, idle: float, around: Surroundings | None) -> None:
        """Look at two of them in turn; strangers that do little do not count."""
        related = self._family.related.values()
        if not related:
            return
        part = bucket.parts[Role.RELATED] = Part(rounds=1)
        for process in self._related_in_turn.take(_PER_PASS, related):
            activity = self._whole(process, bucket, around)
            if process.counts(idle):
                part.note(activity)
        part.present = sum(one.counts(idle) for one in related)

    def _count_runnable(self, bucket: Bucket) -> None:
        counted = [main.runnable(bucket.at_ns) for main in self._family.mains.values()]
        known = [one for one in counted if one]
        if len(known) == len(counted):
            bucket.runnable_ns = sum(runnable_ns for runnable_ns, _ in known)
            bucket.counted_ns = sum(of_ns for _, of_ns in known)

    def _locate(self, seen: Seen, bucket: Bucket) -> None:
        """Note where the file is for which a thread waits: of one thread at each pass.

        The mains come first, so that theirs and their helpers' are noted as often as the GPU waits
        for them.
        """
        if seen.in_file and not bucket.places:
            bucket.places = {self._places.locate(*seen.in_file, bucket.at_ns): 1}

    def _find_hidden_io(self, process: Process, seen: Seen, now_ns: int) -> None:
        """Note that a process waits for files of which the kernel does not account for the I/O."""
        if not (process.may_hide_io and seen.in_file):
            return
        is_due = not process.hides_io(now_ns + SHORTLY_NS)
        if is_due and self._places.is_without_device(*seen.in_file, now_ns):
            process.note_hidden_io(now_ns)

    def _count_waits(self, role: str, bucket: Bucket) -> None:
        """Count waits since the last look: those sampled stand for all of the role."""
        if role not in bucket.parts:
            return  # its time is left to the next look
        part, samples = bucket.parts[role], bucket.parts[role].samples
        elapsed_ns = (bucket.at_ns - self._at_ns.get(role, bucket.at_ns)) * part.present
        self._at_ns[role] = bucket.at_ns
        for activity, number in part.by_activity.items():
            if activity.waits:
                add_up(self.wait_ns, {(role, activity.waits_as): elapsed_ns * number // samples})


def ends_of(processes: Iterable[Process]) -> frozenset[Ends]:
    """Local and remote ends of their connections that were inspected."""
    probes = (process.deep for process in processes)
    return frozenset().union(*(one.tcp.ends for one in probes if one and one.tcp))
