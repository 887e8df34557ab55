"""The closer looks of one GPU's feeders, while the GPU idles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import Usage
from gpu_bottleneck_exporter.accounting.state import STATE_OF, State
from gpu_bottleneck_exporter.feeders.closer import ACTIVE, LAUNCHES, Seen, Surroundings
from gpu_bottleneck_exporter.feeders.member import Member, ProcessCounters
from gpu_bottleneck_exporter.feeders.patience import Patience
from gpu_bottleneck_exporter.feeders.runnable import RunnableCounter
from gpu_bottleneck_exporter.feeders.strangers import Activity
from gpu_bottleneck_exporter.host.places import Place, Places
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.host.waits import Wait

IDLE = 0.05
"""Idle share of a tick from which closer looks are worth their cost."""
_STAYS_NS = 10_000_000_000
"""Closer looks go on so long after the GPU last idled, to see loops that stall now and then."""
_HARDLY_MOVED_NS = 500_000
"""Share of a tick; a first thread that drives a GPU uses more CPU time than this."""
_WORKS = 0.5
"""Busy share of a tick from which it is worth asking for whom the GPU works."""
_FIRST_WORKS, _EVERY_WORKS_NS = 3, (2_000_000_000, 10_000_000_000)
"""Between two such questions: at first, and later."""
_WEIGHT, _MOSTLY = 0.2, 0.75
_SLEEPS = frozenset(Wait) - {Wait.RUN, Wait.DISK, Wait.GONE}
_COMPILES = frozenset({Wait.RUN, Wait.DISK, Wait.CHILD})
"""Itself, or a program that it started."""
_AWAY = frozenset({Wait.TIMER, Wait.SOCKET})
"""Where a worker does not wait for its next task, even if nobody owes it an answer."""
_RESTS = frozenset({State.QUEUE, State.SLEEP, State.UNKNOWN})


class Looked(NamedTuple):
    """What closer looks added in one pass."""

    threads: dict[State, int]
    """Loading threads and unknown children of the mains by state, without idle ones."""
    reasons: Counter[str]
    """What mains sleep in where nothing else explains the waiting."""


class Works:
    """Whether a listening main keeps its GPU busy while no client has a request open.

    If so, it is no server: a training loop may open a port for its metrics.
    """

    def __init__(self) -> None:
        self._alone = 0.0
        self._looks = 0
        self._due_ns = 0

    @property
    def by_itself(self) -> bool:
        """Whether it does so most of the time."""
        return self._looks >= _FIRST_WORKS and self._alone > _MOSTLY

    def is_due(self, now_ns: int) -> bool:
        """Whether to look again; if so, it is due again later."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _EVERY_WORKS_NS[self._looks >= _FIRST_WORKS]
        return True

    def note(self, *, clients: bool) -> None:
        """Note whether clients talked to it while the GPU worked."""
        seen = 0.0 if clients else 1.0
        self._looks += 1
        self._alone += (seen - self._alone) * max(_WEIGHT, 1 / self._looks)


