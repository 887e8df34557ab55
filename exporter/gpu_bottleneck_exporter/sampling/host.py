"""The thread that samples the host: the feeders of all GPUs, the machine, and the owners."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import Feeders, engaged
from gpu_bottleneck_exporter.ageing import Ageing
from gpu_bottleneck_exporter.feeders.crowd import share_of
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Networks
from gpu_bottleneck_exporter.feeders.kin import KinFinder
from gpu_bottleneck_exporter.feeders.member import Member
from gpu_bottleneck_exporter.feeders.patience import Patience
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.feeders.strangers import StrangerFinder
from gpu_bottleneck_exporter.host.aside import aside, lending
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import allow_many_files, read
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.host.tree import trees
from gpu_bottleneck_exporter.news import News
from gpu_bottleneck_exporter.prescription.advise import Advice
from gpu_bottleneck_exporter.prescription.model import Refusal
from gpu_bottleneck_exporter.sampling.prescriber import Prescribers
from gpu_bottleneck_exporter.sampling.watch import HostWatch
from gpu_bottleneck_exporter.settings import LONGEST_ANSWER_SECONDS
from gpu_bottleneck_exporter.workload.groups import Groups
from gpu_bottleneck_exporter.workload.owners import OwnerReader

log = logging.getLogger(__name__)

PASS_SECONDS = 0.1
"""Between two passes over `FEW` mains or fewer."""
FEW = 4
LONGEST_PASS_SECONDS = 0.2
"""With more of them. Waking up is most of the cost, and must not grow with the GPUs."""
STEADY_PASS_SECONDS = 0.45
"""Between two looks at the feeders of a steady GPU: two per tick."""
WORKING_PASS_SECONDS = 0.9
"""Where all steady GPUs are busy all the time: their ticks are twice as long."""
COUNT_SECONDS = 1.0
STEADY_COUNT_SECONDS = 2.0
SNAPSHOT_SECONDS = 2.0
LOOK_FOR_CHILDREN_SECONDS = 0.4
DISCOVERY_SECONDS = 10.0
STEADY_DISCOVERY_SECONDS = 30.0
_LOST_KIN_NS = 5_000_000_000
"""At least so long between two searches for kin, which may come and go many times a second."""
_JITTER = 0.3
_PASSES_BETWEEN = 2
"""Passes between two closer looks at one of many mains, while its wait stays the same."""
_REST = 9
"""A pause lasts at least so many times the CPU time of the pass before: a tenth of a core."""
_REST_FROM_DISCOVERY = 19
_STOP_SECONDS = 2.0
_PEER_FRESH_NS = 10_000_000_000
"""As much as the driver's ring holds: what a GPU did in its last tick is stale after that."""


class Due(NamedTuple):
    """What one pass does about one feeder group."""

    look: bool
    mains_only: bool
    children: bool
    """Whether to look for new ones."""
    counters: bool


class Sought(NamedTuple):
    """When kin were last sought, and are due again, while `mains` are the holders of all GPUs."""

    mains: frozenset[int]
    ageing: Ageing
    at_ns: int


class Rhythm:
    """Something that is due every so many seconds, at the next pass."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it is due at monotonic `now`; if so, it is due again an interval later."""
        if now < self._next:
            return False
        missed = (now - self._next) // self._seconds
        self._next += (missed + 1) * self._seconds
        return True


