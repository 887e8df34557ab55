"""The thread that watches: the feeders of all GPUs, the machine, and the owners."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from gpu_bottleneck_exporter.accounting.bucket import Bucket
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Networks
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.host.aside import aside, lending
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import allow_many_files
from gpu_bottleneck_exporter.news import News
from gpu_bottleneck_exporter.sampling.discovery import Discovery
from gpu_bottleneck_exporter.sampling.peers import Peers, inspect_connections
from gpu_bottleneck_exporter.sampling.prescriber import Prescribers
from gpu_bottleneck_exporter.sampling.watch import HostWatch
from gpu_bottleneck_exporter.schedule import Every
from gpu_bottleneck_exporter.settings import LONGEST_ANSWER_SECONDS
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader

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
_JITTER = 0.3
_PASSES_BETWEEN = 2
"""Passes between two deep probes of one of many mains, while its wait stays the same."""
_REST = 9
"""A pause lasts at least so many times the CPU time of the pass before: a tenth of a core."""
_REST_FROM_DISCOVERY = 19
_STOP_SECONDS = 2.0


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
        self.host = HostWatch(proc, sysfs, machine=machine, without=without)
        self._proc = proc
        self._cgroups = Cgroups(sysfs)
        self._networks = Networks(proc)
        units = Groups(proc, sysfs)
        self._owners = OwnerReader(proc, groups=units) if owners else None
        self._discovery = Discovery(
            proc, self._cgroups, units, longest_answer_seconds, self._isolated
        )
        self._prescribers = Prescribers(proc, sysfs) if prescriptions else None
        self._peers = Peers()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._held: dict[str, frozenset[int] | None] = {}
        self._gone: set[str] = set()
        self._changed = False
        """Whether `_held` did since the last discovery."""
        self._feeds: dict[str, FeederGroup] = {}
        self._readers: dict[str, FeedingReader] = {}
        self._feedings: dict[str, Feeding | None] = {}
        self._step = PASS_SECONDS
        self._mains_only = True
        self._counting = Every(COUNT_SECONDS)
        self._counting_steady = Every(STEADY_COUNT_SECONDS)
        self._publishing = Every(SNAPSHOT_SECONDS)
        self._looking_for_children = Every(LOOK_FOR_CHILDREN_SECONDS)
        self._next_steady_pass = 0.0
        """When the feeders of steady GPUs are due."""
        self._discover_from = 0.0
        """No discovery before, unless holders changed: keeps its cost to a share of a core."""
        self._finished_pass_ns: int | None = None
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
                self._peers.parents[uuid] = parent_uuid
                self._held[uuid] = pids
                self._changed = True

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`, such as a MIG instance that was destroyed. For any thread."""
        with self._lock:
            self._changed |= self._held.pop(uuid, None) is not None
            self._gone.add(uuid)

    def explaining(self, uuid: str, start_ns: int, end_ns: int) -> Bucket | None:
        """What explains idle time of GPU `uuid` between two monotonic times. For any thread."""
        feeds = self._feeds
        did = feeds[uuid].history.explaining(start_ns, end_ns) if uuid in feeds else None
        if did:
            did.peer = self._peers.engaged(uuid, feeds)
        return did

    def note_busy(self, uuid: str, ratio: float) -> None:
        """Note how busy GPU `uuid` was in its last tick, 0-1."""
        if feed := self._feeds.get(uuid):
            feed.note_busy(ratio, time.monotonic_ns())

    def note_split(self, uuid: str, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Note how the last tick of GPU `uuid` was split: busy time, and idle time by cause."""
        self._peers.note(uuid, active_ns, stalls)
        if self._prescribers:
            self._prescribers.note_split(uuid, active_ns, stalls)
        if feed := self._feeds.get(uuid):
            feed.steady.note(active_ns, stalls)

    def feed(self, uuid: str) -> FeederGroup | None:
        """The feeders of GPU `uuid`."""
        return self._feeds.get(uuid)

    def feeding(self, uuid: str) -> Feeding | None:
        """The feeders of GPU `uuid` as of the last tick; None if they are out of sight."""
        return self._feedings.get(uuid)

    def _publish(self) -> None:
        """Update the snapshots that scrapes show."""
        feeds = self._feeds.values()
        self.host.look(
            {pid for feed in feeds for pid in feed.mains},
            {
                "all_threads": all(feed.sees_all_threads for feed in feeds),
                "all_sockets": all(feed.sees_all_sockets for feed in feeds),
                "all_processes": all(feed.family.follows_all for feed in feeds),
            },
            _watched(feeds),
        )
        host, now = self.host.snapshot, time.monotonic_ns()
        queue_known = host is None or host.signals.get("schedstat", True)
        for uuid, feed in self._feeds.items():
            if uuid not in self._readers:
                self._readers[uuid] = FeedingReader(self._proc, self._networks, self._owners)
            with self._isolated(f"reporting the feeders of {uuid}"):
                feeding = self._readers[uuid].read(feed, now, queue_known=queue_known)
                if self._prescribers:
                    outlook = self._prescribers.advise(uuid, feed, feeding, host)
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
                if self._publishing.is_due(next_pass):
                    self._publish()
            rest = _REST * (_cpu_seconds() - began)
            stale |= time.monotonic() >= next_discovery
            if self._changed or (stale and time.monotonic() >= self._discover_from):
                stale = False
                every = STEADY_DISCOVERY_SECONDS if self._all_steady() else DISCOVERY_SECONDS
                next_discovery = time.monotonic() + every
                with self._isolated("looking for feeders"):
                    self._discover()
            self._finished_pass_ns = time.monotonic_ns()
            # Jittered: in step with a loop of 25 or 100 ms, each pass would see one moment of it.
            pause = _jittered(self._steady_pass() if self._all_steady() else self._step)
            next_pass = max(next_pass + pause, time.monotonic() + rest)
            # Not `_stop.wait`, which costs several times as much; the sleep is short.
            time.sleep(max(next_pass - time.monotonic(), 0.0))
        for feed in self._feeds.values():
            feed.close()
        self._cgroups.keep(())

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
        counting, children = self._counting.is_due(now), self._looking_for_children.is_due(now)
        counting_all = counting and self._counting_steady.is_due(now)
        feeds = list(self._feeds.items())
        steady = {feed for _, feed in feeds if feed.steady}
        everybody = now >= self._next_steady_pass or len(steady) == len(feeds)
        if everybody:
            self._next_steady_pass = now + _jittered(self._steady_pass()) - self._step / 2
        if counting_all or (counting and len(steady) < len(feeds)):
            with self._isolated("reading the control groups"):
                self._cgroups.look()
        for uuid, feed in feeds:
            what = f"watching the feeders of {uuid}"
            lively = feed not in steady
            closes_second = counting_all or (counting and lively)
            try:
                if lively or everybody:
                    mains_only = lively and self._mains_only
                    stale |= not feed.sample(time.monotonic_ns(), mains_only=mains_only)
                stale |= children and not feed.family.knows_all_children()
                stale |= self._discovery.lacks_kin(feed, time.monotonic_ns())
                if closes_second:
                    stale |= not feed.advance(time.monotonic_ns())
            except Exception as error:  # noqa: BLE001 - whatever /proc says of one job
                self._news.fault(log, what, error)
            else:
                if closes_second:  # a pass that does less may succeed where another fails
                    self._news.fault(log, what, None)
        if counting and self._discovery.connected:
            inspect_connections(self._feeds.values(), time.monotonic_ns())
        self._discovery.find_strangers(self._feeds.values(), time.monotonic_ns())
        return stale

    def _discover(self) -> None:
        """Discover the trees; where the holders changed, publish that at once."""
        began, changed = _cpu_seconds(), self._changed
        try:
            with self._lock:
                held = dict(self._held)
                gone, self._gone = self._gone - held.keys(), set()
                self._changed = False
            for uuid in gone:
                self._drop(uuid)
            feeds = self._discovery.find_trees(held, self._feeds)
            self._feeds = feeds
            few = len({pid for feed in feeds.values() for pid in feed.mains}) <= FEW
            self._step = PASS_SECONDS if few else LONGEST_PASS_SECONDS
            for feed in feeds.values():
                feed.states.fresh_ns = 0 if few else int(_PASSES_BETWEEN * self._step * 1e9)
            self._cgroups.keep(set().union(*(one.counters.cgroups for one in feeds.values())))
            mains = frozenset(pid for pids in held.values() for pid in pids or ())
            self._discovery.find_kin(feeds.values(), mains)
        finally:
            spent = _cpu_seconds() - began
            self._discover_from = time.monotonic() + _REST_FROM_DISCOVERY * spent
        if changed:
            self._publish()

    def _drop(self, uuid: str) -> None:
        """Forget GPU `uuid`, which is no more."""
        feeds = dict(self._feeds)
        if feed := feeds.pop(uuid, None):
            feed.close()
        self._feeds = feeds
        for part in (self._peers, self._news, self._prescribers):
            if part:
                part.forget(uuid)
        self._readers.pop(uuid, None)
        self._feedings.pop(uuid, None)


def _watched(feeds: Collection[FeederGroup]) -> dict[str, int]:
    """Number of feeders by how closely they are watched."""
    found = {"whole": 0, "sampled": 0, "counted": 0}
    for feed in feeds:
        found["whole" if feed.family.is_prompt else "sampled"] += len(feed.workers)
        found["whole"] += len(feed.mains)
        found["counted"] += len(feed.family.unfollowed)
    return found


def _cpu_seconds() -> float:
    """CPU time of the calling thread, and of what it lets others do for it."""
    return time.thread_time() + aside.cpu_seconds + lending.cpu_seconds


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
