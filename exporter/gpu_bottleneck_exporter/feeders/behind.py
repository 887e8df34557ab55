"""The closer looks of one GPU's feeders, while the GPU idles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.closer import LAUNCHES, Seen, Surroundings
from gpu_bottleneck_exporter.feeders.member import Counters, Member
from gpu_bottleneck_exporter.feeders.wire import Ends, Patience
from gpu_bottleneck_exporter.host.process import STATE_OF, State
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.stall import Usage

IDLE = 0.05
"""Share of a tick from which on a GPU's idle time is worth a closer look."""
_STAYS_NS = 10_000_000_000
"""So long closer looks go on after the GPU last idled: a loop that stalls now and then is seen."""
_HARDLY_MOVED_NS = 500_000
"""CPU time in a tick; a first thread that drives a GPU uses more."""
_WORKS = 0.5
"""Share of a tick from which on a GPU works, for somebody or on its own."""
_FIRST_WORKS, _EVERY_WORKS_NS = 3, (2_000_000_000, 10_000_000_000)
"""So often it is asked for whom a GPU works: at first, and later."""
_WEIGHT, _MOSTLY = 0.2, 0.75
_SLEEPS = frozenset(Wait) - {Wait.RUN, Wait.DISK, Wait.GONE}
_RESTS = frozenset({State.QUEUE, State.SLEEP, State.UNKNOWN})
_ACTIVE = frozenset({State.RUN, State.DISK, State.NETWORK})


class Looked(NamedTuple):
    """What closer looks added in one pass."""

    threads: dict[State, int]
    """Loading threads and unknown children of the mains, by what they do; idle ones left out."""
    reasons: Counter[str]
    """What mains sleep in for which nothing else explains the waiting."""


class Works:
    """Whether a main that listens makes its GPU work when no client has asked for anything.

    Then it is no server: a training loop may have a port for its metrics.
    """

    def __init__(self) -> None:
        self._alone = 0.0
        self._looks = 0
        self._due_ns = 0

    @property
    def by_itself(self) -> bool:
        """Whether it mostly does."""
        return self._looks >= _FIRST_WORKS and self._alone > _MOSTLY

    def is_due(self, now_ns: int) -> bool:
        """Whether to look again; if so, the next time is later."""
        if now_ns < self._due_ns:
            return False
        self._due_ns = now_ns + _EVERY_WORKS_NS[self._looks >= _FIRST_WORKS]
        return True

    def note(self, *, clients: bool) -> None:
        """While the GPU worked, there were clients that talked with it, or none."""
        seen = 0.0 if clients else 1.0
        self._looks += 1
        self._alone += (seen - self._alone) * max(_WEIGHT, 1 / self._looks)


class Behind:
    """Written by the watching thread."""

    def __init__(self, proc: Path, patience: Patience | None) -> None:
        """`patience` with connections; None: descriptors of other processes cannot be borrowed."""
        self.patience = patience
        self.kin: dict[int, Member] = {}
        """Processes that feed the GPU and descend from none that holds it."""
        self.ours: Collection[Ends] = frozenset()
        """Ends of connections of the job's other processes."""
        self.is_rank = False
        self.interactive = False
        self.fresh_ns = 0
        """Of a main, what was seen so lately is not asked again."""
        self.resting = False
        """Whether no worker nor kin did anything in the last tick."""
        self.explained = False
        """Whether what runs or is in D state explains the waiting without closer looks."""
        self._proc = proc
        self._known: Callable[[int], bool] = lambda _: False
        self._busy = 0.0
        self._idled_ns: int | None = None
        self._elsewhere: set[int] = set()
        """Mains whose GPU is driven by another thread than the first."""
        self._next = 0
        self._works: dict[int, Works] = {}
        """By main, for whom it makes its GPU work."""

    def know(self, known: Callable[[int], bool]) -> None:
        """`known` processes are looked at on their own."""
        self._known = known

    def tell_busy(self, ratio: float, now_ns: int) -> None:
        """How busy the GPU was in its last tick, 0-1."""
        self._busy = ratio
        if ratio < 1 - IDLE:
            self._idled_ns = now_ns

    def wanted(self, now_ns: int) -> bool:
        """Whether the GPU idles, or did lately; not before anything is known of it."""
        return self._idled_ns is not None and now_ns - self._idled_ns < _STAYS_NS

    def adopt_kin(self, pids: set[int]) -> None:
        """Take over newly found kin."""
        for pid in self.kin.keys() - pids:
            self.kin.pop(pid).close()
        for pid in pids - self.kin.keys():
            self.kin[pid] = Member(self._proc, pid)

    @property
    def lost_kin(self) -> bool:
        """Whether one of them has ended: another may have taken its place."""
        return any(one.gone for one in self.kin.values())

    def close(self) -> None:
        """Give all descriptors of kin back."""
        self.adopt_kin(set())

    def mains(
        self, members: Iterable[Member], states: dict[State, int], now_ns: int, *, workers: bool
    ) -> Looked:
        """Count what `members`, which hold the GPU, do into `states`, and what is behind it."""
        looked = Looked({}, Counter())
        for member in members:
            wait = member.reader.wait()
            state = STATE_OF[wait]
            if wait in _SLEEPS and not self.explained:
                seen = self._look(member, wait, now_ns, workers=workers)
                state = self._state(seen, workers=workers)
                for active, number in seen.active.items():
                    looked.threads[active] = looked.threads.get(active, 0) + number
                if state in _RESTS and not seen.active:
                    looked.reasons[seen.reason] += 1
            states[state] = states.get(state, 0) + 1
        return looked

    def others(self, members: Iterable[Member], now_ns: int) -> dict[State, int]:
        """What `members`, which hold no GPU, do, each as a whole."""
        states: dict[State, int] = {}
        around = Surroundings(self.ours, self._known)
        for member in members:
            wait = member.reader.wait()
            state = STATE_OF[wait]
            if wait in _SLEEPS:
                closer = member.look_closer(self.patience)
                state = closer.look(now_ns, wait, around).whole
            elif member.closer:
                member.closer.serving = False
            states[state] = states.get(state, 0) + 1
        return states

    def look_at_kin(self, now_ns: int) -> dict[State, int]:
        """What two of the kin do, in turn."""
        if not self.kin:
            return {}
        kin = list(self.kin.values())
        first = self._next
        self._next += min(2, len(kin))
        chosen = [kin[i % len(kin)] for i in range(first, self._next)]
        return self.others(chosen, now_ns)

    def learn(self, members: Iterable[Member], now_ns: int) -> None:
        """Which connections `members` have."""
        for member in members:
            member.look_closer(self.patience).learn(now_ns)

    def count_threads(self, mains: Iterable[Member], main: Counters) -> Usage:
        """Give what launching threads used to the counters of the `main` role; return the rest."""
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

    def follow_launches(self, member: Member, used: Counters) -> None:
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
        """The GPU is busy: give back what closer looks took."""
        for member in members:
            member.look_no_closer()

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
        if seen.first in _ACTIVE or seen.active or self.is_rank or self.interactive:
            return seen.first
        if workers or self.patience is None:
            return seen.first
        serving = seen.serves or any(self._waits_for_clients(one) for one in self.kin.values())
        return State.REQUESTS if serving and seen.reason != Wait.STOPPED.value else seen.first

    def _waits_for_clients(self, kin: Member) -> bool:
        return kin.closer is not None and kin.closer.serving