class HostSampler:
    """Samples mains at each pass, workers at every other one, and counters once a second.

    Passes are `PASS_SECONDS` apart; feeders of steady GPUs are sampled less often, mains and
    workers together. The same thread drives the host's readings (`sampling.watch`) and the owners
    (`workload.owners`), which belong to the same processes.
    """

    def __init__(  # noqa: PLR0913 - what settings say of it
        self,
        proc: Path,
        sysfs: Path,
        *,
        machine: bool = False,
        owners: bool = False,
        prescriptions: bool = True,
        longest_answer_seconds: float = LONGEST_ANSWER_SECONDS,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """`proc`, `sysfs`: the host's. `machine`, `owners`: whether to read these, too.

        `prescriptions`: whether to find out what would help idle GPUs.

        A request to another machine that is older than `longest_answer_seconds` does not wait
        for a slow answer. Signals in `without` are not reported.
        """
        self._longest_answer_ms = int(longest_answer_seconds * 1000)
        self.host = HostWatch(proc, sysfs, machine=machine, without=without)
        self._proc = proc
        self._groups = Cgroups(sysfs)
        self._networks = Networks(proc)
        self._units = Groups(proc, sysfs)
        self._owners = OwnerReader(proc, groups=self._units) if owners else None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._held: dict[str, frozenset[int] | None] = {}
        self._parents: dict[str, str | None] = {}
        self._gone: set[str] = set()
        self._feeds: dict[str, FeederGroup] = {}
        self._engaged: dict[str, tuple[float, int]] = {}
        self._prescribers = Prescribers(proc, sysfs) if prescriptions else None
        self._connected = same_pids(proc)
        self._readers: dict[str, FeedingReader] = {}
        self._feedings: dict[str, Feeding | None] = {}
        self._changed = False
        self._step = PASS_SECONDS
        self._mains_only = True
        self._count = Rhythm(COUNT_SECONDS)
        self._count_steady = Rhythm(STEADY_COUNT_SECONDS)
        self._next_of_all = 0.0
        """When the feeders of steady GPUs are due."""
        self._snapshot = Rhythm(SNAPSHOT_SECONDS)
        self._look_for_children = Rhythm(LOOK_FOR_CHILDREN_SECONDS)
        self._sought_kin: dict[str, Sought] = {}
        """By GPU: the last search for its kin."""
        self._strangers = StrangerFinder(proc)
        self._finished_pass_ns: int | None = None
        self._discover_from = 0.0
        """No discovery before, unless holders changed: keeps its cost to a share of a core."""
        self._news = News()
        self._thread = threading.Thread(target=self._run, name="feeders", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        allow_many_files()
        self._finished_pass_ns = time.monotonic_ns()
        self._thread.start()

    def stop(self) -> None:
        """Stop; waits for the current pass, but not if it is stuck in a read."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def silent_seconds(self, now_ns: int) -> float:
        """How long ago the last pass ended; 0 before `start`."""
        return (now_ns - (self._finished_pass_ns or now_ns)) / 1e9

    def hold(self, uuid: str, pids: frozenset[int] | None, parent_uuid: str | None = None) -> None:
        """Set which processes hold GPU `uuid`, None if unknown. For any thread.

        `parent_uuid`: the board of a MIG instance, as in its `Identity`.
        """
        with self._lock:
            if uuid not in self._held or self._held[uuid] != pids:
                self._parents[uuid] = parent_uuid
                self._held[uuid] = pids
                self._changed = True

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`, such as a MIG instance that was destroyed. For any thread."""
        with self._lock:
            self._changed |= self._held.pop(uuid, None) is not None
            self._gone.add(uuid)

    def feeders(self, uuid: str, start_ns: int, end_ns: int) -> Feeders | None:
        """What the feeders of GPU `uuid` did between two monotonic times. For any thread."""
        feed = self._feeds.get(uuid)
        return feed.feeders(start_ns, end_ns, self._peer(uuid, feed)) if feed else None

    def tell_busy(self, uuid: str, ratio: float) -> None:
        """Set how busy GPU `uuid` was in its last tick, 0-1."""
        if feed := self._feeds.get(uuid):
            feed.behind.tell_busy(ratio, time.monotonic_ns())

    def tell_split(self, uuid: str, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Set how the last tick of GPU `uuid` was split: busy time, and idle time by cause.

        A rank is engaged while its GPU works or waits for a cause within that rank: ranks that
        wait for a starved rank wait for that rank, however little its GPU does.
        """
        elapsed_ns = active_ns + sum(stalls.values())
        ratio = engaged(active_ns, stalls) / max(elapsed_ns, 1)
        self._engaged[uuid] = ratio, time.monotonic_ns()
        if self._prescribers:
            self._prescribers.tell(uuid, active_ns, stalls)
        if feed := self._feeds.get(uuid):
            feed.steady.note(active_ns, stalls)

    def _peer(self, uuid: str, feed: FeederGroup) -> float:
        """The largest share of the last tick that another GPU of the job was engaged in, 0-1."""
        peers = [
            self._engagement(other)
            for other, theirs in self._feeds.items()
            if self._is_apart(uuid, other) and (feed.jobs & theirs.jobs or feed.joined(theirs))
        ]
        return max(peers, default=0.0)

    def _engagement(self, uuid: str) -> float:
        """0 once it is stale: nothing is known of a GPU that hangs."""
        ratio, at_ns = self._engaged.get(uuid, (0.0, 0))
        return ratio if time.monotonic_ns() - at_ns <= _PEER_FRESH_NS else 0.0

    def _is_apart(self, uuid: str, other: str) -> bool:
        """Whether `other` is neither GPU `uuid`, nor its board, nor one of its MIG instances.

        A board's busy time is that of its instances, so neither can wait for the other.
        """
        parents = self._parents
        return uuid != other and uuid != parents.get(other) and other != parents.get(uuid)

    def feed(self, uuid: str) -> FeederGroup | None:
        """The feeders of GPU `uuid`."""
        return self._feeds.get(uuid)

    def feeding(self, uuid: str) -> Feeding | None:
        """The feeders of GPU `uuid` as of the last tick; None if they are out of sight."""
        return self._feedings.get(uuid)

    def forecast(self, uuid: str, knob: str, value: float) -> Advice:
        """What `knob` at `value` would bring GPU `uuid` (`prescription.model`)."""
        if self._prescribers is None:
            return Refusal("unseen")
        return self._prescribers.forecast(uuid, knob, value)

    def _tell(self) -> None:
        """Update the snapshots that scrapes show."""
        feeds = self._feeds.values()
        self.host.look(
            {pid for feed in feeds for pid in feed.mains},
            {
                "all_threads": all(feed.sees_all_threads for feed in feeds),
                "all_sockets": all(feed.sees_all_sockets for feed in feeds),
                "all_processes": all(feed.follows_all for feed in feeds),
            },
            _watched(feeds),
        )
        host, now = self.host.snapshot, time.monotonic_ns()
        queue_known = host is None or host.signals.get("schedstat", True)
        for uuid, feed in self._feeds.items():
            reader = self._readers.get(uuid)
            if reader is None:
                reader = FeedingReader(self._proc, self._networks, self._owners)
                self._readers[uuid] = reader
            with self._isolated(f"reporting the feeders of {uuid}"):
                feeding = reader.read(feed, now, queue_known=queue_known)
                if self._prescribers:
                    outlook = self._prescribers.look(uuid, feed, feeding, host)
                    feeding = replace(feeding, outlook=outlook)
                # Its holders are not in our /proc: of another PID namespace, or just ended.
                unseen = not feed.mains and self._held.get(uuid) != frozenset()
                self._feedings[uuid] = None if unseen else feeding

    def _isolated(self, what: str) -> AbstractContextManager[None]:
        """Whatever /proc says of one job, the others are sampled on."""
        return self._news.guarded(log, what)

    def _run(self) -> None:
        next_pass = time.monotonic()
        next_discovery = next_pass
        stale = False
        while not self._stop.is_set():
            began = _cpu_seconds()
            with self._isolated("watching the feeders"):
                stale |= self._pass(next_pass)
                if self._snapshot.is_due(next_pass):
                    self._tell()
            rest = _REST * (_cpu_seconds() - began)
            stale |= time.monotonic() >= next_discovery
            if self._changed or (stale and time.monotonic() >= self._discover_from):
                stale = False
                every = STEADY_DISCOVERY_SECONDS if self._all_steady() else DISCOVERY_SECONDS
                next_discovery = time.monotonic() + every
                with self._isolated("looking for feeders"):
                    self._rediscover()
            self._finished_pass_ns = time.monotonic_ns()
            next_pass = max(next_pass + self._pause(), time.monotonic() + rest)
            # Not `_stop.wait`, which costs several times as much; the sleep is short.
            time.sleep(max(next_pass - time.monotonic(), 0.0))
        for feed in self._feeds.values():
            feed.close()
        self._groups.keep(())

    def _rediscover(self) -> None:
        """Discover the trees; where the holders changed, publish that at once."""
        began, changed = _cpu_seconds(), self._changed
        try:
            self._discover()
        finally:
            spent = _cpu_seconds() - began
            self._discover_from = time.monotonic() + _REST_FROM_DISCOVERY * spent
        if changed:
            self._tell()

    def _pause(self) -> float:
        """Seconds to the next pass.

        Jittered: in step with a loop of 25 or 100 ms, each pass would see the same moment of it.
        """
        return _jittered(self._steady_pass() if self._all_steady() else self._step)

    def _steady_pass(self) -> float:
        """Seconds between two looks at steady GPUs."""
        all_work = all(feed.steady.works for feed in self._feeds.values() if feed.steady)
        return WORKING_PASS_SECONDS if all_work else STEADY_PASS_SECONDS

    def _all_steady(self) -> bool:
        return bool(self._feeds) and all(feed.steady for feed in self._feeds.values())

    def _pass(self, now: float) -> bool:
        """Sample, and count once a second. Returns whether the trees must be rediscovered."""
        stale = self._changed
        self._mains_only = not self._mains_only
        counting, looking = self._count.is_due(now), self._look_for_children.is_due(now)
        counting_all = counting and self._count_steady.is_due(now)
        feeds = list(self._feeds.values())
        steady = {feed for feed in feeds if feed.steady}
        everybody = now >= self._next_of_all or len(steady) == len(feeds)
        if everybody:
            self._next_of_all = now + _jittered(self._steady_pass()) - self._step / 2
        if counting_all or (counting and len(steady) < len(feeds)):
            with self._isolated("reading the control groups"):
                self._groups.look()
        for uuid, feed in list(self._feeds.items()):
            lively = feed not in steady
            due = Due(
                look=lively or everybody,
                mains_only=lively and self._mains_only,
                children=looking,
                counters=counting_all or (counting and lively),
            )
            stale |= self._look_at(uuid, feed, due)
        if counting:
            self._learn_connections(time.monotonic_ns())
        self._find_strangers(time.monotonic_ns())
        return stale

    def _look_at(self, uuid: str, feed: FeederGroup, due: Due) -> bool:
        """As `_isolated`, but on the hot path: success is noted only once a second."""
        what = f"watching the feeders of {uuid}"
        try:
            stale = self._pass_over(feed, due)
        except Exception as error:  # noqa: BLE001 - whatever /proc says of one job
            self._news.fault(log, what, error)
            return False
        if due.counters:
            self._news.fault(log, what, None)
        return stale

    def _pass_over(self, feed: FeederGroup, due: Due) -> bool:
        """One feed's part of a pass."""
        stale = False
        if due.look:
            stale = not feed.sample(time.monotonic_ns(), mains_only=due.mains_only)
        if due.children:
            stale |= not feed.knows_all_children()
        if self._connected and feed.behind.wanted(time.monotonic_ns()) and not feed.sought_kin:
            stale = feed.sought_kin = True
        if due.counters:
            stale |= not feed.advance(time.monotonic_ns())
        return stale

    def _discover(self) -> None:
        with self._lock:
            held = dict(self._held)
            gone, self._gone = self._gone - held.keys(), set()
            for uuid in gone:
                self._parents.pop(uuid, None)
            self._changed = False
        self._drop(gone)
        self._units.forget()
        mains = frozenset(pid for pids in held.values() for pid in pids or ())
        seen = {pid for pid in mains if read(self._proc / str(pid) / "stat") is not None}
        feeds = dict(self._feeds)
        members = {p: m for feed in feeds.values() for p, m in feed.workers.items()}
        found = trees(self._proc, seen, mains, partial(_known_children, members))
        for uuid, pids in held.items():
            living = seen.intersection(pids or ())
            workers = {worker for pid in living for worker in found.of.get(pid, ())}
            if uuid not in feeds:
                feeds[uuid] = FeederGroup(self._proc, self._groups, self._patience(), self._units)
            whole = living.isdisjoint(found.cut)
            with self._isolated(f"finding the feeders of {uuid}"):
                feeds[uuid].adopt(living, workers, mains, share_of(len(held)), whole=whole)
        self._feeds = feeds
        self._find_kin(feeds, mains)
        self._step = PASS_SECONDS if len(seen) <= FEW else LONGEST_PASS_SECONDS
        few = self._step == PASS_SECONDS
        for feed in feeds.values():
            feed.behind.fresh_ns = 0 if few else int(_PASSES_BETWEEN * self._step * 1e9)
        self._groups.keep({group for feed in feeds.values() for group in feed.cgroups})

    def _drop(self, gone: set[str]) -> None:
        feeds = dict(self._feeds)
        for uuid in gone & feeds.keys():
            feeds.pop(uuid).close()
        self._feeds = feeds
        for uuid in gone:
            if self._prescribers:
                self._prescribers.forget(uuid)
            self._news.forget(uuid)
            for known in (self._readers, self._feedings, self._engaged, self._sought_kin):
                known.pop(uuid, None)

    def _patience(self) -> Patience | None:
        return Patience(self._longest_answer_ms) if self._connected else None

    def _find_kin(self, feeds: Mapping[str, FeederGroup], mains: frozenset[int]) -> None:
        """Find the kin of idle GPUs; a busy one needs no explanation."""
        now = time.monotonic_ns()
        finder = KinFinder(self._proc, mains, self._units)
        for uuid, feed in feeds.items():
            if not self._connected or not feed.behind.wanted(now):
                feed.behind.close()
                self._sought_kin.pop(uuid, None)
                continue
            sought = self._sought_kin.get(uuid)
            if sought is None or sought.mains != mains:
                sought = Sought(mains, Ageing(now), now)
            lost = feed.behind.lost_kin and now - sought.at_ns >= _LOST_KIN_NS
            if sought.ageing.is_due(now) or lost:
                kin = [finder.of(pid, feed.workers) for pid in feed.mains]
                feed.behind.adopt_kin(set().union(*kin))
                self._sought_kin[uuid] = sought._replace(at_ns=now)

    def _find_strangers(self, now_ns: int) -> None:
        """Find who is connected with the feeders of GPUs that idle for a reason not yet known."""
        feeds = [
            feed
            for feed in self._feeds.values()
            if feed.mains and feed.behind.wanted(now_ns) and not feed.behind.explained
        ]
        if not self._connected or not self._strangers.is_due(now_ns, feeds):
            return
        mains = [pid for feed in self._feeds.values() for pid in feed.mains]
        with self._isolated("looking for strangers that feed"):
            for feed, found in self._strangers.search(feeds, mains, now_ns).items():
                feed.behind.adopt_strangers(found)

    def _learn_connections(self, now_ns: int) -> None:
        """For idle GPUs: which connections lead to other processes of the job."""
        feeds = list(self._feeds.values())
        if not self._connected or not any(feed.behind.wanted(now_ns) for feed in feeds):
            return
        for feed in feeds:
            if len(feeds) > 1 or feed.behind.kin or feed.workers:
                feed.learn(now_ns)
        for feed in feeds:
            feed.note_ends()
        for feed in feeds:
            others = [other for other in feeds if other is not feed]
            theirs = (other.ends_with(feed) for other in others)
            feed.behind.ours = frozenset().union(*theirs, feed.own_ends)
            feed.behind.is_rank = feed.has_rank_variables or any(
                feed.joined(other) for other in others
            )


def _watched(feeds: Collection[FeederGroup]) -> dict[str, int]:
    """Number of feeders by how closely they are watched."""
    found = {"whole": 0, "sampled": 0, "counted": 0}
    for feed in feeds:
        found["whole" if feed.is_prompt else "sampled"] += len(feed.workers)
        found["whole"] += len(feed.mains)
        found["counted"] += len(feed.unfollowed)
    return found


def _known_children(members: Mapping[int, Member], pid: int) -> list[int] | None:
    member = members.get(pid)
    return member.children() if member else None


def _cpu_seconds() -> float:
    """CPU time of the calling thread, and of what it lets others do for it."""
    return time.thread_time() + aside.cpu_seconds + lending.cpu_seconds


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
