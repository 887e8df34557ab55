"""The thread that watches the feeders of all GPUs."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.feeders.feed import Feed
from gpu_bottleneck_exporter.feeders.job import Networks
from gpu_bottleneck_exporter.feeders.member import Member
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import allow_many_files, read
from gpu_bottleneck_exporter.host.tree import descendants
from gpu_bottleneck_exporter.host.watch import HostWatch
from gpu_bottleneck_exporter.stall import Feeders
from gpu_bottleneck_exporter.workload.owners import OwnerReader

log = logging.getLogger(__name__)

PASS_SECONDS = {4: 0.1, 8: 0.15}
"""Between two looks at up to so many mains."""
LONGEST_PASS_SECONDS = 0.2
"""With more. Waking is most of the cost, so that many GPUs are not to cost many times as much."""
COUNT_SECONDS = 1.0
SNAPSHOT_SECONDS = 2.0
LOOK_FOR_CHILDREN_SECONDS = 0.4
DISCOVERY_SECONDS = 10.0
_JITTER = 0.3
_STOP_SECONDS = 2.0


class Rhythm:
    """What is done every so often, at one of the passes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = 0.0

    def is_due(self, now: float) -> bool:
        """Whether it is, at monotonic `now`; if so, the next time is later."""
        if now < self._next:
            return False
        missed = (now - self._next) // self._seconds
        self._next += (missed + 1) * self._seconds
        return True


