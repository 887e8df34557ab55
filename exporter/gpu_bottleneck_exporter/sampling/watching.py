"""The thread that samples feeders, the machine and owners."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import Bucket, Role
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
from gpu_bottleneck_exporter.schedule import CADENCE, SMALL_GROUP, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import Groups, OwnerReader, tenants

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.stacktraces.watch import LineWatch

log = logging.getLogger(__name__)

_MAX_PASS_BLOCKED_SECONDS = 0.1
"""Blocked time per GPU's feeders, after which they pause."""


@dataclass(slots=True)
class _GpuState:
    reader: FeedingReader
    feeding: Feeding | None = None
    """The published snapshot; None while feeders are invisible."""
    peers: tuple[int, ...] = ()
    """Pids of the most engaged rank while this GPU last idled."""
    tenants: Mapping[int, str] = field(default_factory=dict)
    """Tenants by pid of holder, while the GPU is shared."""
    pause: float = CADENCE.pass_seconds
    """Seconds between two samples."""
    sample_from: float = 0.0
    """Monotonic seconds of the next sample."""
    rests_until: float = 0.0
    """Monotonic seconds until which feeders that blocked a pass are skipped."""


class HostSampler:
    """Samples mains in each pass, workers in every other one, and counters once a second.

    The same thread reads the host (`sampling.hostreader`) and owners (`workload.owners`).
    """

    def __init__(
        self,
        settings: Settings,
        collectors: Collection[str] = (),
        subscribers: Iterable[Subscriber] = (),
    ) -> None:
        """`collectors`: names of the enabled ones. `subscribers` receive ticks last."""
        proc, sysfs = settings.procfs, settings.sysfs
        self.host = HostReader(proc, sysfs, machine="host" in collectors, without=settings.without)
        self._cgroups = Cgroups(sysfs)
        self._networks = Networks(proc)
        units = Groups(proc, sysfs)
        self._owners = OwnerReader(proc, groups=units) if "workload" in collectors else None
        self._discovery = Discovery(settings, self._cgroups, units, self._isolated)
        self._executors = [memory_reads, socket_queries, proc_reads]
        self.lines = self._new_lines(proc, sysfs) if "stacks" in collectors else None
        self._tenant_of = tenants(proc, sysfs)
        self._prescribers = Prescribers(proc, sysfs) if "prescription" in collectors else None
        self.subscribers: list[Subscriber] = [self.note]
        """Receivers of ticks, in the thread that reads the GPU."""
        if self._prescribers:
            self.subscribers.append(self._prescribers.note)
        if self.lines:
            self.subscribers.append(self.lines.add_tick)
        self.subscribers += subscribers
        self._holders: dict[str, Holders] = {}
        self._changed = False
        self._feeds: dict[str, FeederGroup] = {}
        self._connections: Connections = {}
        """Connections as last inspected; replaced, never changed, for other threads."""
        self._gpus: dict[str, _GpuState] = {}
        self._step, self._fresh_ns = CADENCE.pass_seconds, 0
        self._mains_only = True
        self._inspecting = Every(CADENCE.counter_seconds)
        self._inspecting_slowly = Every(CADENCE.probe_ns / 1e9)
        """Inspections of connections while all feeders are steady."""
        self._requested_ns = 0
        """Time of the last request for a snapshot."""
        self._published = threading.Condition()
        self._published_ns = 0
        self._checking_children = Every(CADENCE.children_seconds)
        self._reading: tuple[str, int] = "", 0
        """The GPU being read, or empty, and the start time."""
        self._hung: dict[str, threading.Thread] = {}
        """Replaced threads, by the GPU that blocked them."""
        self._waited = 0.0
        """Run-queue delay of the thread, in seconds, when last blocked."""
        self._throttle = LogThrottle(log)
        self._discovering = Every(CADENCE.slow_ns / 1e9)
        self._next_pass, self._discover_from = time.monotonic(), 0.0
        """Earliest next pass and discovery, in monotonic seconds."""
        self._stale = False
        """Whether a process has started or ended since the last discovery."""
        self._loop = Loop("feeders", self._watch, CADENCE.pass_seconds, log=log, last=self._close)

    def start(self) -> None:
        """Start the thread."""
        allow_many_files()
        for executor in self._executors:
            executor.share_by(self._tenant_of)
        self._loop.start()
        if self.lines:
            self.lines.loop.start()

    def stop(self) -> None:
        """Stop after the current pass, or at once if that is stuck."""
        self._loop.stop()
        if self.lines:
            self.lines.loop.stop()
        if self._prescribers:
            self._prescribers.stop()
        for executor in self._executors:
            executor.share_by(int)

    def _new_lines(self, proc: Path, sysfs: Path) -> LineWatch:
        # A third of a megabyte that most exporters never need.
        from gpu_bottleneck_exporter.stacktraces.reader import (  # noqa: PLC0415
            StackReader,
            stack_reads,
        )
        from gpu_bottleneck_exporter.stacktraces.watch import LineWatch  # noqa: PLC0415

        self._executors.append(stack_reads)
        # New ones for each sample, as they cache control groups.
        reader = partial(StackReader, proc, tenant=lambda pid: Groups(proc, sysfs).tenant(pid))
        return LineWatch(self.feeding, reader)

    def silent_seconds(self, now_ns: int) -> float:
        """Seconds since the last pass, or its last GPU; 0 before `start`."""
        return min(self._loop.silent_seconds(now_ns), (now_ns - self._reading[1]) / 1e9)

    def replace_if_hung(self, now_ns: int) -> None:
        """Replace the thread if it hangs in files of one GPU's processes, which is then skipped.

        An execve that closes descriptors on a hung file system holds a lock for which files in
        /proc/PID wait. Called from one thread, once a second.
        """
        uuid, since_ns = self._reading
        if uuid and now_ns - since_ns > CADENCE.hang_timeout_ns and not self._loop.stopping:
            log.warning("processes do not answer and are skipped until they do", {"uuid": uuid})
            self._hung[uuid], self._reading = self._loop.thread, ("", now_ns)
            self._back_off(uuid, CADENCE.hang_timeout_ns / 1e9)
            self._waited = 0.0
            # Repeated, as a discovery may hang.
            self._stale, self._discover_from = True, 0.0
            self._loop.replace()

    def _hangs(self, uuid: str) -> bool:
        return uuid in self._hung and self._hung[uuid].is_alive()

    def hold(self, uuid: str, pids: frozenset[int] | None, parent_uuid: str | None = None) -> None:
        """Set the holders of GPU `uuid`; None if unknown. For any thread.

        `parent_uuid`: the board of a MIG instance.
        """
        holders = Holders(pids, parent_uuid)
        if self._holders.get(uuid) != holders:
            self._holders[uuid] = holders
            self._changed = True

    def forget(self, uuid: str) -> None:
        """Remove GPU `uuid`. For any thread."""
        self._holders.pop(uuid, None)
        self._changed = True

    def explaining(self, uuid: str, start_ns: int, end_ns: int) -> Bucket | None:
        """Samples that explain idle time of GPU `uuid` in an interval. For any thread."""
        feeds = self._feeds
        bucket = feeds[uuid].history.explaining(start_ns, end_ns) if uuid in feeds else None
        if bucket is None:
            return None
        ratio, peer = engaged_peer(uuid, feeds, self._connections, time.monotonic_ns())
        if gpu := self._gpus.get(uuid):
            gpu.peers = tuple(peer.mains) if peer else ()
        for tenant in bucket.tenants.values():  # which of them the peer belongs to is not known
            asks = Activity.PEER in tenant.of(Role.MAIN).by_activity
            tenant.peer = ratio if asks else 0.0
        return replace(bucket, peer=ratio)

    def tenants(self, uuid: str) -> Mapping[int, str]:
        """Tenants of GPU `uuid` by pid, while it is shared. For any thread."""
        gpu = self._gpus.get(uuid)
        return gpu.tenants if gpu else {}

    def note(self, tick: Tick) -> None:
        """Record a tick. For any thread."""
        if tick.windows or tick.reading(Processes):
            self.hold(tick.gpu.uuid, tick.holders, tick.gpu.parent_uuid)
        if tick.windows and (feed := self._feeds.get(tick.gpu.uuid)):
            feed.note(tick)

    def feed(self, uuid: str) -> FeederGroup | None:
        """The feeders of GPU `uuid`."""
        return self._feeds.get(uuid)

    def feeding(self, uuid: str) -> Feeding | None:
        """The published feeders of GPU `uuid`; None if invisible."""
        gpu = self._gpus.get(uuid)
        return gpu.feeding if gpu else None

    def refresh(self) -> None:
        """Update snapshots older than `Cadence.counter_seconds`. For any thread."""
        requested_ns = time.monotonic_ns()
        if self._loop.alive and requested_ns - self._published_ns >= CADENCE.counter_seconds * 1e9:
            with self._published:
                self._requested_ns = requested_ns
                self._loop.wake()
                self._published.wait_for(
                    lambda: self._published_ns > requested_ns, CADENCE.refresh_timeout_seconds
                )

    def _publish(self) -> None:
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
                gpu.feeding = None  # the last reading is too old
                continue
            with self._isolated("reporting the feeders", uuid):
                feeding = gpu.reader.read(feed, now, gpu.peers, queue_known=queue_known)
                if feed.holders.pids is not None or not feeding.tenants:
                    gpu.tenants = {
                        pid: name for name, tenant in feeding.tenants.items() for pid in tenant.pids
                    }
                feed.family.name_tenants(gpu.tenants)
                if self._prescribers:
                    outlook = self._prescribers.advise(
                        uuid, self._feeds, self._connections, feeding, host
                    )
                    if outlook is not feeding.outlook:
                        feeding = replace(feeding, outlook=outlook)
                # Invisible holders are of another PID namespace, or have ended.
                unseen = not feed.mains and feed.holders.pids != frozenset()
                gpu.feeding = None if unseen else feeding
        with self._published:
            self._published_ns = now  # the time of the samples
            self._published.notify_all()

    @contextmanager
    def _isolated(self, step: str, uuid: str = "", *, may_hang: bool = True) -> Iterator[None]:
        """Contain failures of a `step` for the sake of other jobs.

        `uuid`: the GPU of the read processes. `may_hang`: whether a read can.
        """
        self._reading = uuid if may_hang else "", time.monotonic_ns()
        with self._throttle.guarded(step, uuid=uuid or None):
            yield
        self._returned()

    def _returned(self) -> None:
        """Record the return of reads; end the thread if it was replaced."""
        if threading.current_thread() in self._hung.values():
            raise SystemExit
        self._reading = "", time.monotonic_ns()

    def _watch(self) -> float:
        """Make a pass, and a discovery if due. Returns the pause in seconds."""
        # Passes in step with a loop would see one moment of it.
        began, jitter = _cpu_seconds(), random.uniform(0.7, 1.3)  # noqa: S311
        now = min(self._next_pass, time.monotonic())  # earlier if a snapshot is requested
        age_ns = time.monotonic_ns() - self._published_ns
        requested = self._requested_ns > self._published_ns
        publishes = requested or age_ns >= CADENCE.window_ns
        with self._isolated("watching the feeders"):
            self._stale |= self._pass(now, jitter, publishes=publishes)
            if publishes:
                self._publish()
        rest = CADENCE.rest_factor * (_cpu_seconds() - began)
        interval_ns = CADENCE.rare_ns if self._shortest_pause() > self._step else CADENCE.slow_ns
        self._stale |= self._discovering.is_due(time.monotonic(), interval_ns / 1e9)
        if self._changed or (self._stale and time.monotonic() >= self._discover_from):
            self._stale, began = False, _cpu_seconds()
            with self._isolated("looking for feeders"):
                self._discover()
            used = _cpu_seconds() - began
            self._discover_from = time.monotonic() + 2 * CADENCE.rest_factor * used
        self._next_pass = max(now + jitter * self._shortest_pause(), time.monotonic() + rest)
        return max(self._next_pass - time.monotonic(), 0.0)

    def _shortest_pause(self) -> float:
        """The shortest interval of any GPU's feeders, in seconds."""
        return min((gpu.pause for gpu in self._gpus.values()), default=self._step)

    def _close(self) -> None:
        for feed in self._feeds.values():
            feed.close()
        self._cgroups.retain(())
        self.host.close()

    def _pass(self, now: float, jitter: float, *, publishes: bool) -> bool:
        """Sample feeders and read counters that are due. Returns whether trees are stale.

        `jitter`: factor for the next interval. If it `publishes`, counters are due early.
        """
        stale, answering = False, {u: feed for u, feed in self._feeds.items() if not self._hangs(u)}
        feeds = answering.values()
        ready = {
            uuid: feed for uuid, feed in answering.items() if now >= self._gpus[uuid].rests_until
        }
        self._mains_only = not self._mains_only
        pause = self._shortest_pause()
        inspects = self._inspecting.is_due(now) and (
            pause <= self._step or self._inspecting_slowly.is_due(now)
        )
        children = self._checking_children.is_due(now)
        now_ns, cpu = time.monotonic_ns(), _cpu_seconds()
        horizon = now + pause / 2  # feeders due by then would otherwise wait for two pauses
        counting = {
            feed for feed in ready.values() if self._is_count_due(feed, now_ns, publishes=publishes)
        }
        if counting:
            with self._isolated("reading the control groups"):
                self._cgroups.read_counters()
        for uuid, feed in ready.items():
            step, gpu = "watching the feeders", self._gpus[uuid]
            began_ns = time.monotonic_ns()
            gpu.pause = feed.pace.pause(self._step, CADENCE.counter_seconds)
            at_full_rate = gpu.pause <= self._step
            self._reading = uuid, began_ns
            try:
                if at_full_rate or horizon >= gpu.sample_from:
                    gpu.sample_from = now + jitter * gpu.pause
                    mains_only = at_full_rate and self._mains_only
                    stale |= not feed.sample(
                        time.monotonic_ns(),
                        self._connections.get(uuid, UNCONNECTED),
                        fresh_ns=self._fresh_ns,
                        mains_only=mains_only,
                    )
                stale |= children and feed.family.is_outdated()
                stale |= self._discovery.lacks_kin(feed, time.monotonic_ns())
                if feed in counting:
                    stale |= not feed.advance(time.monotonic_ns())
            except Exception as error:  # noqa: BLE001 - other jobs are still sampled
                self._throttle.log_fault(step, error, uuid=uuid)
            else:
                if feed in counting:  # a pass without counters may hide a failure
                    self._throttle.log_fault(step, None, uuid=uuid)
            self._returned()
            seconds = (time.monotonic_ns() - began_ns) / 1e9
            if seconds > _MAX_PASS_BLOCKED_SECONDS:
                before, self._waited = self._waited, waited_seconds()
                self._back_off(uuid, seconds - (_cpu_seconds() - cpu) - (self._waited - before))
        if inspects and self._discovery.connected and any(feed.idles(now_ns) for feed in feeds):
            self._connections = {
                **self._connections,
                **inspect_connections(answering, time.monotonic_ns()),
            }
        self._discovery.find_strangers(answering, time.monotonic_ns())
        return stale

    def _back_off(self, uuid: str, seconds: float) -> None:
        """Pause feeders that blocked the thread for `seconds`: together, a tenth of the time."""
        if seconds > _MAX_PASS_BLOCKED_SECONDS and (gpu := self._gpus.get(uuid)):
            now = time.monotonic()
            groups = 1 + sum(other.rests_until > now for other in list(self._gpus.values()))
            gpu.rests_until = now + CADENCE.rest_factor * groups * seconds

    def _is_count_due(self, feed: FeederGroup, now_ns: int, *, publishes: bool) -> bool:
        """Whether counters are due, at intervals of at least half a second."""
        seconds = (now_ns - (feed.last_count_ns or 0)) / 1e9
        due = not feed.pace.is_steady and seconds >= CADENCE.counter_seconds - self._step / 2
        return due or (publishes and seconds >= CADENCE.counter_seconds / 2)

    def _discover(self) -> None:
        """Discover the trees; publish at once if holders have changed."""
        changed, self._changed = self._changed, False
        holders, before = dict(self._holders), self._feeds
        now = time.monotonic()
        left_out = {  # reading these may block the thread again
            uuid: feed
            for uuid, feed in before.items()
            if uuid in holders and (self._hangs(uuid) or now < self._gpus[uuid].rests_until)
        }
        feeds = self._discovery.discover(holders, before, left_out) | left_out
        for uuid in feeds.keys() - self._gpus.keys():
            self._gpus[uuid] = _GpuState(FeedingReader(self._networks, self._owners))
        for gpu in (self._gpus[uuid] for uuid, feed in feeds.items() if not feed.pace.is_steady):
            gpu.pause, gpu.sample_from = self._step, 0.0
        self._feeds = feeds
        for uuid in before.keys() - holders.keys():
            self._drop(uuid, before[uuid])
        few = len({pid for feed in feeds.values() for pid in feed.mains}) <= SMALL_GROUP
        self._step = CADENCE.pass_seconds if few else CADENCE.sparse_factor * CADENCE.pass_seconds
        # Of many mains, each is probed in every other pass.
        self._fresh_ns = 0 if few else int(CADENCE.sparse_factor * self._step * 1e9)
        uuids = holders.keys() & self._connections.keys()
        self._connections = {uuid: self._connections[uuid] for uuid in uuids}
        self._cgroups.retain(set().union(*(feed.counters.cgroups for feed in feeds.values())))
        if changed:
            self._publish()

    def _drop(self, uuid: str, feed: FeederGroup) -> None:
        feed.close()
        self._throttle.evict(uuid)
        if self._prescribers:
            self._prescribers.forget(uuid)
        if self.lines:
            self.lines.forget(uuid)
        self._gpus.pop(uuid, None)


def _watched(feeds: Collection[FeederGroup]) -> dict[str, int]:
    """Number of feeders by sampling rate."""
    counts = {"whole": 0, "sampled": 0, "counted": 0}
    for feed in feeds:
        counts["whole" if feed.family.is_prompt else "sampled"] += len(feed.workers)
        counts["whole"] += len(feed.mains)
        counts["counted"] += len(feed.family.unfollowed)
    return counts


def _cpu_seconds() -> float:
    """CPU time of the calling thread and of its helper threads."""
    return time.thread_time() + sum(
        executor.cpu_seconds for executor in (memory_reads, socket_queries, proc_reads)
    )
