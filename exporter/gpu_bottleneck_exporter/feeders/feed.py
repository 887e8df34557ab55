"""The feeders of one GPU: mains and workers, sampled states, counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpu_bottleneck_exporter.feeders.member import Counters, Member
from gpu_bottleneck_exporter.host.cgroup import Cgroup, Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import State, classify, parse_stat
from gpu_bottleneck_exporter.stall import Feeders, Usage

HISTORY_NS = 20_000_000_000
SLACK_NS = 1_500_000_000
"""Counters are read once a tick: for ratios, the ticks around a window are near enough."""
WORKERS_PER_PASS = 2
WORKERS_PER_TICK = 4
"""So many workers' counters are read every tick; of more, half in one tick, half in the next."""
WORKER_HISTORY_NS = 4_000_000_000
"""Workers are seen in turn: what takes most of their time shows over seconds, not in one tick."""
ROLES = ("main", "worker")
T = TypeVar("T", "Moment", "Tick")
_WAITS = {state: state.value for state in State if state not in (State.RUN, State.GONE)}
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


@dataclass(slots=True)
class Looks:
    """What the workers were seen doing in several moments."""

    states: dict[State, int] = field(default_factory=dict)
    workers: int = 0
    """How many there were, summed over the moments."""
    moments: int = 0

    def add(self, moment: Moment) -> None:
        """Take one moment in."""
        _add_up(self.states, moment.workers)
        self.workers += moment.counts[1]
        self.moments += 1

    def merge(self, other: Looks) -> None:
        """Take the moments of `other` in."""
        _add_up(self.states, other.states)
        self.workers += other.workers
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

    def __init__(self, proc: Path, groups: Cgroups) -> None:
        """`proc`: the host's; `groups` are read by whoever drives all feeds."""
        self.mains: dict[int, Member] = {}
        self.workers: dict[int, Member] = {}
        self.totals = Totals()
        self._proc = proc
        self._groups = groups
        self._cgroups: dict[Cgroup, Held] = {}
        self._moments: deque[Moment] = deque()
        self._ticks: deque[Tick] = deque()
        self.jobs: set[tuple[str, ...]] = set()
        """What its mains have in common with those of other GPUs of the same job."""
        self._others: frozenset[int] = frozenset()
        self._helpers: dict[int, Member] = {}
        """multiprocessing's own: they load nothing, but a forkserver starts workers."""
        self._zombies: set[int] = set()
        self._in_turn: list[Member] = []
        """The workers, for their states to be sampled in turn."""
        self._next_worker = 0
        self._ticks_counted = 0
        self._last_pass_ns: int | None = None
        self._last_tick_ns: int | None = None

    @property
    def cgroups(self) -> frozenset[Cgroup]:
        """The control groups of the mains."""
        return frozenset(self._cgroups)

    def adopt(self, mains: set[int], workers: set[int], others: frozenset[int]) -> None:
        """Take over a newly discovered tree; counters of known processes go on.

        `others` are the mains of all GPUs: a main may have started another one's.
        """
        known = bool(self.mains)
        self._others = others
        self._replace(self.mains, mains)
        # A zombie is a child until its parent asks for it: known, but no worker any more.
        self._zombies = {pid for pid in workers if self._is_zombie(pid)}
        workers = workers - self._zombies
        new = workers - self.workers.keys()
        helpers = (workers & self._helpers.keys()) | {pid for pid in new if self._is_helper(pid)}
        self._replace(self._helpers, helpers)
        started = self._replace(self.workers, workers - helpers)
        self.totals.worker_starts += started if known else 0
        self._in_turn = list(self.workers.values())
        for member in (*self.mains.values(), *self._helpers.values()):
            member.forget_children()
        self.jobs = {key for pid in self.mains for key in job_keys(self._proc, pid)}
        groups = {self._cgroup(pid) for pid in self.mains}
        self._cgroups = {
            group: self._cgroups.get(group) or _held_back(group) for group in groups if group
        }

    def sample(self, now_ns: int, *, mains_only: bool = False) -> bool:
        """Look at what the mains, and a few of the workers in turn, are doing.

        False when a process is gone and the tree is out of date.
        """
        main = _counted(self.mains.values())
        chosen = [] if mains_only else self._next_workers()
        workers = _counted(chosen)
        counts = len(self.mains), len(self._in_turn)
        elapsed = now_ns - (self._last_pass_ns or now_ns)
        self._last_pass_ns = now_ns
        self._moments.append(Moment(now_ns, elapsed, main, workers, counts))
        return State.GONE not in workers

    def _next_workers(self) -> list[Member]:
        count = len(self._in_turn)
        first = self._next_worker
        self._next_worker += min(WORKERS_PER_PASS, count)
        return [self._in_turn[i % count] for i in range(first, self._next_worker)]

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
        )

    def advance(self, now_ns: int) -> bool:
        """Read the counters; False when a process is gone and the tree is out of date."""
        before = self._last_tick_ns
        self._last_tick_ns = now_ns
        tick = Tick(now_ns, now_ns - (before or now_ns))
        self._count_waits(before or 0, tick.looks)
        current = self._advance(self.mains.values(), tick.main)
        current &= self._advance(self._workers_to_count(), tick.workers)
        for group, held in list(self._cgroups.items()):
            now = _held_back(group, held)
            tick.held.append(now.less(held))
            self._cgroups[group] = now
        self._add(tick)
        return current

    def feeders(self, start_ns: int, end_ns: int, peer_busy: float = 0.0) -> Feeders | None:
        """What happened from `start_ns` to `end_ns`; None when nobody looked.

        `peer_busy`: how busy the busiest other GPU of the job is, 0-1.
        """
        moments = _since(self._moments, start_ns, end_ns)
        if not moments:
            return None
        looks = self._looks(moments, end_ns)
        ticks = _since(self._ticks, start_ns - SLACK_NS, end_ns + SLACK_NS)
        held_back = [held for tick in ticks for held in tick.held]
        main, workers = Counters(), Counters()
        for tick in ticks:
            main.add(tick.main)
            workers.add(tick.workers)
        return Feeders(
            elapsed_ns=sum(tick.elapsed_ns for tick in ticks),
            main=_summed(m.main for m in moments),
            workers=looks.states,
            worker_count=looks.workers / looks.moments,
            main_usage=_usage(main, main.leader_cpu_ns),
            worker_usage=_usage(workers, workers.cpu_ns),
            other_threads_cpu_ns=max(main.cpu_ns - main.leader_cpu_ns, 0),
            periods=sum(held.periods for held in held_back),
            throttled_periods=sum(held.throttled_periods for held in held_back),
            refault_bytes=sum(held.refault_bytes for held in held_back),
            peer_busy=peer_busy,
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

    def close(self) -> None:
        """Give all descriptors back."""
        for members in (self.mains, self.workers, self._helpers):
            for member in members.values():
                member.close()

    def _replace(self, members: dict[int, Member], pids: set[int]) -> int:
        gone = {pid for pid, member in members.items() if member.gone}
        for pid in (members.keys() - pids) | gone:
            members.pop(pid).close()
        new = pids - members.keys()
        for pid in new:
            members[pid] = Member(self._proc, pid)
        return len(new)

    def _is_zombie(self, pid: int) -> bool:
        if pid in self.workers and not self.workers[pid].gone:
            return self.workers[pid].state() is State.GONE
        stat = read(self._proc / str(pid) / "stat")
        return stat is not None and classify(parse_stat(stat.encode()).state, None) is State.GONE

    def _is_helper(self, pid: int) -> bool:
        """Whether the process is multiprocessing's forkserver or resource tracker.

        Workers have their forkserver's command line, but it for a parent.
        """
        command = read(self._proc / str(pid) / "cmdline") or ""
        stat = read(self._proc / str(pid) / "stat")
        if not stat or parse_stat(stat.encode()).parent not in self.mains:
            return False
        return any(f"from multiprocessing.{name} import main" in command for name in _HELPERS)

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
        if len(self._in_turn) <= WORKERS_PER_TICK:
            return self._in_turn
        return self._in_turn[self._ticks_counted % 2 :: 2]

    def _advance(self, members: Iterable[Member], total: Counters) -> bool:
        complete = True
        for member in members:
            used = member.advance()
            if used is None:
                complete = False
            else:
                total.add(used)
        return complete

    def _add(self, tick: Tick) -> None:
        self._ticks.append(tick)
        _forget(self._ticks, tick.at_ns)
        _forget(self._moments, tick.at_ns)
        self.totals.counters["main"].add(tick.main)
        self.totals.counters["worker"].add(tick.workers)
        self.totals.throttled_ns += sum(held.throttled_ns for held in tick.held)
        self.totals.refault_bytes += sum(held.refault_bytes for held in tick.held)


def job_keys(proc: Path, pid: int) -> set[tuple[str, ...]]:
    """Equal for processes of one job: the process itself, and its distributed group.

    The group is what torchrun and its like put into the environment, which only the
    same user or one with CAP_SYS_PTRACE may read.
    """
    entries = (read(proc / str(pid) / "environ") or "").split("\0")
    variables = dict(entry.partition("=")[::2] for entry in entries)
    keys: set[tuple[str, ...]] = {("process", str(pid))}
    address, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if address and port and variables.get("WORLD_SIZE", "1") != "1":
        keys.add(("group", address, port))
    return keys


def _usage(counters: Counters, cpu_ns: int) -> Usage:
    system = counters.system_ns / counters.cpu_ns if counters.cpu_ns else 0.0
    return Usage(
        user_ns=round(cpu_ns * (1 - system)),
        system_ns=round(cpu_ns * system),
        queue_ns=counters.queue_ns,
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
