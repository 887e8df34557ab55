"""The feeders of one GPU: mains and workers, sampled states, counters."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpu_bottleneck_exporter.ageing import Ageing
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.behind import Behind, Looked
from gpu_bottleneck_exporter.feeders.closer import Closer
from gpu_bottleneck_exporter.feeders.crowd import WHOLE, Share, Turns, chosen
from gpu_bottleneck_exporter.feeders.interactive import runs_notebook
from gpu_bottleneck_exporter.feeders.jobkeys import GROUP, job_keys
from gpu_bottleneck_exporter.feeders.member import Counters, Member
from gpu_bottleneck_exporter.feeders.steadiness import Steadiness
from gpu_bottleneck_exporter.feeders.wire import Ends, Patience
from gpu_bottleneck_exporter.host.cgroup import Cgroup, Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import (
    State,
    classify,
    command_line,
    network_namespace,
    parse_stat,
    user_id,
)
from gpu_bottleneck_exporter.stall import Feeders, Usage
from gpu_bottleneck_exporter.workload.groups import Groups

HISTORY_NS = 20_000_000_000
SLACK_NS = 1_500_000_000
"""Counters are read once a tick: for ratios, the ticks around a window are near enough."""
WORKERS_PER_PASS = 2
_EXPLAINED = 0.8
"""So many active workers at all times explain the waiting."""
_HARDLY = 0.1
WORKER_HISTORY_NS = 4_000_000_000
"""Workers are seen in turn: what takes most of their time shows over seconds, not in one tick."""
_RESTS = frozenset({State.QUEUE, State.SLEEP, State.REQUESTS, State.UNKNOWN})
ROLES = ("main", "worker")
T = TypeVar("T", "Moment", "Tick")
_WAITS = {state: state.value for state in State if state not in (State.RUN, State.GONE)} | {
    State.REQUESTS: State.SLEEP.value
}
_HELPERS = ("forkserver", "resource_tracker")


@dataclass(frozen=True, slots=True)
class Held:
    """How a control group held its tasks back, so far or in a tick."""

    throttled_ns: int = 0
    refault_bytes: int = 0
    periods: int = 0
    throttled_periods: int = 0

    def less(self, before: Held) -> Held:
        """What was added since `before`; never negative."""
        return Held(
            max(self.throttled_ns - before.throttled_ns, 0),
            max(self.refault_bytes - before.refault_bytes, 0),
            max(self.periods - before.periods, 0),
            max(self.throttled_periods - before.throttled_periods, 0),
        )


class Moment(NamedTuple):
    """States seen in one pass, which stand for the time since the last one."""

    at_ns: int
    elapsed_ns: int
    main: Mapping[State, int]
    workers: Mapping[State, int]
    counts: tuple[int, int]
    """How many mains and workers there were; not all workers are looked at, nor each time."""
    looked: Looked | None = None
    """What closer looks at the mains found, if there were any."""
    kin: Mapping[State, int] = {}
    kin_count: int = 0


@dataclass(slots=True)
class Looks:
    """What the workers and kin were seen doing in several moments."""

    states: dict[State, int] = field(default_factory=dict)
    workers: int = 0
    """How many there were, summed over the moments."""
    moments: int = 0
    kin_states: dict[State, int] = field(default_factory=dict)
    kin: int = 0
    """As `workers`."""

    def add(self, moment: Moment) -> None:
        """Take one moment in."""
        _add_up(self.states, moment.workers)
        _add_up(self.kin_states, moment.kin)
        self.workers += moment.counts[1]
        self.kin += moment.kin_count
        self.moments += 1

    @property
    def active(self) -> float:
        """How many workers ran or were in D state, on average."""
        seen = sum(self.states.values())
        if not seen:
            return 0.0
        active = self.states.get(State.RUN, 0) + self.states.get(State.DISK, 0)
        return active / seen * self.workers / self.moments

    @property
    def anybody_active(self) -> bool:
        """Whether a worker or kin was seen doing anything."""
        return not _RESTS.issuperset(self.states) or not _RESTS.issuperset(self.kin_states)

    def merge(self, other: Looks) -> None:
        """Take the moments of `other` in."""
        _add_up(self.states, other.states)
        _add_up(self.kin_states, other.kin_states)
        self.workers += other.workers
        self.kin += other.kin
        self.moments += other.moments


@dataclass(slots=True)
class Tick:
    """Counters of one tick."""

    at_ns: int
    elapsed_ns: int
    main: Counters = field(default_factory=Counters)
    workers: Counters = field(default_factory=Counters)
    held: list[Held] = field(default_factory=list)
    """How each control group held them back in this tick."""
    looks: Looks = field(default_factory=Looks)
    """What its workers were seen doing."""
    kin: Counters = field(default_factory=Counters)
    threads: Usage = field(default_factory=Usage)
    """What loading threads of the mains used."""


@dataclass(slots=True)
class Totals:
    """Running sums of a GPU's feeders, by role where they are of processes."""

    counters: dict[str, Counters] = field(
        default_factory=lambda: {role: Counters() for role in ROLES}
    )
    wait_ns: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By role and what was waited on (`State.value`)."""
    worker_starts: int = 0
    throttled_ns: int = 0
    refault_bytes: int = 0


class Feed:
    """Written by the watching thread; `feeders` may be asked by any."""

    def __init__(
        self,
        proc: Path,
        groups: Cgroups,
        patience: Patience | None = None,
        units: Groups | None = None,
    ) -> None:
        """`proc`: the host's; `groups` are read by whoever drives all feeds, `units` are whose.

        `patience` with what connections were asked, where they can be looked at.
        """
        self.behind = Behind(proc, patience)
        self.behind.know(self._knows)
        self.mains: dict[int, Member] = {}
        self.workers: dict[int, Member] = {}
        self.totals = Totals()
        self._proc = proc
        self._groups = groups
        self._units = units or Groups(proc)
        self._cgroups: dict[Cgroup, Held] = {}
        self._moments: deque[Moment] = deque()
        self._ticks: deque[Tick] = deque()
        self.jobs: set[tuple[str, ...]] = set()
        """What its mains have in common with those of other GPUs of the same job."""
        self.users: frozenset[str] = frozenset()
        """Whose its mains are, by number."""
        self.networks: frozenset[int] = frozenset()
        """The network namespaces of its mains."""
        self.ends: frozenset[Ends] = frozenset()
        """Local and remote ends of the mains' connections, as last noted; for any thread."""
        self.reverse_ends: frozenset[Ends] = frozenset()
        """The same, as the other side has them."""
        self.has_rank_variables = False
        """Whether one of its mains was started as one of several ranks."""
        self.sought_kin = False
        self.steady = Steadiness()
        self._learning = Ageing()
        """When to learn of the mains again."""
        self._others: frozenset[int] = frozenset()
        self._helpers: dict[int, Member] = {}
        """multiprocessing's own: they load nothing, but a forkserver starts workers."""
        self._zombies: set[int] = set()
        self.unfollowed: frozenset[int] = frozenset()
        """Workers of which nothing is known but that they are there."""
        self.whole = True
        """Whether these and the workers are all."""
        self._share = WHOLE
        self._in_turn: list[Member] = []
        """The workers, for their states to be sampled in turn."""
        self._turns = Turns()
        self._next_worker = 0
        self._ticks_counted = 0
        self._last_pass_ns: int | None = None
        self._last_tick_ns: int | None = None
        self._ended_ns = 0
        """CPU time of members that ended and that no parent's counters have told of yet."""

    @property
    def cgroups(self) -> frozenset[Cgroup]:
        """The control groups of the mains."""
        return frozenset(self._cgroups)

    def adopt(
        self,
        mains: set[int],
        workers: set[int],
        others: frozenset[int],
        share: Share = WHOLE,
        *,
        whole: bool = True,
    ) -> None:
        """Take over a newly discovered tree; counters of known processes go on.

        `others` are the mains of all GPUs: a main may have started another one's. `share`: what
        may be spent on `workers`; `whole`: whether these are all that there are.
        """
        known = bool(self.mains)
        self._others = others
        before = set(self.mains)
        came = self._replace(self.mains, mains)
        self._share, self.whole = share, whole
        started = self._follow(workers)
        self.totals.worker_starts += started if known else 0
        if came or started:
            self.steady.disturb()
        self._in_turn = list(self.workers.values())
        self._turns.keep(set(self._in_turn))
        for member in (*self.mains.values(), *self._helpers.values()):
            member.forget_children()
        # Whoever starts a job may move it into its group afterwards.
        groups = {self._cgroup(pid) for pid in self.mains}
        self._cgroups = {
            group: self._cgroups.get(group) or _held_back(group) for group in groups if group
        }
        self._learn_of_mains(time.monotonic_ns(), new=bool(came) or before != mains)

    def _learn_of_mains(self, now_ns: int, *, new: bool) -> None:
        """Whose they are, and where: what comes with a process and hardly ever changes."""
        if not self._learning.is_due(now_ns, new=new):
            return
        self.jobs = {key for pid in self.mains for key in job_keys(self._proc, pid, self._units)}
        self.users = frozenset(user_id(self._proc, pid) for pid in self.mains) - {""}
        networks = (network_namespace(self._proc, pid) for pid in self.mains)
        self.networks = frozenset(inode for inode in networks if inode is not None)
        self.has_rank_variables = any(key[0] == GROUP for key in self.jobs)
        self.behind.interactive = any(runs_notebook(self._command(pid)) for pid in self.mains)

    def _follow(self, workers: set[int]) -> int:
        """Take over newly discovered `workers`; how many of them are new."""
        before = {pid for pid, one in self.workers.items() if not one.gone} | self.unfollowed
        followed = chosen(workers, [*self.workers, *self._helpers], self._share.followed)
        self.unfollowed = frozenset(workers - followed)
        # A zombie is a child until its parent asks for it: known, but no worker any more.
        self._zombies = {pid for pid in followed if self._is_zombie(pid)}
        followed -= self._zombies
        new = followed - self.workers.keys()
        helpers = (followed & self._helpers.keys()) | {pid for pid in new if self._is_helper(pid)}
        self._replace(self._helpers, helpers)
        self._replace(self.workers, followed - helpers)
        return len((self.workers.keys() | self.unfollowed) - before)

    @property
    def worker_count(self) -> int:
        """How many workers there are, as far as `whole` says so."""
        return len(self._in_turn) + len(self.unfollowed)

    @property
    def follows_all(self) -> bool:
        """Whether all workers are read as often as those of a small tree."""
        return self.is_prompt and self.whole and not self.unfollowed

    @property
    def is_prompt(self) -> bool:
        """Whether the workers that are read are read as often."""
        return self._share.is_prompt(len(self._in_turn))

    def sample(self, now_ns: int, *, mains_only: bool = False) -> bool:
        """Look at what the mains, and a few of the workers in turn, are doing.

        False when a process is gone and the tree is out of date.
        """
        counts = len(self.mains), self.worker_count
        self._turns.take(self._in_turn, now_ns)
        elapsed = now_ns - (self._last_pass_ns or now_ns)
        self._last_pass_ns = now_ns
        chosen = [] if mains_only else self._next_workers()
        if self.behind.wanted(now_ns):
            moment = self._look_closer(now_ns, elapsed, chosen)
        else:
            main, workers = _counted(self.mains.values()), _counted(chosen)
            moment = Moment(now_ns, elapsed, main, workers, counts)
        self._moments.append(moment)
        return State.GONE not in moment.workers

    def _look_closer(self, now_ns: int, elapsed: int, chosen: list[Member]) -> Moment:
        main: dict[State, int] = {}
        has_workers = bool(self.workers)
        looked = self.behind.mains(self.mains.values(), main, now_ns, workers=has_workers)
        return Moment(
            now_ns,
            elapsed,
            main,
            self.behind.others(chosen, now_ns),
            (len(self.mains), self.worker_count),
            None if self.behind.explained else looked,
            self.behind.look_at_kin(now_ns),
            len(self.behind.kin),
        )

    def _next_workers(self) -> list[Member]:
        members = self._turns.members
        count = len(members)
        first = self._next_worker
        # Of workers that all rest one at a time will do: it takes a closer look to know.
        self._next_worker += min(1 if self.behind.resting else WORKERS_PER_PASS, count)
        return [members[i % count] for i in range(first, self._next_worker)]

    def knows_all_children(self) -> bool:
        """Whether no worker has been started since the tree was discovered."""
        for members in (self.mains, self._helpers):
            for member in members.values():
                if member.strangers(self._knows):
                    return False
        return True

    def _knows(self, pid: int) -> bool:
        return (
            pid in self.workers
            or pid in self._helpers
            or pid in self._zombies
            or pid in self._others
            or pid in self.unfollowed
        )

    def advance(self, now_ns: int) -> bool:
        """Read the counters; False when a process is gone and the tree is out of date."""
        before = self._last_tick_ns
        self._last_tick_ns = now_ns
        tick = Tick(now_ns, now_ns - (before or now_ns))
        self._count_waits(before or 0, tick.looks)
        current = self._advance(self.mains.values(), tick.main, self.behind.follow_launches)
        current &= self._advance(self._workers_to_count(), tick.workers)
        if not self.workers:
            self.behind.follow_work(self.mains.values(), now_ns)
        self._count_behind(tick)
        for group, held in list(self._cgroups.items()):
            now = _held_back(group, held)
            tick.held.append(now.less(held))
            self._cgroups[group] = now
        self._add(tick)
        return current

    def feeders(self, start_ns: int, end_ns: int, peer: float = 0.0) -> Feeders | None:
        """What happened from `start_ns` to `end_ns`; None when nobody looked.

        `peer`: share of the time in which another GPU of the job worked or had a cause of its own.
        """
        moments = _since(self._moments, start_ns, end_ns)
        if not moments:
            return None
        looks = self._looks(moments, end_ns)
        ticks = _since(self._ticks, start_ns - SLACK_NS, end_ns + SLACK_NS)
        held_back = [held for tick in ticks for held in tick.held]
        looked = [m for m in moments if m.looked is not None]
        main, workers, kin = Counters(), Counters(), Counters()
        for tick in ticks:
            main.add(tick.main)
            workers.add(tick.workers)
            kin.add(tick.kin)
        return Feeders(
            elapsed_ns=sum(tick.elapsed_ns for tick in ticks),
            main=_summed(m.main for m in moments),
            workers=looks.states,
            worker_count=looks.workers / looks.moments,
            threads=_summed(m.looked.threads for m in looked if m.looked),
            thread_looks=len(looked),
            kin=looks.kin_states,
            kin_count=looks.kin / looks.moments,
            main_usage=_usage(
                main, main.leader_cpu_ns + main.launch_cpu_ns, main.queue_ns + main.launch_queue_ns
            ),
            worker_usage=_usage(workers, workers.cpu_ns, workers.queue_ns),
            kin_usage=_usage(kin, kin.cpu_ns, kin.queue_ns),
            thread_usage=_usage(
                main,
                sum(tick.threads.user_ns for tick in ticks),
                sum(tick.threads.queue_ns for tick in ticks),
            ),
            children_cpu_ns=main.children_ns + workers.children_ns,
            other_threads_cpu_ns=max(main.cpu_ns - main.leader_cpu_ns - main.launch_cpu_ns, 0),
            periods=sum(held.periods for held in held_back),
            throttled_periods=sum(held.throttled_periods for held in held_back),
            refault_bytes=sum(held.refault_bytes for held in held_back),
            peer=peer,
        )

    def _looks(self, moments: Iterable[Moment], end_ns: int) -> Looks:
        """What workers did in the last seconds: whole ticks, and the `moments` since."""
        looks = Looks()
        ticks = _since(self._ticks, end_ns - WORKER_HISTORY_NS, end_ns)
        for tick in ticks:
            looks.merge(tick.looks)
        told_ns = ticks[0].at_ns if ticks else 0
        for moment in moments:
            if moment.at_ns > told_ns:
                looks.add(moment)
        return looks

    @property
    def sees_all_threads(self) -> bool:
        """Whether no process had more threads than are looked at."""
        return all(closer.threads.complete for closer in self._closers())

    @property
    def sees_all_sockets(self) -> bool:
        """Whether no process had more sockets than are looked at."""
        return all(c.wire.sockets.complete for c in self._closers() if c.wire)

    def _closers(self) -> Iterator[Closer]:
        members = (*self.mains.values(), *self._turns.members, *self.behind.kin.values())
        return (member.closer for member in members if member.closer)

    def ends_with(self, other: Feed) -> frozenset[Ends]:
        """Connections of this feed's mains that may lead to those of `other`.

        Both must be of one user, who could else make a connection that looks like the other end;
        and an address of the machine itself is another machine's in another network namespace.
        """
        if self.users.isdisjoint(other.users):
            return frozenset()
        if not self.networks.isdisjoint(other.networks):
            return self.ends
        return frozenset(ends for ends in self.ends if not ends[0].is_here)

    def joined(self, other: Feed) -> bool:
        """Whether a connection leads from a main of this feed to one of `other`."""
        return not self.ends_with(other).isdisjoint(other.reverse_ends)

    def note_ends(self) -> None:
        """Tell other threads which connections the mains have, as far as they were looked at."""
        ends = _ends(self.mains.values())
        self.reverse_ends = frozenset((remote, local) for local, remote in ends)
        self.ends = ends

    @property
    def own_ends(self) -> frozenset[Ends]:
        """Those of workers and kin."""
        return _ends([*self._turns.members, *self.behind.kin.values()])

    def evidence(self, now_ns: int) -> tuple[str, ...]:
        """What was seen behind the waiting lately, in words; costs too much for every tick."""
        if not self.behind.wanted(now_ns):
            return ()
        moments = _since(self._moments, now_ns - WORKER_HISTORY_NS, now_ns)
        reasons: Counter[str] = Counter()
        for moment in moments:
            reasons.update(moment.looked.reasons if moment.looked else ())
        owed = (closer.wire.owed for closer in self._closers() if closer.wire)
        files = any(State.DISK in states for m in moments for states in (m.main, m.workers, m.kin))
        return (
            *evidence.asleep(reasons),
            *evidence.asked((one for one in owed if one), now_ns),
            *(evidence.storage(self._proc, [*self.mains, *self.workers][:4]) if files else ()),
        )

    def learn(self, now_ns: int) -> None:
        """Look at the connections of its processes; of the workers only if one may be asked."""
        self.behind.learn([*self.mains.values(), *self.behind.kin.values()], now_ns)
        if any(closer.wire.asks_here for closer in self._closers() if closer.wire):
            self.behind.learn(self._turns.members, now_ns)

    def close(self) -> None:
        """Give all descriptors back."""
        self.behind.close()
        for members in (self.mains, self.workers, self._helpers):
            for member in members.values():
                member.close()

    def _replace(self, members: dict[int, Member], pids: set[int]) -> int:
        gone = {pid for pid, member in members.items() if member.gone}
        for pid in (members.keys() - pids) | gone:
            member = members.pop(pid)
            if members is self.workers:
                self._ended_ns += member.used_ns
            member.close()
        new = pids - members.keys()
        for pid in new:
            members[pid] = Member(self._proc, pid)
        return len(new)

    def _is_zombie(self, pid: int) -> bool:
        if pid in self.workers and not self.workers[pid].gone:
            if not self.follows_all:
                return self.workers[pid].reader.ended
            return self.workers[pid].state() is State.GONE
        stat = read(self._proc / str(pid) / "stat")
        return stat is not None and classify(parse_stat(stat.encode()).state, None) is State.GONE

    def _is_helper(self, pid: int) -> bool:
        """Whether the process is multiprocessing's forkserver or resource tracker.

        Workers have their forkserver's command line, but it for a parent.
        """
        command = self._command(pid)
        stat = read(self._proc / str(pid) / "stat")
        if not stat or parse_stat(stat.encode()).parent not in self.mains:
            return False
        return any(f"from multiprocessing.{name} import main" in command for name in _HELPERS)

    def _command(self, pid: int) -> str:
        return command_line(self._proc, pid).text

    def _cgroup(self, pid: int) -> Cgroup | None:
        text = read(self._proc / str(pid) / "cgroup")
        return self._groups.of(text) if text else None

    def _count_waits(self, since_ns: int, looks: Looks) -> None:
        unseen_ns = 0
        for moment in reversed(_since(self._moments, since_ns, self._last_pass_ns or 0)):
            looks.add(moment)
            mains, workers = moment.counts
            self._count("main", moment.main, moment.elapsed_ns * mains)
            unseen_ns += moment.elapsed_ns * workers
            if moment.workers:
                self._count("worker", moment.workers, unseen_ns)
                unseen_ns = 0

    def _count(self, role: str, states: Mapping[State, int], elapsed_ns: int) -> None:
        """The processes that were sampled stand for all, whose time together is `elapsed_ns`."""
        sampled = sum(states.values())
        for state, number in states.items():
            if state in _WAITS:
                self.totals.wait_ns[role, _WAITS[state]] += elapsed_ns * number // sampled

    def _workers_to_count(self) -> list[Member]:
        self._ticks_counted += 1
        rounds = self._share.rounds(len(self._in_turn))
        return self._in_turn[self._ticks_counted % rounds :: rounds]

    def _advance(
        self,
        members: Iterable[Member],
        total: Counters,
        tell: Callable[[Member, Counters], None] = lambda *_: None,
    ) -> bool:
        complete = True
        for member in members:
            used = member.advance()
            if used is None:
                complete = False
            else:
                tell(member, used)
                total.add(used)
        return complete

    def _count_queues(self, members: Iterable[Member], total: Counters) -> None:
        """Those of threads beside the first, as far as closer looks have counted them."""
        for member in members:
            for used in member.closer.take_used() if member.closer else ():
                total.queue_ns += used.queue_ns

    def _count_behind(self, tick: Tick) -> None:
        """What threads and ended children used; whether closer looks are needed at all."""
        tick.threads = self.behind.count_threads(self.mains.values(), tick.main)
        self._advance(self.behind.kin.values(), tick.kin)
        self._count_queues(self._turns.members, tick.workers)
        self._count_queues(self.behind.kin.values(), tick.kin)
        # A worker's whole life comes at once when it ends; what is known of it was counted.
        known = min(self._ended_ns, tick.main.children_ns)
        self._ended_ns = (self._ended_ns - known) // 2
        tick.main.children_ns = min(tick.main.children_ns - known, tick.elapsed_ns)
        tick.workers.children_ns = min(tick.workers.children_ns, tick.elapsed_ns)
        if not self.behind.wanted(tick.at_ns):
            self.behind.rest([*self.mains.values(), *self._turns.members])
            self.behind.explained = self.behind.resting = False
            return
        self.behind.resting = not tick.looks.anybody_active
        others = tick.main.cpu_ns - tick.main.leader_cpu_ns
        self.behind.explained = (
            tick.looks.active >= _EXPLAINED and others < _HARDLY * tick.elapsed_ns
        )

    def _add(self, tick: Tick) -> None:
        self._ticks.append(tick)
        _forget(self._ticks, tick.at_ns)
        _forget(self._moments, tick.at_ns)
        self.totals.counters["main"].add(tick.main)
        self.totals.counters["worker"].add(tick.workers)
        self.totals.throttled_ns += sum(held.throttled_ns for held in tick.held)
        self.totals.refault_bytes += sum(held.refault_bytes for held in tick.held)