class FeederWatch:
    """Samples states of mains at each pass, of workers at every other, counters once a second.

    Passes are `PASS_SECONDS` apart.
    """

    def __init__(
        self, proc: Path, sysfs: Path, *, machine: bool = False, owners: bool = False
    ) -> None:
        """`proc`, `sysfs`: the host's; whether to read the `machine` and mains' `owners` too."""
        self.host = HostWatch(proc, sysfs, machine=machine)
        self._proc = proc
        self._groups = Cgroups(sysfs)
        self._networks = Networks(proc)
        self._owners = OwnerReader(proc) if owners else None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._held: dict[str, frozenset[int] | None] = {}
        self._parents: dict[str, str | None] = {}
        self._feeds: dict[str, Feed] = {}
        self._busy: dict[str, float] = {}
        self._readers: dict[str, FeedingReader] = {}
        self._feedings: dict[str, Feeding | None] = {}
        self._changed = False
        self._step = _pass_seconds(0)
        self._mains_only = True
        self._count = Rhythm(COUNT_SECONDS)
        self._snapshot = Rhythm(SNAPSHOT_SECONDS)
        self._look_for_children = Rhythm(LOOK_FOR_CHILDREN_SECONDS)
        self._finished_pass_ns: int | None = None
        self._thread = threading.Thread(target=self._run, name="feeders", daemon=True)

    def start(self) -> None:
        """Begin watching."""
        allow_many_files()
        self._finished_pass_ns = time.monotonic_ns()
        self._thread.start()

    def stop(self) -> None:
        """End; waits for the pass in work, but not if it is stuck in a read."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def silent_seconds(self, now_ns: int) -> float:
        """How long ago the last pass ended; 0 before `start`."""
        return (now_ns - (self._finished_pass_ns or now_ns)) / 1e9

    def hold(self, uuid: str, pids: frozenset[int] | None, parent_uuid: str | None = None) -> None:
        """Tell which processes hold GPU `uuid`, None when nobody knows; from any thread.

        `parent_uuid`: the GPU a MIG instance is part of, as its `Identity` has it.
        """
        with self._lock:
            if uuid not in self._held or self._held[uuid] != pids:
                self._parents[uuid] = parent_uuid
                self._held[uuid] = pids
                self._changed = True

    def feeders(self, uuid: str, start_ns: int, end_ns: int) -> Feeders | None:
        """What the feeders of GPU `uuid` did between two monotonic times; from any thread."""
        feed = self._feeds.get(uuid)
        return feed.feeders(start_ns, end_ns, self._peer_busy(uuid, feed)) if feed else None

    def tell_busy(self, uuid: str, ratio: float) -> None:
        """Tell how busy GPU `uuid` was in its last tick, for its peers to know."""
        self._busy[uuid] = ratio

    def _peer_busy(self, uuid: str, feed: Feed) -> float:
        """How busy the busiest other GPU of the job was in its last tick, 0-1."""
        peers = [
            self._busy.get(other, 0.0)
            for other, theirs in self._feeds.items()
            if self._is_apart(uuid, other) and feed.jobs & theirs.jobs
        ]
        return max(peers, default=0.0)

    def _is_apart(self, uuid: str, other: str) -> bool:
        """Whether `other` is neither GPU `uuid` nor its parent nor one of its MIG instances.

        A parent's busy time is that of its instances, so neither can wait for the other.
        """
        parents = self._parents
        return uuid != other and uuid != parents[other] and other != parents[uuid]

    def feed(self, uuid: str) -> Feed | None:
        """The feeders of GPU `uuid`."""
        return self._feeds.get(uuid)

    def feeding(self, uuid: str) -> Feeding | None:
        """The feeders of GPU `uuid` as of the last tick; None when they cannot be seen."""
        return self._feedings.get(uuid)

    def _tell(self) -> None:
        """Make the snapshots that scrapes show."""
        self.host.look({pid for feed in self._feeds.values() for pid in feed.mains})
        host, now = self.host.snapshot, time.monotonic_ns()
        queue_known = host is None or host.signals.get("schedstat", True)
        for uuid, feed in self._feeds.items():
            reader = self._readers.setdefault(
                uuid, FeedingReader(self._proc, self._networks, self._owners)
            )
            feeding = reader.read(feed, now, queue_known=queue_known)
            # Held by processes that are not in our /proc: of another PID namespace, or just gone.
            unseen = not feed.mains and self._held.get(uuid) != frozenset()
            self._feedings[uuid] = None if unseen else feeding

    def _run(self) -> None:
        next_pass = time.monotonic()
        next_discovery = next_pass
        while not self._stop.is_set():
            try:
                stale = self._pass(next_pass)
                if self._snapshot.is_due(next_pass):
                    self._tell()
                if stale or time.monotonic() >= next_discovery:
                    changed = self._changed
                    self._discover()
                    if changed:  # who comes to hold a GPU is told at once
                        self._tell()
                    next_discovery = time.monotonic() + DISCOVERY_SECONDS
            except Exception:  # whatever /proc says, the watching goes on
                log.exception("watching the feeders")
            self._finished_pass_ns = time.monotonic_ns()
            # Never in step with a loop of 25 or 100 ms, whose one moment would pass for all.
            step = self._step * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
            next_pass = max(next_pass + step, time.monotonic())
            # Not waiting for `_stop`: that costs several times as much, and this is brief.
            time.sleep(max(next_pass - time.monotonic(), 0.0))
        for feed in self._feeds.values():
            feed.close()

    def _pass(self, now: float) -> bool:
        """Sample; once a second also count. Whether the trees must be discovered anew."""
        stale = self._changed
        self._mains_only = not self._mains_only
        counting = self._count.is_due(now)
        looking = self._look_for_children.is_due(now)
        if counting:
            self._groups.look()
        for feed in list(self._feeds.values()):
            stale |= not feed.sample(time.monotonic_ns(), mains_only=self._mains_only)
            if looking:
                stale |= not feed.knows_all_children()
            if counting:
                stale |= not feed.advance(time.monotonic_ns())
        return stale

    def _discover(self) -> None:
        with self._lock:
            held = dict(self._held)
            self._changed = False
        mains = frozenset(pid for pids in held.values() for pid in pids or ())
        seen = {pid for pid in mains if read(self._proc / str(pid) / "stat") is not None}
        feeds = dict(self._feeds)
        members = {p: m for feed in feeds.values() for p, m in feed.workers.items()}
        trees = descendants(self._proc, seen, mains, partial(_known_children, members))
        for uuid, pids in held.items():
            living = seen.intersection(pids or ())
            workers = {worker for pid in living for worker in trees.get(pid, ())}
            feeds.setdefault(uuid, Feed(self._proc, self._groups)).adopt(living, workers, mains)
        self._feeds = feeds
        self._step = _pass_seconds(len(seen))
        self._groups.keep({group for feed in feeds.values() for group in feed.cgroups})


def _known_children(members: Mapping[int, Member], pid: int) -> list[int] | None:
    member = members.get(pid)
    return member.children() if member else None


def _pass_seconds(mains: int) -> float:
    return next((s for most, s in PASS_SECONDS.items() if mains <= most), LONGEST_PASS_SECONDS)
