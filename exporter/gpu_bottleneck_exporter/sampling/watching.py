"""The thread that watches: the feeders of all GPUs, the machine, and the owners."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.accounting.bucket import WINDOW_NS, Bucket
from gpu_bottleneck_exporter.accounting.tick import Subscriber, Tick
from gpu_bottleneck_exporter.driver.readings import Processes
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Networks
from gpu_bottleneck_exporter.feeders.snapshot import Feeding, FeedingReader
from gpu_bottleneck_exporter.feeders.states import UNCONNECTED
from gpu_bottleneck_exporter.feeders.tree import Holders
from gpu_bottleneck_exporter.host.aside import (
    memory_reads,
    proc_reads,
    socket_queries,
    waited_seconds,
)
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import allow_many_files
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.sampling.discovery import (
    Connections,
    Discovery,
    engaged_peer,
    inspect_connections,
)
from gpu_bottleneck_exporter.sampling.hostreader import HostReader
from gpu_bottleneck_exporter.sampling.prescriber import Prescribers
from gpu_bottleneck_exporter.schedule import (
    FEW,
    HALF_AS_OFTEN,
    OFTEN_NS,
    SELDOM_NS,
    SHORTLY_NS,
    Every,
)
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, tenants

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.stacktraces.watch import LineWatch

log = logging.getLogger(__name__)

PASS_SECONDS = 0.1
"""Between two passes over `FEW` mains or fewer."""
LONGEST_PASS_SECONDS = HALF_AS_OFTEN * PASS_SECONDS
"""With more of them. Waking up is most of the cost, and must not grow with the GPUs."""
COUNT_SECONDS = 1.0
"""As often as GPUs are read by default."""
LONGEST_PAUSE_SECONDS = COUNT_SECONDS
"""Between two looks at the feeders of one GPU."""
SNAPSHOT_SECONDS = WINDOW_NS / 1e9
"""Between two snapshots that nobody asked for; also between two readings of the counters of what
goes on as before."""
REFRESH_SECONDS = 0.5
"""A pass takes milliseconds: for whoever waits longer, what was known before must do."""
LOOK_FOR_CHILDREN_SECONDS = 0.4
"""Some workers live for a second only."""
DISCOVERY_SECONDS = OFTEN_NS / 1e9
"""Seconds between two discoveries without a sign that processes came or went."""
SLOW_PACE_DISCOVERY_SECONDS = SELDOM_NS / 1e9
"""The same while the pace of all feeders is slow (`feeders.group.Pace`): their waits last."""
SLOW_PACE_INSPECTION_SECONDS = SHORTLY_NS / 1e9
"""Seconds between two inspections of connections then: no process lists its own more often."""
_JITTER = 0.3
"""In step with a loop of 25 or 100 ms, each pass would see one moment of that loop."""
_REST = 9
"""A pause lasts at least so many times the CPU time of the pass before: a tenth of a core."""
_REST_FROM_DISCOVERY = 2 * _REST
"""A twentieth of a core."""
_HANG_NS = SHORTLY_NS
"""Time after which a thread that reads one GPU's processes is replaced: a pass takes less."""
_MAX_BLOCKED_SECONDS = 0.1
"""Time for which sampling one GPU's feeders may block; beyond it they rest as after CPU time."""


@dataclass(slots=True)
class _Watched:
    """What is kept of one GPU from pass to pass."""

    reader: FeedingReader
    feeding: Feeding | None = None
    """What scrapes show; None while the feeders are out of sight."""
    peers: tuple[int, ...] = ()
    """Pids of the rank that was engaged most while it idled last."""
    pause: float = PASS_SECONDS
    """Seconds between two looks at the feeders."""
    sample_from: float = 0.0
    """Monotonic seconds before which the feeders are not sampled again."""
    rests_until: float = 0.0
    """Monotonic seconds before which its feeders, which blocked a pass, are not sampled."""