def _ends(members: Iterable[Member]) -> frozenset[Ends]:
    wires = (member.closer.wire for member in members if member.closer)
    return frozenset().union(*(wire.ends for wire in wires if wire))


def _usage(counters: Counters, cpu_ns: int, queue_ns: int) -> Usage:
    system = counters.system_ns / counters.cpu_ns if counters.cpu_ns else 0.0
    return Usage(
        user_ns=round(cpu_ns * (1 - system)),
        system_ns=round(cpu_ns * system),
        queue_ns=queue_ns,
        io_bytes=(counters.read_bytes or 0) + (counters.written_bytes or 0),
    )


def _counted(members: Iterable[Member]) -> dict[State, int]:
    # Not a Counter: this runs at each pass for every GPU, and it is ten times as slow.
    total: dict[State, int] = {}
    for member in members:
        state = member.state()
        total[state] = total.get(state, 0) + 1
    return total


def _summed(counts: Iterable[Mapping[State, int]]) -> dict[State, int]:
    total: dict[State, int] = {}
    for states in counts:
        _add_up(total, states)
    return total


def _add_up(total: dict[State, int], states: Mapping[State, int]) -> None:
    for state, number in states.items():
        total[state] = total.get(state, 0) + number


def _held_back(group: Cgroup, before: Held = Held()) -> Held:
    """What `group` says now; what cannot be read is as `before`."""
    refaults, throttling = group.counted.refault_bytes, group.counted.throttling
    known = before if refaults is None else replace(before, refault_bytes=refaults)
    if throttling is None:
        return known
    throttled = throttling.throttled_ns
    return replace(
        known,
        throttled_ns=before.throttled_ns if throttled is None else throttled,
        periods=throttling.periods,
        throttled_periods=throttling.throttled_periods,
    )


def _since(history: deque[T], start_ns: int, end_ns: int) -> list[T]:
    """Those after `start_ns` up to `end_ns`, the newest first: mostly few out of many."""
    found: list[T] = []
    for entry in reversed(list(history)):
        if entry.at_ns <= start_ns:
            break
        if entry.at_ns <= end_ns:
            found.append(entry)
    return found


def _forget(history: deque[Moment] | deque[Tick], now_ns: int) -> None:
    while history and history[0].at_ns < now_ns - HISTORY_NS:
        history.popleft()
