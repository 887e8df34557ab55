"""The feeders of one GPU: its holders' first threads (mains) and their workers."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from gpu_bottleneck_exporter.accounting.stall import Feeders, Usage
from gpu_bottleneck_exporter.accounting.state import State
from gpu_bottleneck_exporter.ageing import Ageing
from gpu_bottleneck_exporter.feeders import evidence
from gpu_bottleneck_exporter.feeders.behind import Behind
from gpu_bottleneck_exporter.feeders.closer import Closer
from gpu_bottleneck_exporter.feeders.crowd import WHOLE, Allowance, Turns, chosen
from gpu_bottleneck_exporter.feeders.history import (
    CgroupCounters,
    FeederTotals,
    Looks,
    Moment,
    Tick,
    forget,
    since,
    summed,
)
from gpu_bottleneck_exporter.feeders.interactive import runs_notebook
from gpu_bottleneck_exporter.feeders.jobkeys import GROUP, job_keys
from gpu_bottleneck_exporter.feeders.member import Member, ProcessCounters
from gpu_bottleneck_exporter.feeders.pace import Pace
from gpu_bottleneck_exporter.feeders.patience import Patience
from gpu_bottleneck_exporter.feeders.roles import helpers
from gpu_bottleneck_exporter.feeders.runnable import runnable_share
from gpu_bottleneck_exporter.feeders.steadiness import Steadiness
from gpu_bottleneck_exporter.feeders.stretch import Stretch
from gpu_bottleneck_exporter.host.cgroup import Cgroup, Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import (
    command_line,
    network_namespace,
    parse_stat,
    user_id,
)
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.workload.groups import Groups

SLACK_NS = 1_500_000_000
"""Counters are read once a tick: for ratios, the ticks around a window are near enough."""
_HOLDS_NS = 1_500_000_000
"""What was seen of a feeder holds until the next look, but not for longer."""
WORKERS_PER_PASS = 2
_EXPLAINED = 0.8
"""So many active workers at all times explain the waiting."""
_HARDLY = 0.1
WORKER_HISTORY_NS = 4_000_000_000
"""Workers are seen in turn: what takes most of their time shows over seconds, not in one tick."""
_WAITS = {state: state.value for state in State if state not in (State.RUN, State.GONE)} | {
    State.REQUESTS: State.SLEEP.value,
    State.TIMER: State.SLEEP.value,
}
_NOTHING = CgroupCounters()


class FeederGroup:
    """Samples their states, reads their counters, and tells what they did over a stretch of time.

    Only the host sampler's thread writes; any thread may call `feeders`.
    """

    def __init__(
        self,
        proc: Path,
        groups: Cgroups,
        patience: Patience | None = None,
        units: Groups | None = None,
    ) -> None:
        """`proc`: the host's; the owner of all feeder groups reads the control groups `groups`.

        `units` map control groups to jobs. `patience` says how long a question to another
        machine may stay open; None where connections cannot be inspected.
        """
        self.behind = Behind(proc, patience)
        self.behind.know(self._knows)
        self.mains: dict[int, Member] = {}
        self.workers: dict[int, Member] = {}
        self.totals = FeederTotals()
        self._proc = proc
        self._groups = groups
        self._units = units or Groups(proc)
        self._cgroups: dict[Cgroup, CgroupCounters] = {}
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
        self.command = ""
        """The command line of a main, as far as it is read."""
        self.pace = Pace()
        """How the batches of its workers differ."""
        self.has_rank_variables = False
        """Whether one of its mains was started as one of several ranks."""
        self.sought_kin = False
        self.steady = Steadiness()
        self._learning = Ageing()
        """When to learn of the mains again."""
        self._others: frozenset[int] = frozenset()
        self._helpers: dict[int, Member] = {}
        """They load nothing, but a forkserver starts workers."""
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
    def last_tick_ns(self) -> int | None:
        """When its counters were last read."""
        return self._last_tick_ns

    @property
    def cgroups(self) -> frozenset[Cgroup]:
        """The control groups of the mains."""
        return frozenset(self._cgroups)

    def adopt(
        self,
        mains: set[int],
        workers: set[int],
        others: frozenset[int],
        share: Allowance = WHOLE,
        *,
        whole: bool = True,
    ) -> None:
        """Take over a newly discovered tree; known processes keep their counters.

        `others` are the mains of all GPUs, as one main may have started another. `share` limits
        what may be spent on `workers`; `whole` is False where there are more than these.
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
            self.pace.forget()
        self._in_turn = list(self.workers.values())
        self._turns.keep(set(self._in_turn))
        for member in (*self.mains.values(), *self._helpers.values()):
            member.forget_children()
        # A runtime may move a process into its control group after it started: ask again.
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
        commands = (command_line(self._proc, pid).text for pid in self.mains)
        texts = [*commands]
        self.command = min(texts, default="")
        self.behind.interactive = any(map(runs_notebook, texts))

    def _follow(self, workers: set[int]) -> int:
        """Take over newly discovered `workers`; how many of them are new."""
        before = {pid for pid, one in self.workers.items() if not one.gone} | self.unfollowed
        followed = chosen(workers, [*self.workers, *self._helpers], self._share.followed)
        self.unfollowed = frozenset(workers - followed)
        # A zombie is a child until its parent asks for it: known, but no worker any more.
        self._zombies = {pid for pid in followed if self._is_zombie(pid)}
        followed -= self._zombies
        new = followed - self.workers.keys() - self._helpers.keys()
        compilers = followed & {one.pid for one in self.behind.compilers}
        known = followed & self._helpers.keys()
        helping = known | helpers(self._proc, new, self.mains, compilers)
        self._replace(self._helpers, helping)
        self._replace(self.workers, followed - helping)
        self.behind.compilers = [self._helpers[pid] for pid in compilers]
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
        """Sample the state of the mains, and of a few workers in turn.

        False if a process has ended, so that the tree is out of date.
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
        ends = _ends(self.mains.values())
        return Moment(
            now_ns,
            elapsed,
            main,
            self.behind.others(chosen, now_ns, ends),
            (len(self.mains), self.worker_count),
            None if self.behind.explained else looked,
            self.behind.look_at_kin(now_ns, ends),
            len(self.behind.feeding),
            self.behind.runnable.count(self.mains.values(), now_ns),
            self.behind.place,
        )

    def _next_workers(self) -> list[Member]:
        members = self._turns.members
        count = len(members)
        first = self._next_worker
        # While all workers rest, each needs a costly closer look: one per pass is enough.
        self._next_worker += min(1 if self.behind.resting else WORKERS_PER_PASS, count)
        return [members[i % count] for i in range(first, self._next_worker)]

    def knows_all_children(self) -> bool:
        """Whether no worker has been started since the tree was discovered."""
        members = (*self.mains.values(), *self._helpers.values())
        return not any(member.strangers(self._knows) for member in members)

    def _knows(self, pid: int) -> bool:
        return (
            pid in self.workers
            or pid in self._helpers
            or pid in self._zombies
            or pid in self._others
            or pid in self.unfollowed
        )

    def advance(self, now_ns: int) -> bool:
        """Read the counters; False if a process has ended and the tree is out of date."""
        before = self._last_tick_ns
        self._last_tick_ns = now_ns
        tick = Tick(now_ns, now_ns - (before or now_ns))
        self._count_waits(before or 0, tick.looks)
        current = self._advance(self.mains.values(), tick.main, self.behind.follow_launches)
        current &= self._advance(self._workers_to_count(), tick.workers, self._note_pace)
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
        """What happened from `start_ns` to `end_ns`; None if nothing was sampled then.

        `peer`: share of the time in which another GPU of the job worked or had a cause of its own.
        """
        # Looks may be further apart than ticks are long: then the last one holds on.
        moments = since(self._moments, start_ns, end_ns)
        moments = moments or since(self._moments, end_ns - _HOLDS_NS, end_ns)[:1]
        if not moments:
            return None
        looks = self._looks(moments, end_ns)
        # Three stretches of time. Mains: the window itself, as they are sampled at every pass.
        # Workers: the last `WORKER_HISTORY_NS`, as only a few are sampled per pass. Counters:
        # the window and `SLACK_NS` around it, as they are read once a tick and only their
        # ratios are used.
        ticks = since(self._ticks, start_ns - SLACK_NS, end_ns + SLACK_NS)
        held_back = [held for tick in ticks for held in tick.held]
        looked = [m for m in moments if m.looked is not None]
        main, workers, kin = ProcessCounters(), ProcessCounters(), ProcessCounters()
        for tick in ticks:
            main.add(tick.main)
            workers.add(tick.workers)
            kin.add(tick.kin)
        return Feeders(
            elapsed_ns=sum(tick.elapsed_ns for tick in ticks),
            main=summed(m.main for m in moments),
            workers=looks.states,
            worker_count=looks.workers / looks.moments,
            main_runnable=None
            if main.launch_cpu_ns
            else runnable_share(m.runnable for m in moments),
            threads=summed(m.looked.threads for m in looked if m.looked),
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
            children_cpu_ns=main.children_ns + workers.children_ns + kin.children_ns,
            other_threads_cpu_ns=max(main.cpu_ns - main.leader_cpu_ns - main.launch_cpu_ns, 0),
            periods=sum(held.periods for held in held_back),
            throttled_periods=sum(held.throttled_periods for held in held_back),
            refault_bytes=sum(held.refault_bytes for held in held_back),
            peer=peer,
            places=looks.places,
        )

    def stretch(self, start_ns: int, end_ns: int) -> Stretch | None:
        """What the feeders did from one tick to another; None if nothing was sampled then."""
        ticks = since(self._ticks, start_ns, end_ns)
        moments = since(self._moments, start_ns, end_ns)
        if not ticks or not moments:
            return None
        looks, main, workers = Looks(), ProcessCounters(), ProcessCounters()
        for tick in ticks:
            looks.merge(tick.looks)
            main.add(tick.main)
            workers.add(tick.workers)
        looked = [moment.looked for moment in moments if moment.looked]
        threads = sum(sum(one.threads.values()) for one in looked)
        held_back = [held for tick in ticks for held in tick.held]
        return Stretch(
            elapsed_ns=sum(tick.elapsed_ns for tick in ticks),
            main=summed(moment.main for moment in moments),
            looks=looks,
            threads=threads / max(len(looked), 1),
            main_used=main,
            workers_used=workers,
            periods=sum(held.periods for held in held_back),
            throttled_periods=sum(held.throttled_periods for held in held_back),
        )

    def _looks(self, moments: Iterable[Moment], end_ns: int) -> Looks:
        """What workers did in the last `WORKER_HISTORY_NS`.

        Ticks hold the sums of their moments; only the newest `moments` are in no tick yet.
        """
        looks = Looks()
        ticks = since(self._ticks, end_ns - WORKER_HISTORY_NS, end_ns)
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

    def ends_with(self, other: FeederGroup) -> frozenset[Ends]:
        """Connections of this feed's mains that may lead to those of `other`.

        Both must be of one user, who could else make a connection that looks like the other end;
        and an address of the machine itself is another machine's in another network namespace.
        """
        if self.users.isdisjoint(other.users):
            return frozenset()
        if not self.networks.isdisjoint(other.networks):
            return self.ends
        return frozenset(ends for ends in self.ends if not ends[0].is_here)

    def joined(self, other: FeederGroup) -> bool:
        """Whether a connection leads from a main of this feed to one of `other`."""
        return not self.ends_with(other).isdisjoint(other.reverse_ends)

    def note_ends(self) -> None:
        """Publish the mains' connections that were inspected, for other threads to read."""
        ends = _ends(self.mains.values())
        self.reverse_ends = frozenset((remote, local) for local, remote in ends)
        self.ends = ends

    @property
    def own_ends(self) -> frozenset[Ends]:
        """Those of workers and kin."""
        return _ends([*self._turns.members, *self.behind.in_the_job])

    @property
    def lacks_clients(self) -> bool:
        """Whether a main listens, and at the last look nobody was connected."""
        return any(one.closer.lacks_clients for one in self.mains.values() if one.closer)

    def take_awaited(self) -> list[tuple[int, set[int | None]]]:
        """By pid: what mains, workers and kin waited on since the last call, see `Closer`."""
        kin = (self.behind.kin[pid] for pid in self.behind.relatives)
        members = (*self.mains.values(), *self._turns.members, *kin)
        return [(one.pid, one.closer.take_awaited()) for one in members if one.closer]

    def is_stranger(self, pid: int) -> bool:
        """Whether a process neither holds the GPU nor is known to feed it."""
        return not (self._knows(pid) or pid in self.mains or pid in self.behind.relatives)

    def evidence(self, now_ns: int) -> tuple[str, ...]:
        """What was seen behind the waiting lately, in words. Too costly for every tick."""
        if not self.behind.wanted(now_ns):
            return ()
        moments = since(self._moments, now_ns - WORKER_HISTORY_NS, now_ns)
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
        """Inspect the connections of its processes; workers only where a main asks this machine."""
        self.behind.learn([*self.mains.values(), *self.behind.kin.values()], now_ns)
        if any(closer.wire.asks_here for closer in self._closers() if closer.wire):
            self.behind.learn(self._turns.members, now_ns)

    def close(self) -> None:
        """Give all descriptors back."""
        self.behind.close()
        for member in (*self.mains.values(), *self.workers.values(), *self._helpers.values()):
            member.close()

    def _replace(self, members: dict[int, Member], pids: set[int]) -> int:
        gone = {pid for pid, member in members.items() if member.gone}
        for pid in (members.keys() - pids) | gone:
            member = members.pop(pid)
            if members is self.workers:
                # Its parent's counters will tell of this time once more: see `_count_behind`.
                self._ended_ns += member.used_ns
            member.close()
        new = pids - members.keys()
        for pid in new:
            members[pid] = Member(self._proc, pid)
        return len(new)

    def _is_zombie(self, pid: int) -> bool:
        if pid in self.workers and not self.workers[pid].gone:
            if not self.follows_all:
                last = self.workers[pid].reader.last
                return last is not None and last.ended
            return self.workers[pid].state() is State.GONE
        stat = parse_stat(read(self._proc / str(pid) / "stat"))
        return stat is not None and stat.ended

    def _cgroup(self, pid: int) -> Cgroup | None:
        text = read(self._proc / str(pid) / "cgroup")
        return self._groups.of(text) if text else None

    def _count_waits(self, since_ns: int, looks: Looks) -> None:
        # Passes that skip the workers leave their time to the next one that samples them.
        unseen_ns = 0
        for moment in reversed(since(self._moments, since_ns, self._last_pass_ns or 0)):
            looks.add(moment)
            mains, workers = moment.counts
            self._count("main", moment.main, moment.elapsed_ns * mains)
            unseen_ns += moment.elapsed_ns * workers
            if moment.workers:
                self._count("worker", moment.workers, unseen_ns)
                unseen_ns = 0

    def _count(self, role: str, states: Mapping[State, int], elapsed_ns: int) -> None:
        """Add waits: the sampled processes stand for all, whose time adds up to `elapsed_ns`."""
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
        total: ProcessCounters,
        tell: Callable[[Member, ProcessCounters], None] = lambda *_: None,
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

    def _note_pace(self, member: Member, used: ProcessCounters) -> None:
        if self.behind.wanted(self._last_tick_ns or 0):
            self.pace.note(member.pid, self._last_tick_ns or 0, used.write_calls)
        else:
            self.pace.pause()

    def _count_queues(self, members: Iterable[Member], total: ProcessCounters) -> None:
        """Add the run-queue delay of other threads, as far as closer looks counted it."""
        for member in members:
            for used in member.closer.take_used() if member.closer else ():
                total.queue_ns += used.queue_ns

    def _count_behind(self, tick: Tick) -> None:
        """What threads and ended children used; whether closer looks are needed at all."""
        tick.threads = self.behind.count_threads(self.mains.values(), tick.main)
        feeding = self.behind.feeding
        self._advance(feeding, tick.kin)
        self._advance(set(self.behind.kin.values()).difference(feeding), ProcessCounters())
        self._count_queues(self._turns.members, tick.workers)
        self._count_queues(feeding, tick.kin)
        # When a worker ends, the kernel adds the CPU time of its whole life to its parent's
        # counter of ended children. What was counted while it lived (`_ended_ns`) must not
        # count twice; halved each tick, as a parent may reap late, or never.
        known = min(self._ended_ns, tick.main.children_ns)
        self._ended_ns = (self._ended_ns - known) // 2
        tick.main.children_ns = min(tick.main.children_ns - known, tick.elapsed_ns)
        for role in (tick.workers, tick.kin):
            role.children_ns = min(role.children_ns, tick.elapsed_ns)
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
        forget(self._ticks, tick.at_ns)
        forget(self._moments, tick.at_ns)
        self.totals.counters["main"].add(tick.main)
        self.totals.counters["worker"].add(tick.workers)
        self.totals.throttled_ns += sum(held.throttled_ns for held in tick.held)
        self.totals.refault_bytes += sum(held.refault_bytes for held in tick.held)


def _ends(members: Iterable[Member]) -> frozenset[Ends]:
    wires = (member.closer.wire for member in members if member.closer)
    return frozenset().union(*(wire.ends for wire in wires if wire))


def _usage(counters: ProcessCounters, cpu_ns: int, queue_ns: int) -> Usage:
    system = counters.system_ns / counters.cpu_ns if counters.cpu_ns else 0.0
    return Usage(
        user_ns=round(cpu_ns * (1 - system)),
        system_ns=round(cpu_ns * system),
        queue_ns=queue_ns,
        io_bytes=(counters.read_bytes or 0) + (counters.written_bytes or 0),
    )


def _counted(members: Iterable[Member]) -> dict[State, int]:
    # Not a Counter, which is ten times as slow: this runs at each pass for every GPU.
    total: dict[State, int] = {}
    for member in members:
        state = member.state()
        total[state] = total.get(state, 0) + 1
    return total


def _held_back(group: Cgroup, before: CgroupCounters = _NOTHING) -> CgroupCounters:
    """The counters of `group` now; those that cannot be read stay as they were `before`."""
    counted = group.counted
    now = {name: getattr(counted, name) for name in CgroupCounters._fields}
    return before._replace(**{name: value for name, value in now.items() if value is not None})