class HostSampler:
    """Samples mains at each pass, workers at every other one, and counters once a second.

    Passes are `PASS_SECONDS` apart; what goes on as before is sampled as `feeders.group.Pace`
    says, mains and workers together. The same thread drives the host's readings
    (`sampling.hostreader`) and the owners (`workload.owners`), which belong to the same processes.
    """

    def __init__(
        self,
        settings: Settings,
        collectors: Collection[str] = (),
        subscribers: Iterable[Subscriber] = (),
    ) -> None:
        """`collectors`: names of the enabled ones; some want more than the feeders.

        `subscribers` learn of each tick after those that are made here.
        """
        proc, sysfs = settings.procfs, settings.sysfs
        self.host = HostReader(proc, sysfs, machine="host" in collectors, without=settings.without)
        self._cgroups = Cgroups(sysfs)
        self._networks = Networks(proc)
        units = Groups(proc, sysfs)
        self._owners = OwnerReader(proc, groups=units) if "workload" in collectors else None
        self._discovery = Discovery(settings, self._cgroups, units, self._isolated)
        self._executors = [memory_reads, socket_queries, proc_reads]
        """Those that take turns by tenant."""
        self.lines = self._new_lines(proc, sysfs) if "stacks" in collectors else None
        """Looks at stacks."""
        self._tenant_of = tenants(proc, sysfs)
        self._prescribers = Prescribers(proc, sysfs) if "prescription" in collectors else None
        self.subscribers: list[Subscriber] = [self.note]
        """Who learns of each tick, in the thread that reads the GPU."""
        if self._prescribers:
            self.subscribers.append(self._prescribers.note)
        if self.lines:
            self.subscribers.append(self.lines.add_tick)
        self.subscribers += subscribers
        self._held: dict[str, Holders] = {}
        self._changed = False
        """Whether `_held` did since the last discovery."""
        self._feeds: dict[str, FeederGroup] = {}
        self._connections: Connections = {}
        """As last inspected; replaced, never changed, as any thread may read it."""
        self._gpus: dict[str, _Watched] = {}
        self._step, self._fresh_ns = PASS_SECONDS, 0
        self._mains_only = True
        self._inspecting = Every(COUNT_SECONDS)
        self._inspecting_slowly = Every(SLOW_PACE_INSPECTION_SECONDS)
        self._asked_ns = 0
        """When somebody last asked for a snapshot."""
        self._published = threading.Condition()
        self._published_ns = 0
        self._looking_for_children = Every(LOOK_FOR_CHILDREN_SECONDS)
        self._reading: tuple[str, int] = "", 0
        """The GPU whose processes are read now, empty if none, and since when."""
        self._hung: dict[str, threading.Thread] = {}
        """Threads that were replaced, by the GPU in whose processes' files they hang."""
        self._waited = 0.0
        """Seconds for which the thread had waited for a CPU when it last blocked."""
        self._throttle = LogThrottle(log)
        self._discovering = Every(DISCOVERY_SECONDS)
        self._next_pass, self._discover_from = time.monotonic(), 0.0
        """Monotonic seconds."""
        self._stale = False
        """Whether a process has come or gone since the last discovery."""
        self._loop = Loop("feeders", self._watch, PASS_SECONDS, log=log, last=self._close)

    def start(self) -> None:
        """Start the thread."""
        allow_many_files()
        for one in self._executors:
            one.share_by(self._tenant_of)
        self._loop.start()
        if self.lines:
            self.lines.loop.start()

    def stop(self) -> None:
        """Stop; waits for the current pass, but not if it is stuck in a read."""
        self._loop.stop()
        if self.lines:
            self.lines.loop.stop()
        if self._prescribers:
            self._prescribers.stop()
        for one in self._executors:
            one.share_by(int)

    def _new_lines(self, proc: Path, sysfs: Path) -> LineWatch:
        # Imported late: a third of a megabyte, and most exporters never look at stacks.
        from gpu_bottleneck_exporter.stacktraces.reader import (  # noqa: PLC0415
            StackReader,
            stack_reads,
        )
        from gpu_bottleneck_exporter.stacktraces.watch import LineWatch  # noqa: PLC0415

        self._executors.append(stack_reads)
        # Nothing of a control group is remembered from one look to the next.
        reader = partial(StackReader, proc, tenant=lambda pid: Groups(proc, sysfs).tenant(pid))
        return LineWatch(self.feeding, reader)

    def silent_seconds(self, now_ns: int) -> float:
        """Time since the last pass ended, or came to another GPU; 0 before `start`."""
        return min(self._loop.silent_seconds(now_ns), (now_ns - self._reading[1]) / 1e9)

    def replace_if_hung(self, now_ns: int) -> None:
        """Start another thread if this one hangs in files of one GPU's processes.

        An execve that closes descriptors on a file system that does not answer holds a lock for
        which /proc/PID/stat, wchan, syscall and io wait. That GPU is left out until they return.
        Called from one thread only, once a second.
        """
        uuid, since_ns = self._reading
        if uuid and now_ns - since_ns > _HANG_NS and not self._loop.stopping:
            log.warning("processes do not answer: not watched until they do", {"uuid": uuid})
            self._hung[uuid], self._reading = self._loop.thread, ("", now_ns)
            self._let_rest(uuid, _HANG_NS / 1e9)
            self._waited = 0.0
            # It may hang in a discovery, which is then to be made once more.
            self._stale, self._discover_from = True, 0.0
            self._loop.replace()

    def _hangs(self, uuid: str) -> bool:
        return uuid in self._hung and self._hung[uuid].is_alive()

    def hold(self, uuid: str, pids: frozenset[int] | None, parent_uuid: str | None = None) -> None:
        """Set which processes hold GPU `uuid`, None if unknown. For any thread.

        `parent_uuid`: the board of a MIG instance, as in its `Identity`.
        """
        holders = Holders(pids, parent_uuid)
        if self._held.get(uuid) != holders:
            self._held[uuid] = holders
            self._changed = True

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`, such as a MIG instance that was destroyed. For any thread."""
        self._held.pop(uuid, None)
        self._changed = True

    def explaining(self, uuid: str, start_ns: int, end_ns: int) -> Bucket | None:
        """What explains idle time of GPU `uuid` between two monotonic times. For any thread."""
        feeds = self._feeds
        did = feeds[uuid].history.explaining(start_ns, end_ns) if uuid in feeds else None
        if did is None:
            return None
        ratio, peer = engaged_peer(uuid, feeds, self._connections, time.monotonic_ns())
        if gpu := self._gpus.get(uuid):
            gpu.peers = tuple(peer.mains) if peer else ()
        return replace(did, peer=ratio)

    def note(self, tick: Tick) -> None:
        """Note who has a GPU, and what it did. For any thread."""
        if tick.windows or tick.reading(Processes):
            self.hold(tick.gpu.uuid, tick.holders, tick.gpu.parent_uuid)
        if tick.windows and (feed := self._feeds.get(tick.gpu.uuid)):
            feed.note(tick)

    def feed(self, uuid: str) -> FeederGroup | None:
        """The feeders of GPU `uuid`."""
        return self._feeds.get(uuid)

    def feeding(self, uuid: str) -> Feeding | None:
        """The feeders of GPU `uuid` as last published; None if they are out of sight."""
        gpu = self._gpus.get(uuid)
        return gpu.feeding if gpu else None

    def refresh(self) -> None:
        """Bring the snapshots up to date, which takes a pass. For any thread.

        Those that are younger than the counters may be are good enough. Where the pass hangs, they
        stay as they are.
        """
        asked_ns = time.monotonic_ns()
        if self._loop.alive and asked_ns - self._published_ns >= COUNT_SECONDS * 1e9:
            with self._published:
                self._asked_ns = asked_ns
                self._loop.wake()
                self._published.wait_for(lambda: self._published_ns > asked_ns, REFRESH_SECONDS)

    def _publish(self) -> None:
        """Update the snapshots that scrapes show."""
        feeds = self._feeds.values()
        self.host.read(
            {pid for feed in feeds for pid in feed.mains},
            {
                "all_threads": all(feed.sees_all_threads for feed in feeds),
                "all_sockets": all(feed.sees_all_sockets for feed in feeds),
                "all_processes": all(feed.family.follows_all for feed in feeds),
            },
            _watched(feeds),
            settled=bool(feeds) or self._published_ns > 0,
        )
        host, now = self.host.snapshot, time.monotonic_ns()
        queue_known = host is None or host.signals.get("schedstat", True)
        for uuid, feed in self._feeds.items():
            gpu = self._gpus[uuid]
            if self._hangs(uuid):
                gpu.feeding = None  # what was read last is too old
                continue
            with self._isolated("reporting the feeders", uuid):
                feeding = gpu.reader.read(feed, now, gpu.peers, queue_known=queue_known)
                if self._prescribers:
                    outlook = self._prescribers.advise(
                        uuid, self._feeds, self._connections, feeding, host
                    )
                    if outlook is not feeding.outlook:
                        feeding = replace(feeding, outlook=outlook)
                # Its holders are not in our /proc: of another PID namespace, or just ended.
                unseen = not feed.mains and feed.holders.pids != frozenset()
                gpu.feeding = None if unseen else feeding
        with self._published:
            self._published_ns = now  # of what is shown, however long it took
            self._published.notify_all()

    @contextmanager
    def _isolated(self, step: str, uuid: str = "", *, may_hang: bool = True) -> Iterator[None]:
        """Whatever /proc says of one job, the others are sampled on.

        `uuid`: the GPU whose processes are read, if any; without `may_hang`, no read can hang.
        """
        self._reading = uuid if may_hang else "", time.monotonic_ns()
        with self._throttle.guarded(step, uuid=uuid or None):
            yield
        self._returned()

    def _returned(self) -> None:
        """Note that reads have returned; end the thread if another one has replaced it."""
        if threading.current_thread() in self._hung.values():
            raise SystemExit
        self._reading = "", time.monotonic_ns()

    def _watch(self) -> float:
        """One pass, and a discovery if that is due; returns the pause until the next pass."""
        began, jitter = _cpu_seconds(), random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        now = min(self._next_pass, time.monotonic())  # somebody may want a snapshot meanwhile
        age_ns = time.monotonic_ns() - self._published_ns
        asked = self._asked_ns > self._published_ns
        publishes = asked or age_ns >= SNAPSHOT_SECONDS * 1e9
        with self._isolated("watching the feeders"):
            self._stale |= self._pass(now, jitter, publishes=publishes)
            if publishes:
                self._publish()
        rest = _REST * (_cpu_seconds() - began)
        every = SLOW_PACE_DISCOVERY_SECONDS if self._shortest() > self._step else DISCOVERY_SECONDS
        self._stale |= self._discovering.is_due(time.monotonic(), every)
        if self._changed or (self._stale and time.monotonic() >= self._discover_from):
            self._stale, began = False, _cpu_seconds()
            with self._isolated("looking for feeders"):
                self._discover()
            spent = _cpu_seconds() - began
            self._discover_from = time.monotonic() + _REST_FROM_DISCOVERY * spent
        self._next_pass = max(now + jitter * self._shortest(), time.monotonic() + rest)
        return max(self._next_pass - time.monotonic(), 0.0)

    def _shortest(self) -> float:
        """The shortest pause between two looks at the feeders of any GPU, in seconds."""
        return min((one.pause for one in self._gpus.values()), default=self._step)

    def _close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._cgroups.retain(())
        self.host.close()

    def _pass(self, now: float, jitter: float, *, publishes: bool) -> bool:
        """Sample and count feeders that are due. Returns whether trees must be rediscovered.

        The next pass comes `jitter` times as late as usual. A pass that `publishes` counts all
        but what has just been counted.
        """
        stale, found = False, {u: feed for u, feed in self._feeds.items() if not self._hangs(u)}
        feeds = found.values()
        awake = {uuid: feed for uuid, feed in found.items() if now >= self._gpus[uuid].rests_until}
        self._mains_only = not self._mains_only
        slow = self._shortest() > self._step
        inspects = self._inspecting.is_due(now) and (
            not slow or self._inspecting_slowly.is_due(now)
        )
        children = self._looking_for_children.is_due(now)
        now_ns, cpu = time.monotonic_ns(), _cpu_seconds()
        soon = now + self._shortest() / 2  # else who is just not due would wait for two pauses
        closing = {
            feed for feed in awake.values() if self._is_to_count(feed, now_ns, publishes=publishes)
        }
        if closing:
            with self._isolated("reading the control groups"):
                self._cgroups.read_counters()
        for uuid, feed in awake.items():
            step, gpu = "watching the feeders", self._gpus[uuid]
            began_ns = time.monotonic_ns()
            gpu.pause = feed.pace.pause(self._step, LONGEST_PAUSE_SECONDS)
            lively = gpu.pause <= self._step
            self._reading = uuid, began_ns
            try:
                if lively or soon >= gpu.sample_from:
                    gpu.sample_from = now + jitter * gpu.pause
                    mains_only = lively and self._mains_only
                    stale |= not feed.sample(
                        time.monotonic_ns(),
                        self._connections.get(uuid, UNCONNECTED),
                        fresh_ns=self._fresh_ns,
                        mains_only=mains_only,
                    )
                stale |= children and feed.family.is_outdated()
                stale |= self._discovery.lacks_kin(feed, time.monotonic_ns())
                if feed in closing:
                    stale |= not feed.advance(time.monotonic_ns())
            except Exception as error:  # noqa: BLE001 - whatever /proc says of one job
                self._throttle.log_fault(step, error, uuid=uuid)
            else:
                if feed in closing:  # a pass that does less may succeed where another fails
                    self._throttle.log_fault(step, None, uuid=uuid)
            self._returned()
            seconds = (time.monotonic_ns() - began_ns) / 1e9
            if seconds > _MAX_BLOCKED_SECONDS:
                before, self._waited = self._waited, waited_seconds()
                self._let_rest(uuid, seconds - (_cpu_seconds() - cpu) - (self._waited - before))
        if inspects and self._discovery.connected and any(one.idles(now_ns) for one in feeds):
            self._connections = {
                **self._connections,
                **inspect_connections(found, time.monotonic_ns()),
            }
        self._discovery.find_strangers(found, time.monotonic_ns())
        return stale

    def _let_rest(self, uuid: str, seconds: float) -> None:
        """Pause the feeders of a GPU, which blocked the thread for `seconds`.

        All such groups together may take a tenth of the time from the others.
        """
        if seconds > _MAX_BLOCKED_SECONDS and (gpu := self._gpus.get(uuid)):
            now = time.monotonic()
            groups = 1 + sum(one.rests_until > now for one in list(self._gpus.values()))
            gpu.rests_until = now + _REST * groups * seconds

    def _is_to_count(self, feed: FeederGroup, now_ns: int, *, publishes: bool) -> bool:
        """Whether its counters are to be read: what lasts much less than a second tells little."""
        seconds = (now_ns - (feed.last_count_ns or 0)) / 1e9
        due = not feed.pace.lasts and seconds >= COUNT_SECONDS - self._step / 2
        return due or (publishes and seconds >= COUNT_SECONDS / 2)

    def _discover(self) -> None:
        """Discover the trees; where the holders changed, publish that at once."""
        changed, self._changed = self._changed, False
        held, known = dict(self._held), self._feeds
        now = time.monotonic()
        left_out = {  # reading these would hold up the others once more
            uuid: feed
            for uuid, feed in known.items()
            if uuid in held and (self._hangs(uuid) or now < self._gpus[uuid].rests_until)
        }
        feeds = self._discovery.discover(held, known, left_out) | left_out
        for uuid in feeds.keys() - self._gpus.keys():
            self._gpus[uuid] = _Watched(FeedingReader(self._networks, self._owners))
        for gpu in (self._gpus[uuid] for uuid, feed in feeds.items() if not feed.pace.lasts):
            gpu.pause, gpu.sample_from = self._step, 0.0
        self._feeds = feeds
        for uuid in known.keys() - held.keys():
            self._drop(uuid, known[uuid])
        few = len({pid for feed in feeds.values() for pid in feed.mains}) <= FEW
        self._step = PASS_SECONDS if few else LONGEST_PASS_SECONDS
        # While its wait stays the same, one of many is probed at every other pass.
        self._fresh_ns = 0 if few else int(HALF_AS_OFTEN * self._step * 1e9)
        kept = held.keys() & self._connections.keys()
        self._connections = {uuid: self._connections[uuid] for uuid in kept}
        self._cgroups.retain(set().union(*(one.counters.cgroups for one in feeds.values())))
        if changed:
            self._publish()

    def _drop(self, uuid: str, feed: FeederGroup) -> None:
        """Forget GPU `uuid`, which is no more."""
        feed.close()
        self._throttle.evict(uuid)
        if self._prescribers:
            self._prescribers.forget(uuid)
        if self.lines:
            self.lines.forget(uuid)
        self._gpus.pop(uuid, None)


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
    return time.thread_time() + sum(
        one.cpu_seconds for one in (memory_reads, socket_queries, proc_reads)
    )