class Behind:
    """Used by the host sampler's thread only."""

    def __init__(self, proc: Path, patience: Patience | None) -> None:
        """`patience` with connections; None: other processes' descriptors cannot be duplicated."""
        self.patience = patience
        self.kin: dict[int, Member] = {}
        """Processes that may feed the GPU without descending from a holder; also strangers."""
        self.compilers: list[Member] = []
        """Descendants of mains that compile kernels: who waits for them does so itself."""
        self.ours: Collection[Ends] = frozenset()
        """Ends of connections of the job's other processes."""
        self.is_rank = False
        self.interactive = False
        self.fresh_ns = 0
        """What is younger than this is not read again for a main."""
        self.resting = False
        """Whether no worker and no kin was active in the last tick."""
        self.explained = False
        """Whether tasks that run or are in D state explain the waiting without closer looks."""
        self.runnable = RunnableCounter()
        self.place: Place | None = None
        """Where the file is that was waited for in the last pass; None: nobody waited for one."""
        self._places = Places(proc)
        self._proc = proc
        self._known: Callable[[int], bool] = lambda _: False
        self._strangers: dict[int, Activity] = {}
        """Those of `kin` that are no relatives."""
        self._busy = 0.0
        self._idled_ns: int | None = None
        self._elsewhere: set[int] = set()
        """Mains in which another thread than the first drives the GPU."""
        self._next = 0
        self._works: dict[int, Works] = {}
        """By main: whether its GPU works for clients."""

    def know(self, known: Callable[[int], bool]) -> None:
        """Set the test for processes that are sampled by themselves."""
        self._known = known

    def tell_busy(self, ratio: float, now_ns: int) -> None:
        """How busy the GPU was in its last tick, 0-1."""
        self._busy = ratio
        if ratio and self.patience:
            self.patience.worked_ns = now_ns
        if ratio < 1 - IDLE:
            self._idled_ns = now_ns

    def wanted(self, now_ns: int) -> bool:
        """Whether the GPU idles or did so lately; False until anything is known of it."""
        return self._idled_ns is not None and now_ns - self._idled_ns < _STAYS_NS

    def adopt_kin(self, pids: set[int]) -> None:
        """Take over newly found kin; strangers stay."""
        self._adopt(pids, self._strangers.keys() - pids)

    def adopt_strangers(self, pids: set[int]) -> None:
        """Take over newly found strangers."""
        self._adopt(self.relatives, pids - self.relatives)

    def _adopt(self, relatives: set[int], strangers: set[int]) -> None:
        self._strangers = {pid: self._strangers.get(pid) or Activity() for pid in strangers}
        pids = relatives | strangers
        for pid in self.kin.keys() - pids:
            self.kin.pop(pid).close()
        for pid in pids - self.kin.keys():
            self.kin[pid] = Member(self._proc, pid)

    @property
    def relatives(self) -> set[int]:
        """Those of the kin that are no strangers."""
        return self.kin.keys() - self._strangers.keys()

    @property
    def feeding(self) -> list[Member]:
        """The kin, without strangers that do little."""
        return [member for pid, member in self.kin.items() if self._counts(pid)]

    @property
    def in_the_job(self) -> list[Member]:
        """The kin, with strangers whose work, not the network, is what is waited for."""
        known, idle = self._strangers, 1 - self._busy
        return [one for pid, one in self.kin.items() if pid not in known or known[pid].works(idle)]

    def _counts(self, pid: int) -> bool:
        activity = self._strangers.get(pid)
        return activity is None or activity.counts(1 - self._busy)

    @property
    def lost_kin(self) -> bool:
        """Whether one of the kin has ended; another may have replaced it."""
        return any(self.kin[pid].gone for pid in self.relatives)

    def close(self) -> None:
        """Forget all kin and strangers, and close their descriptors."""
        self._adopt(set(), set())

    def mains(
        self, members: Iterable[Member], states: dict[State, int], now_ns: int, *, workers: bool
    ) -> Looked:
        """Count states of `members`, which hold the GPU, into `states`, and look behind them."""
        looked = Looked({}, Counter())
        self.place = None
        for member in members:
            wait = member.reader.wait()
            state = STATE_OF[wait]
            self._locate((member.pid, member.pid) if wait is Wait.DISK else None, now_ns)
            if wait in _SLEEPS and not self.explained:
                seen = self._look(member, wait, now_ns, workers=workers)
                self._locate(seen.in_file, now_ns)
                state = self._state(seen, workers=workers)
                for active, number in seen.active.items():
                    looked.threads[active] = looked.threads.get(active, 0) + number
                if state in _RESTS and not seen.active:
                    if any(one.reader.wait() in _COMPILES for one in self.compilers):
                        state = State.RUN
                    else:
                        looked.reasons[seen.reason] += 1
            states[state] = states.get(state, 0) + 1
        return looked

    def others(
        self, members: Iterable[Member], now_ns: int, ends: frozenset[Ends] = frozenset()
    ) -> dict[State, int]:
        """States of `members`, which hold no GPU, each process as a whole.

        `ends`: those of the mains; who waits for a main's answer waits for no network.
        """
        states: dict[State, int] = {}
        around = Surroundings(ends.union(self.ours) if ends else self.ours, self._known)
        for member in members:
            wait = member.reader.wait()
            state = STATE_OF[wait]
            self._locate((member.pid, member.pid) if wait is Wait.DISK else None, now_ns)
            if wait in _SLEEPS:
                closer = member.look_closer(self.patience)
                seen = closer.look(now_ns, wait, around)
                self._locate(seen.in_file, now_ns)
                state = seen.whole
                if wait in _AWAY and state is State.SLEEP:
                    state = State.TIMER
            elif member.closer:
                member.closer.serving = False
            states[state] = states.get(state, 0) + 1
        return states

    def look_at_kin(self, now_ns: int, ends: frozenset[Ends] = frozenset()) -> dict[State, int]:
        """States of two of the kin, in turn, without strangers that do little; `ends` as above."""
        if not self.kin:
            return {}
        kin = list(self.kin.values())
        first = self._next
        self._next += min(2, len(kin))
        states: dict[State, int] = {}
        for member in (kin[i % len(kin)] for i in range(first, self._next)):
            (state,) = self.others([member], now_ns, ends)
            if member.pid in self._strangers:
                self._strangers[member.pid].note(state)
            if self._counts(member.pid):
                states[state] = states.get(state, 0) + 1
        return states

    def learn(self, members: Iterable[Member], now_ns: int) -> None:
        """Inspect the connections of `members`."""
        for member in members:
            member.look_closer(self.patience).learn(now_ns)

    def count_threads(self, mains: Iterable[Member], main: ProcessCounters) -> Usage:
        """Add what launching threads used to the counters of the `main` role; return the rest."""
        cpu = queue = 0
        mains = list(mains)
        self._elsewhere.intersection_update(member.pid for member in mains)
        for member in mains:
            if member.closer is None:
                continue
            elsewhere = member.closer.launches_elsewhere
            for used in member.closer.take_used():
                if elsewhere or used.name.startswith(LAUNCHES):
                    main.launch_cpu_ns += used.cpu_ns
                    main.launch_queue_ns += used.queue_ns
                else:
                    cpu += used.cpu_ns
                    queue += used.queue_ns
        return Usage(user_ns=cpu, queue_ns=queue)

    def follow_launches(self, member: Member, used: ProcessCounters) -> None:
        """Learn from a tick's counters whether the first thread of a main drives the GPU."""
        if self._busy < IDLE:
            return
        if used.leader_cpu_ns < _HARDLY_MOVED_NS:
            self._elsewhere.add(member.pid)
        else:
            self._elsewhere.discard(member.pid)

    def follow_work(self, mains: Collection[Member], now_ns: int) -> None:
        """Learn whether `mains`, which have no workers, make the GPU work for clients."""
        for pid in self._works.keys() - {member.pid for member in mains}:
            del self._works[pid]
        if self._busy < _WORKS or self.patience is None:
            return
        for member in mains:
            works = self._works.setdefault(member.pid, Works())
            if works.is_due(now_ns):
                closer = member.look_closer(self.patience)
                closer.learn(now_ns, now=True)
                if closer.wire and closer.wire.ports:
                    works.note(clients=closer.wire.lively_clients)

    def rest(self, members: Iterable[Member]) -> None:
        """The GPU is busy: release what closer looks keep open."""
        self.runnable.pause()
        for member in members:
            member.look_no_closer()

    def _locate(self, in_file: tuple[int, int] | None, now_ns: int) -> None:
        """Note where the file is for which a thread waits: of one thread at each pass.

        The mains come first, so that theirs and their helpers' are noted as often as the GPU waits
        for them.
        """
        if in_file and self.place is None:
            self.place = self._places.of(*in_file, now_ns)

    def _look(self, member: Member, wait: Wait, now_ns: int, *, workers: bool) -> Seen:
        closer = member.look_closer(self.patience)
        elsewhere = member.pid in self._elsewhere
        works = self._works.get(member.pid)
        by_itself = works is not None and works.by_itself
        around = Surroundings(
            self.ours,
            self._known,
            elsewhere,
            self.fresh_ns,
            holds=True,
            may_serve=not (workers or self.is_rank or self.interactive or by_itself),
        )
        seen = closer.look(now_ns, wait, around)
        seen.serves = seen.serves and not by_itself
        return seen

    def _state(self, seen: Seen, *, workers: bool) -> State:
        if seen.first in ACTIVE or seen.active or self.is_rank or self.interactive:
            return seen.first
        if workers or self.patience is None:
            return seen.first
        serving = seen.serves or any(map(self._waits_for_clients, self.relatives))
        return State.REQUESTS if serving and seen.reason != Wait.STOPPED.value else seen.first

    def _waits_for_clients(self, kin: int) -> bool:
        closer = self.kin[kin].closer
        return closer is not None and closer.serving
