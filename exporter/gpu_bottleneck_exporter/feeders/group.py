"""The feeders of one GPU: who they are, what they do, and what they used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import WINDOW_NS, Bucket, History, Role, add_up
from gpu_bottleneck_exporter.accounting.stall import (
    ASLEEP,
    CPU_QUEUE,
    HOST_CODE,
    MAJORITY,
    MIN_IDLE_SHARE,
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
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.rings import Target
from gpu_bottleneck_exporter.feeders.states import (
    UNCONNECTED,
    JobConnections,
    Situation,
    StateSampler,
    ends_of,
)
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import Family, Holders, ProcessTree
from gpu_bottleneck_exporter.feeders.usage import CounterReader, SocketTraffic
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import MAX_LISTED, list_numbers, read
from gpu_bottleneck_exporter.host.process import Started, allowed_cpus, control_groups
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.schedule import LATELY_NS, LONG_NS, RefreshSchedule
from gpu_bottleneck_exporter.workload.owners import Groups

_ERROR = 0.05
"""Standard error of a share of the time over `_SCRAPED_SECONDS`: half of it over a minute."""
_SCRAPED_SECONDS = 15.0
"""The shortest time over which Prometheus is mostly asked for rates."""
_MAX_SPREAD = 0.25
"""Variance of a share of one half, the largest: as long as nothing is known."""
_FORGETS = 0.5
"""What is left, second by second, of looks at those who are not looked at any more."""
_DIFFERS = MAJORITY
"""So much of the idle time goes to other waits than before: looks are worth more again."""


class Pace:
    """How often one GPU's feeders are looked at: as often as tells their waits apart.

    Looks estimate shares: after n of them, the standard error of a share p is
    sqrt(p (1 - p) / n). What the kernel counts, such as run time, takes none. So mains that always
    sleep in the same way take few looks, and those that wait in two ways by turns take many.
    Whatever changes is looked at as often as may be until it has lasted for `LATELY_NS`.

    The GPU's reader notes ticks, the watching thread looks and asks.
    """

    def __init__(self) -> None:
        self._looks: dict[str, dict[Activity, float]] = {}
        """By role and activity, older ones with less weight."""
        self._usual: dict[str, float] = {}
        """Shares of the idle time by `waiting_on`, as they were for the last minute."""
        self._lately: dict[str, float] = {}
        """The same of the last seconds."""
        self._idle = False
        """Whether there is anything to explain."""
        self._variance = _MAX_SPREAD
        """The largest variance of a role's shares, after the last call of `note_looks`."""
        self._lasted_ns = 0

    @property
    def lasts(self) -> bool:
        """Whether it goes on as before."""
        return self._lasted_ns >= LATELY_NS

    def pause(self, shortest: float, longest: float) -> float:
        """Seconds until the next look."""
        if not self.lasts:
            return shortest
        if not self._idle or not self._variance:
            return longest
        return min(max(_ERROR**2 * _SCRAPED_SECONDS / self._variance, shortest), longest)

    def note(self, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Note how a tick was split: busy time, and idle time by `waiting_on`."""
        idle_ns = sum(stalls.values())
        elapsed_ns = active_ns + idle_ns
        self._lasted_ns += elapsed_ns
        self._idle = idle_ns > MIN_IDLE_SHARE * elapsed_ns  # what is so little is no wait
        if self._idle:
            shares = {wait: ns / idle_ns for wait, ns in stalls.items()}
            # By idle time: of little, chance makes other shares.
            self._lately = _nearer(self._lately, shares, idle_ns / LATELY_NS)
            if _distance(self._lately, self._usual) > _DIFFERS:
                # Not all of the way, so that waits that take turns become usual.
                self._usual = _nearer(self._usual, self._lately, _DIFFERS)
                self.restart()
            self._usual = _nearer(self._usual, shares, idle_ns / LONG_NS)

    def note_looks(self, second: Bucket) -> None:
        """Note what looks saw since the last call; run time that the kernel counts takes none."""
        if not second.of(Role.MAIN).rounds:
            return
        keep, known = max(1 - second.elapsed_ns / LONG_NS, 0.0), self._looks
        for role in {*known, *second.parts}:
            part = second.of(role)
            looks = known.setdefault(role, {})
            for activity in looks:
                looks[activity] *= keep if part.rounds else _FORGETS
            seen = dict(part.by_activity)
            if run_is_counted(role, second):
                add_up(seen, {Activity.GONE: seen.pop(Activity.RUN, 0)})
            add_up(seen, {Activity.SLEEP: max(part.rounds - part.samples, 0)})
            add_up(looks, seen)
            if sum(looks.values()) < 1:
                del known[role]
        self._variance = max(map(_spread, known.values()), default=_MAX_SPREAD)

    def restart(self) -> None:
        """It is another one now: other processes, or other waits."""
        self._lasted_ns, self._variance = 0, _MAX_SPREAD
        self._looks = {}  # a new one, as the other thread may just go through it


def _spread(looks: Mapping[Activity, float]) -> float:
    """Variance of the share of what was seen most, by looks that say something.

    As if it had been seen once more, and something else, too: of few looks little is known.
    """
    whole = sum(looks.values())
    says = whole - looks.get(Activity.GONE, 0.0)
    most = max((number for one, number in looks.items() if one is not Activity.GONE), default=0.0)
    share = (most + 1) / (says + 2)
    return share * (1 - share) * says / whole if whole else 0.0


def _nearer(old: Mapping[str, float], new: Mapping[str, float], weight: float) -> dict[str, float]:
    """Shares between `old` and `new`."""
    weight = min(weight, 1.0) if old else 1.0
    return {
        name: old.get(name, 0.0) + (new.get(name, 0.0) - old.get(name, 0.0)) * weight
        for name in {**old, **new}
    }


def _distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """How much of `one` went elsewhere in `other`, 0-1."""
    return sum(max(share - other.get(name, 0.0), 0.0) for name, share in one.items())


_MAX_THREADS = 32
"""Threads of a main whose affinity is read: OpenMP gives each of a pool its own."""


class Pinned(NamedTuple):
    """Workers that share fewer CPUs than they are, although their job has more.

    OpenMP, OpenCV and others set the affinity of the processes that use them.
    """

    pinned: int
    workers: int
    """Of which the affinity is known."""
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
    """Those of `workers` that are pinned; None without any."""
    masks = Counter(filter(None, (_allowed(f"{proc}/{pid}") for pid in workers)))
    if len(masks) == masks.total():
        return None  # each has its own
    of_job = frozenset[int]().union(*(_of_threads(proc, pid) for pid in mains))
    held = {mask: n for mask, n in masks.items() if n > len(mask) < len(of_job)}
    cpus = frozenset[int]().union(*held)
    return Pinned(sum(held.values()), masks.total(), cpus) if held else None


def _of_threads(proc: Path, pid: int) -> frozenset[int]:
    folder = f"{proc}/{pid}/task"
    tids = islice(list_numbers(folder, MAX_LISTED), _MAX_THREADS)
    return frozenset[int]().union(*(_allowed(f"{folder}/{tid}") for tid in tids))


def _allowed(folder: str) -> frozenset[int]:
    return allowed_cpus(read(f"{folder}/status") or "")


def _ranges(cpus: list[int]) -> Iterator[str]:
    """`0-3`, `8`."""
    ends = [n for n, cpu in enumerate(cpus) if cpus[n + 1 : n + 2] != [cpu + 1]]
    for first, last in zip([0, *(n + 1 for n in ends)], ends, strict=False):
        yield f"{cpus[first]}" if first == last else f"{cpus[first]}-{cpus[last]}"


_WAITS = {Target.FILES: STORAGE, Target.SOCKETS: NETWORK, Target.UNKNOWN: UNKNOWN}

Busiest = tuple[tuple[Started, ...], tuple[Started, ...]]
"""All mains, and other processes that are active, the most active first."""


class FeederGroup:
    """Only the watching thread changes it; any thread may ask the history."""

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
        self.states = StateSampler(proc, self.family)
        self.counters = CounterReader(self.family)
        self.history = History()
        self.pace = Pace()
        self.holders = Holders()
        """As last discovered."""
        self.engaged = 0.0, 0
        """Share of the last tick in which the GPU worked or waited by itself; when that was."""
        self.facts = JobFacts()
        """Of the mains, as last read."""
        self.pinned: Pinned | None = None
        """Workers that wait for the CPUs to which they are pinned."""
        self.traffic = SocketTraffic()
        """Of the job, where its network namespace is the machine's."""
        self.worker_starts = 0
        self.last_count_ns: int | None = None
        """When the counters were last read."""
        self._proc = proc
        self._groups = groups
        self._units = units or Groups(proc)
        self._timeouts = timeouts
        self._refreshing = RefreshSchedule()
        self._busy = 0.0
        self._idled_ns: int | None = None

    def adopt(self, tree: ProcessTree) -> None:
        """Take over a newly discovered tree."""
        self.holders, started_before = tree.holders, bool(self.mains)
        came, started = self.family.adopt(tree)
        self.worker_starts += started if started_before else 0
        if came or started:
            self.pace.restart()
            self.counters.handovers.forget()
        # A runtime may move a process into its control group after it started: ask again.
        texts = (control_groups(self._proc, pid) for pid in self.mains)
        groups = (self._groups.get(text) for text in texts if text)
        self.counters.adopt_cgroups([group for group in groups if group])

    def refresh_facts(self, now_ns: int) -> None:
        """Read the facts of the mains again, if that is due."""
        cgroups = self.counters.cgroups
        if self._refreshing.is_due(now_ns, (cgroups, *self.mains.values())):
            self.facts = facts_of(self._proc, self.mains, cgroups, self._units)

    def note(self, tick: Tick) -> None:
        """Note what the GPU did."""
        active_ns = tick.active_ns
        elapsed_ns = max(active_ns + sum(tick.stalls.values()), 1)
        self.engaged = engaged(active_ns, tick.stalls) / elapsed_ns, tick.at_ns
        self.pace.note(active_ns, tick.stalls)
        self._busy = active_ns / elapsed_ns
        if active_ns and self._timeouts:
            self._timeouts.record_work(tick.at_ns)
        if self._busy < 1 - MIN_IDLE_SHARE:
            self._idled_ns = tick.at_ns

    def idles(self, now_ns: int) -> bool:
        """Whether the GPU idles or did so lately, so that deep probes are worth their cost.

        Lately, to see loops that stall now and then; False until anything is known of it.
        """
        return self._idled_ns is not None and now_ns - self._idled_ns < LATELY_NS

    def sample(
        self,
        now_ns: int,
        connections: JobConnections = UNCONNECTED,
        *,
        fresh_ns: int = 0,
        mains_only: bool = False,
    ) -> bool:
        """Sample what the mains do, and a few workers in turn.

        `fresh_ns`: what is younger is not read again for a main. False if a process has ended, so
        that the tree is out of date.
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
        """Close a second with the counters; False if the tree is out of date."""
        before, deep = self.last_count_ns, self.idles(now_ns)
        self.last_count_ns = now_ns
        second = self.history.passes_since(before or 0)
        second.at_ns, second.elapsed_ns = now_ns, now_ns - (before or now_ns)
        complete = self.counters.read(second, self._busy, deep=deep)
        if not self.workers:
            self._ask_for_whom_it_works(now_ns)
        self.history.add_second(second)
        self.pace.note_looks(second)
        states = self.states
        states.conclude(second, deep=deep)
        if deep and self.facts.shares_network:
            whole = self.family.worker_count == len(states.probed.members)
            job = [one for one in self._processes() if not one.stranger]
            self.traffic.advance(job, now_ns, whole=whole)
        if not deep:
            self.traffic.pause()
            for process in (*self.mains.values(), *states.probed.members):
                process.close_deep()
        return complete

    def _ask_for_whom_it_works(self, now_ns: int) -> None:
        """Find out whether mains that have no workers make the GPU work for clients."""
        if self._busy < MAJORITY or self._timeouts is None or self.idles(now_ns):
            return  # where it idles, each sample of a main shows whether requests are open
        for main in self.mains.values():
            if main.works.is_due(now_ns):
                deep = main.deepen()
                deep.inspect_connections(now_ns, now=True)
                if deep.tcp and deep.tcp.ports:
                    clients = deep.tcp.has_active_clients
                    main.works.note(clients=clients, busy=self._busy, looks=MIN_OBSERVATIONS)

    @property
    def sees_all_threads(self) -> bool:
        """Whether no process had more threads than are looked at."""
        return all(deep.threads.complete for deep in self._deep())

    @property
    def sees_all_sockets(self) -> bool:
        """Whether no process had more sockets than are looked at."""
        return all(deep.tcp.sockets.complete for deep in self._deep() if deep.tcp)

    def _processes(self) -> Iterator[Process]:
        yield from (*self.mains.values(), *self.states.probed.members)
        yield from self.family.related.values()

    def _deep(self) -> Iterator[DeepProbe]:
        return (one.deep for one in self._processes() if one.deep)

    def inspect_connections(self, now_ns: int) -> None:
        """Inspect those of its processes; workers only where a main asks this machine."""
        processes = [*self.mains.values(), *self.family.related.values()]
        if any(deep.tcp.awaits_local_process for deep in self._deep() if deep.tcp):
            processes += self.states.probed.members
        for process in processes:
            process.deepen().inspect_connections(now_ns)

    @property
    def own_ends(self) -> frozenset[Ends]:
        """The ends of workers and related processes."""
        return ends_of([*self.states.probed.members, *self.family.in_the_job(1 - self._busy)])

    @property
    def lacks_clients(self) -> bool:
        """Whether a main listens, and at the last look nobody was connected."""
        return any(main.deep.lacks_clients for main in self.mains.values() if main.deep)

    def drain_awaited(self) -> dict[int, set[int | None]]:
        """What mains, workers and kin waited on since the last call, by pid; see `DeepProbe`."""
        probes = {one.pid: one.deep for one in self._processes() if not one.stranger}
        found = {pid: deep.drain_awaited() for pid, deep in probes.items() if deep}
        return {pid: numbers for pid, numbers in found.items() if numbers}

    @property
    def started(self) -> frozenset[Started]:
        """The mains."""
        return frozenset(_ranked(self.mains.values()))

    def busiest(self) -> Busiest:
        """The mains, and the workers and related processes that were active lately."""
        related = self.family.related.values()
        helpers = [*self.states.probed.members, *(o for o in related if o.counts(1 - self._busy))]
        active = [one for one in helpers if one.active > NEGLIGIBLE]
        return _ranked(self.mains.values()), _ranked(active)

    def is_stranger(self, pid: int) -> bool:
        """Whether a process neither holds the GPU nor is known to feed it."""
        known = (self.family.known, self.mains, self.family.kin)
        return not any(pid in some for some in known)

    def evidence(self, now_ns: int, peers: Collection[int] = ()) -> tuple[tuple[str, str], ...]:
        """What was seen behind the waiting lately, by `waiting_on`. Too costly for every tick.

        `peers`: pids of the rank that was engaged most while this one idled.
        """
        did, self.pinned = self.history.seconds(now_ns - WINDOW_NS, now_ns), None
        if did is None or not self.idles(now_ns):
            return ()
        tcp = [deep.tcp for deep in self._deep() if deep.tcp]
        used = did.of(Role.WORKER).used
        if used.queue_ns > max(MAJORITY * used.cpu_ns, NEGLIGIBLE * did.elapsed_ns):
            sampled = [worker.pid for worker in self.states.probed.members]
            self.pinned = pinned_workers(self._proc, self.mains, sampled)
        files = any(Activity.DISK in part.by_activity for part in did.parts.values())
        pids = [*self.mains, *self.workers][:4] if files else []
        seen = {
            ASLEEP: evidence.asleep(did.reasons),
            REQUESTS: evidence.spinning(did.reasons),
            NETWORK: (
                *evidence.pending((one.pending for one in tcp if one.pending), now_ns),
                *evidence.datagrams(
                    (one.datagram_source for one in tcp if one.datagram_source), now_ns
                ),
            ),
            PEER: evidence.rank(peers),
            HOST_CODE: evidence.threads(
                did.of(Role.THREAD).used.cpu_ns / max(did.elapsed_ns, 1),
                self.counters.busiest_thread,
            ),
            CPU_QUEUE: [f"{self.pinned}"] if self.pinned else [],
            STORAGE: evidence.storage(self._proc, pids),
            UNKNOWN: evidence.in_driver(
                did.of(Role.MAIN).shares().get(Activity.DRIVER, 0.0),
                {main.reader.driver_lock for main in self.mains.values()},
            ),
        }
        trackers = [deep.rings for deep in self._deep()]
        submitted = (
            (wait, text)
            for target, wait in _WAITS.items()
            for text in evidence.submissions(trackers, target, now_ns)
        )
        return (*((wait, text) for wait, texts in seen.items() for text in texts), *submitted)

    def close(self) -> None:
        """Give all descriptors back."""
        self.family.close()


def _ranked(processes: Iterable[Process]) -> tuple[Started, ...]:
    """`processes`, the most active first."""
    ranked = sorted(processes, key=lambda process: -process.active)
    return tuple((process.pid, process.reader.started_ticks) for process in ranked)
