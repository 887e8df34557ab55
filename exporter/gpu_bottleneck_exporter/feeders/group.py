"""The feeders of one GPU: states, counters and sampling rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, History, Role, add_up
from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    CPU_QUEUE,
    HOST_CODE,
    MAJORITY,
    MIN_OBSERVATIONS,
    NEGLIGIBLE,
    NETWORK,
    PEER,
    REQUESTS,
    STORAGE,
    UNKNOWN,
    engaged,
    run_is_counted,
)
from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.job import JobFacts, facts_of
from gpu_bottleneck_exporter.feeders.probe import DeepProbe
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.rings import Target
from gpu_bottleneck_exporter.feeders.serving import ServerSampler, Serving
from gpu_bottleneck_exporter.feeders.states import (
    UNCONNECTED,
    JobConnections,
    Situation,
    StateSampler,
    ends_of,
)
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.feeders.tree import Holders, ProcessFamily, ProcessTree
from gpu_bottleneck_exporter.feeders.usage import CounterReader, SocketTraffic
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import MAX_LISTED, list_numbers, read
from gpu_bottleneck_exporter.host.process import Started, allowed_cpus, control_groups
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.schedule import CADENCE, RefreshSchedule
from gpu_bottleneck_exporter.workload.owners import Groups


class SamplingPace:
    """The sampling interval of one GPU's feeders, from the standard error of their waits.

    After n samples, the standard error of a share p is sqrt(p (1 - p) / n): a single wait needs few
    samples, two that alternate many, and run time, which the kernel counts, none. The rate is full
    until waits have been steady for `Cadence.recent_ns`.

    The GPU's reader records ticks; the watching thread does the rest.
    """

    def __init__(self) -> None:
        self._samples: dict[str, dict[Activity, float]] = {}
        """Samples by role and activity, older ones with less weight."""
        self._average: dict[str, float] = {}
        """Shares of idle time by `waiting_on`, averaged over a minute."""
        self._recent: dict[str, float] = {}
        """Shares of idle time by `waiting_on`, averaged over `Cadence.recent_ns`."""
        self._idle = False
        self._variance = JUDGED.max_variance
        """Maximum variance of a role's shares."""
        self._steady_ns = 0

    @property
    def is_steady(self) -> bool:
        """Whether the waits are steady."""
        return self._steady_ns >= CADENCE.recent_ns

    def pause(self, shortest: float, longest: float) -> float:
        """Seconds until the next sample."""
        if not self.is_steady:
            return shortest
        if not self._idle or not self._variance:
            return longest
        # Standard error of 0.05 over the range; half of it over a minute.
        return min(max(0.05**2 * JUDGED.rate_range_seconds / self._variance, shortest), longest)

    def note(self, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Add a tick: busy time, and idle time by `waiting_on`, in ns."""
        idle_ns = sum(stalls.values())
        elapsed_ns = active_ns + idle_ns
        self._steady_ns += elapsed_ns
        self._idle = idle_ns > NEGLIGIBLE * elapsed_ns
        if self._idle:
            shares = {wait: ns / idle_ns for wait, ns in stalls.items()}
            # Weighted by idle time, as few samples vary by chance.
            self._recent = _nearer(self._recent, shares, idle_ns / CADENCE.recent_ns)
            if _distance(self._recent, self._average) > MAJORITY:
                # Partly, so that alternating waits become usual.
                self._average = _nearer(self._average, self._recent, MAJORITY)
                self.restart()
            self._average = _nearer(self._average, shares, idle_ns / CADENCE.cache_ttl_ns)

    def note_samples(self, second: Bucket) -> None:
        """Add samples, except of run time, which the kernel counts."""
        if not second.of(Role.MAIN).rounds:
            return
        keep, by_role = max(1 - second.elapsed_ns / CADENCE.cache_ttl_ns, 0.0), self._samples
        for role in {*by_role, *second.parts}:
            part = second.of(role)
            weights = by_role.setdefault(role, {})
            for activity in weights:
                # Halved each second without processes.
                weights[activity] *= keep if part.rounds else 0.5
            states = dict(part.by_activity)
            if run_is_counted(role, second):
                add_up(states, {Activity.GONE: states.pop(Activity.RUN, 0)})
            add_up(states, {Activity.SLEEP: max(part.rounds - part.samples, 0)})
            add_up(weights, states)
            if sum(weights.values()) < 1:
                del by_role[role]
        self._variance = max(map(_variance_of, by_role.values()), default=JUDGED.max_variance)

    def restart(self) -> None:
        """Return to the full rate."""
        self._steady_ns, self._variance = 0, JUDGED.max_variance
        self._samples = {}  # a new one, as the other thread may iterate over it


def _variance_of(weights: Mapping[Activity, float]) -> float:
    """Variance of the most frequent activity's share, with one sample more for and against it."""
    whole = sum(weights.values())
    valid = whole - weights.get(Activity.GONE, 0.0)
    most = max(
        (number for activity, number in weights.items() if activity is not Activity.GONE),
        default=0.0,
    )
    share = (most + 1) / (valid + 2)
    return share * (1 - share) * valid / whole if whole else 0.0


def _nearer(old: Mapping[str, float], new: Mapping[str, float], weight: float) -> dict[str, float]:
    weight = min(weight, 1.0) if old else 1.0
    return {
        name: old.get(name, 0.0) + (new.get(name, 0.0) - old.get(name, 0.0)) * weight
        for name in {**old, **new}
    }


def _distance(shares: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Total variation distance, 0-1."""
    return sum(max(share - other.get(name, 0.0), 0.0) for name, share in shares.items())


class Pinned(NamedTuple):
    """Workers that outnumber the CPUs of their affinity, although their job has more.

    OpenMP, OpenCV and others set affinities.
    """

    pinned: int
    workers: int
    """Workers with a known affinity."""
    cpus: frozenset[int]

    @property
    def are_most(self) -> bool:
        """Whether most of the workers are pinned."""
        return self.pinned > self.workers / 2

    def __str__(self) -> str:
        """`all 8 workers may run on CPU 0 only`."""
        count = "all" if self.pinned == self.workers else f"{self.pinned} of"
        cpus = ", ".join(map(str, _ranges(sorted(self.cpus))))
        return f"{count} {self.workers} workers may run on CPU {cpus} only"


def pinned_workers(proc: Path, mains: Iterable[int], workers: Collection[int]) -> Pinned | None:
    """The pinned of `workers`, or None."""
    masks = Counter(filter(None, (_allowed(f"{proc}/{pid}") for pid in workers)))
    if len(masks) == masks.total():
        return None  # each has a CPU set of its own
    of_job = frozenset[int]().union(*(_of_threads(proc, pid) for pid in mains))
    pinned = {mask: n for mask, n in masks.items() if n > len(mask) < len(of_job)}
    cpus = frozenset[int]().union(*pinned)
    return Pinned(sum(pinned.values()), masks.total(), cpus) if pinned else None


def _of_threads(proc: Path, pid: int) -> frozenset[int]:
    folder = f"{proc}/{pid}/task"
    # OpenMP pins each thread of a pool; 32 show the job's CPUs.
    tids = islice(list_numbers(folder, MAX_LISTED), 32)
    return frozenset[int]().union(*(_allowed(f"{folder}/{tid}") for tid in tids))


def _allowed(folder: str) -> frozenset[int]:
    return allowed_cpus(read(f"{folder}/status") or "")


def _ranges(cpus: list[int]) -> Iterator[str]:
    """`0-3`, `8`."""
    ends = [n for n, cpu in enumerate(cpus) if cpus[n + 1 : n + 2] != [cpu + 1]]
    for first, last in zip([0, *(n + 1 for n in ends)], ends, strict=False):
        yield f"{cpus[first]}" if first == last else f"{cpus[first]}-{cpus[last]}"


Busiest = tuple[tuple[Started, ...], tuple[Started, ...]]
"""All mains, and other active processes, by falling activity."""


class FeederGroup:
    """All processes that feed one GPU.

    Written by the watching thread; any thread may read the history.
    """

    def __init__(
        self,
        proc: Path,
        groups: Cgroups,
        timeouts: AnswerTimeouts | None = None,
        units: Groups | None = None,
    ) -> None:
        """`proc`: the host's. The caller reads `groups`; `units` map these to jobs.

        `timeouts` of requests to other machines; None if connections cannot be inspected.
        """
        self.family = ProcessFamily(proc, timeouts)
        self.mains, self.workers = self.family.mains, self.family.workers
        self.states = StateSampler(proc, self.family)
        self.counters = CounterReader(self.family)
        self.history = History()
        self.pace = SamplingPace()
        self.holders = Holders()
        self.engaged = 0.0, 0
        """Share of the last tick in which the GPU worked or waited by itself; time in ns."""
        self.facts = JobFacts()
        self.pinned: Pinned | None = None
        """Workers that wait for their pinned CPUs."""
        self.traffic = SocketTraffic()
        """The job's traffic, if its network namespace is the machine's."""
        self.worker_starts = 0
        self.last_count_ns: int | None = None
        """Time of the last reading of counters."""
        self._proc = proc
        self._servers = ServerSampler(proc)
        self._groups = groups
        self._units = units or Groups(proc)
        self._timeouts = timeouts
        self._refreshing = RefreshSchedule()
        self._busy = 0.0
        self._idled_ns: int | None = None

    def adopt(self, tree: ProcessTree) -> None:
        """Adopt a discovered tree."""
        self.holders, had_mains = tree.holders, bool(self.mains)
        new_mains, new_workers = self.family.adopt(tree)
        self.worker_starts += new_workers if had_mains else 0
        if new_mains or new_workers:
            self.pace.restart()
            self.counters.handovers.forget()
        # A runtime may move a process into its control group after its start.
        texts = {pid: control_groups(self._proc, pid) for pid in self.mains}
        groups = {pid: self._groups.get(text) for pid, text in texts.items() if text}
        self.counters.adopt_cgroups({pid: group for pid, group in groups.items() if group})

    def refresh_facts(self, now_ns: int) -> None:
        """Read the facts of the mains if due."""
        cgroups = self.counters.cgroups
        if self._refreshing.is_due(now_ns, (cgroups, *self.mains.values())):
            self.facts = facts_of(self._proc, self.mains, cgroups, self._units)

    def note(self, tick: Tick) -> None:
        """Record a tick."""
        active_ns = tick.active_ns
        elapsed_ns = max(active_ns + sum(tick.stalls.values()), 1)
        self.engaged = engaged(active_ns, tick.stalls) / elapsed_ns, tick.at_ns
        self.pace.note(active_ns, tick.stalls)
        self._busy = active_ns / elapsed_ns
        if active_ns and self._timeouts:
            self._timeouts.record_work(tick.at_ns)
        if self._busy < 1 - NEGLIGIBLE:
            self._idled_ns = tick.at_ns

    def idles(self, now_ns: int) -> bool:
        """Whether the GPU idled within `Cadence.recent_ns`: deep probes are worth their cost."""
        return self._idled_ns is not None and now_ns - self._idled_ns < CADENCE.recent_ns

    def sample(
        self,
        now_ns: int,
        connections: JobConnections = UNCONNECTED,
        *,
        fresh_ns: int = 0,
        mains_only: bool = False,
    ) -> bool:
        """Sample the mains, and a few workers in turn; False if a worker has ended.

        `fresh_ns`: the age up to which a main's sample is reused.
        """
        situation = Situation(
            idle=1 - self._busy if self.idles(now_ns) else None,
            connections=connections,
            notebook=self.facts.notebook,
            fresh_ns=fresh_ns,
        )
        bucket = self.states.sample(now_ns, situation, mains_only=mains_only)
        self.history.add_pass(bucket)
        return Activity.GONE not in bucket.of(Role.WORKER).by_activity

    def advance(self, now_ns: int) -> bool:
        """Complete a second with counters; False if a process has ended."""
        before, deep = self.last_count_ns, self.idles(now_ns)
        self.last_count_ns = now_ns
        second = self.history.passes_since(before or 0)
        second.at_ns, second.elapsed_ns = now_ns, now_ns - (before or now_ns)
        complete = self.counters.read(second, self._busy, deep=deep)
        if not self.workers:
            self._record_clients(now_ns)
        self.history.add_second(second)
        self.pace.note_samples(second)
        states = self.states
        states.conclude(second, deep=deep)
        if deep and self.facts.shares_network:
            whole = self.family.worker_count == len(states.probed.members)
            job = [process for process in self._processes() if not process.stranger]
            self.traffic.advance(job, now_ns, whole=whole)
        if not deep:
            self.traffic.pause()
            for process in (*self.mains.values(), *states.probed.members):
                process.close_deep()
        return complete

    def _record_clients(self, now_ns: int) -> None:
        if self._busy < MAJORITY or self._timeouts is None or self.idles(now_ns):
            return  # each sample of an idle GPU's main records it
        for main in self.mains.values():
            if main.works.is_due(now_ns):
                deep = main.deepen()
                deep.inspect_connections(now_ns, now=True)
                if deep.tcp and deep.tcp.ports:
                    clients = deep.tcp.has_active_clients
                    main.works.note(clients=clients, busy=self._busy, samples=MIN_OBSERVATIONS)

    @property
    def sees_all_threads(self) -> bool:
        """Whether no process exceeds the limit of threads."""
        return all(deep.threads.complete for deep in self._deep())

    @property
    def sees_all_sockets(self) -> bool:
        """Whether no process exceeds the limit of sockets."""
        return all(deep.tcp.sockets.complete for deep in self._deep() if deep.tcp)

    def _processes(self) -> Iterator[FeederProcess]:
        yield from (*self.mains.values(), *self.states.probed.members)
        yield from self.family.related.values()

    def _deep(self) -> Iterator[DeepProbe]:
        return (process.deep for process in self._processes() if process.deep)

    def inspect_connections(self, now_ns: int) -> None:
        """Inspect connections; workers' only if a main has a local request."""
        processes = [*self.mains.values(), *self.family.related.values()]
        if any(deep.tcp.awaits_local_process for deep in self._deep() if deep.tcp):
            processes += self.states.probed.members
        for process in processes:
            process.deepen().inspect_connections(now_ns)

    @property
    def own_ends(self) -> frozenset[Ends]:
        """Connection ends of workers and related processes."""
        return ends_of([*self.states.probed.members, *self.family.job_related(1 - self._busy)])

    @property
    def lacks_clients(self) -> bool:
        """Whether a main listens, and has no clients."""
        return any(main.deep.lacks_clients for main in self.mains.values() if main.deep)

    def drain_awaited(self) -> dict[int, set[int | None]]:
        """Descriptors by pid on which mains, workers and kin waited since the last call."""
        probes = {
            process.pid: process.deep for process in self._processes() if not process.stranger
        }
        awaited = {pid: deep.drain_awaited() for pid, deep in probes.items() if deep}
        return {pid: numbers for pid, numbers in awaited.items() if numbers}

    @property
    def started(self) -> frozenset[Started]:
        """The mains."""
        return frozenset(_ranked(self.mains.values()))

    def busiest(self) -> Busiest:
        """The mains, and recently active workers and related processes."""
        related = self.family.related.values()
        helpers = [
            *self.states.probed.members,
            *(process for process in related if process.counts(1 - self._busy)),
        ]
        active = [process for process in helpers if process.active > NEGLIGIBLE]
        return _ranked(self.mains.values()), _ranked(active)

    def is_stranger(self, pid: int) -> bool:
        """Whether a process is no main, worker or kin."""
        feeders = (self.family.known, self.mains, self.family.kin)
        return not any(pid in group for group in feeders)

    def serving(self, now_ns: int) -> Serving | None:
        """The clients of its server, or None; too costly for every tick."""
        if self._timeouts is None or not self.states.is_server(asked=True):
            return None
        kin = self.family.kin - self.mains.keys()
        processes = {**self.mains, **{pid: self.family.related[pid] for pid in kin}}
        probes = {pid: process.deep for pid, process in processes.items()}
        serving = self._servers.sample(now_ns, probes, self.states.job_ends)
        if serving and self.states.is_server(asked=serving.requests_in_flight > 0):
            return serving
        return None

    def evidence(self, now_ns: int, peers: Collection[int] = ()) -> tuple[tuple[str, str], ...]:
        """Details of recent waits, by `waiting_on`. Too costly for every tick.

        `peers`: pids of the most engaged rank while this one idled.
        """
        second, self.pinned = self.history.seconds(now_ns - CADENCE.window_ns, now_ns), None
        if second is None or not self.idles(now_ns):
            return ()
        tcp = [deep.tcp for deep in self._deep() if deep.tcp]
        used = second.of(Role.WORKER).used
        if used.queue_ns > max(MAJORITY * used.cpu_ns, NEGLIGIBLE * second.elapsed_ns):
            sampled = [worker.pid for worker in self.states.probed.members]
            self.pinned = pinned_workers(self._proc, self.mains, sampled)
        files = any(Activity.DISK in part.by_activity for part in second.parts.values())
        pids = [*self.mains, *self.workers][:4] if files else []
        texts_by_wait = {
            ASLEEP: evidence.asleep(second.reasons),
            REQUESTS: evidence.spinning(second.reasons),
            NETWORK: (
                *evidence.pending((tracker.pending for tracker in tcp if tracker.pending), now_ns),
                *evidence.datagrams(
                    (tracker.datagram_source for tracker in tcp if tracker.datagram_source), now_ns
                ),
            ),
            PEER: evidence.rank(peers),
            HOST_CODE: evidence.threads(
                second.of(Role.THREAD).used.cpu_ns / max(second.elapsed_ns, 1),
                self.counters.busiest_thread,
            ),
            CPU_QUEUE: [f"{self.pinned}"] if self.pinned else [],
            STORAGE: evidence.storage(self._proc, pids),
            UNKNOWN: evidence.in_driver(
                second.of(Role.MAIN).shares().get(Activity.DRIVER, 0.0),
                {main.reader.driver_lock for main in self.mains.values()},
            ),
        }
        waits = {Target.FILES: STORAGE, Target.SOCKETS: NETWORK, Target.UNKNOWN: UNKNOWN}
        trackers = [deep.rings for deep in self._deep()]
        submitted = (
            (wait, text)
            for target, wait in waits.items()
            for text in evidence.submissions(trackers, target, now_ns)
        )
        return (
            *((wait, text) for wait, texts in texts_by_wait.items() for text in texts),
            *submitted,
        )

    def close(self) -> None:
        """Close all descriptors."""
        self.family.close()
        self._servers.close()


def _ranked(processes: Iterable[FeederProcess]) -> tuple[Started, ...]:
    ranked = sorted(processes, key=lambda process: -process.active)
    return tuple((process.pid, process.reader.started_ticks) for process in ranked)
