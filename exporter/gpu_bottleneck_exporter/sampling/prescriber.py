"""Aggregates GPUs and their feeders over intervals for recommendations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.bucket import SECONDS_RETENTION_NS, Bucket, Role, add_up
from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import cpu_cores
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.feeders.usage import free_bytes, private_bytes
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.prescription.batchtimes import Pair, SpreadMeter
from gpu_bottleneck_exporter.prescription.keeper import Keeper, Setting
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from gpu_bottleneck_exporter.prescription.observed import Observed, among
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE
from gpu_bottleneck_exporter.sampling.discovery import Connections, ranks_beside
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.schedule import CADENCE


@dataclass(frozen=True, slots=True)
class Mark:
    """The counters at the start of an interval."""

    at_ns: int
    time_ns: Mapping[str, int]
    """GPU time by `busy` and `waiting_on`."""
    mains: frozenset[Started]
    starts: int
    host: HostSnapshot | None
    received: int | None
    """Bytes since the job's first sample."""


class Prescriber:
    """Recommends a setting for one GPU. Only `note` may be called from the GPU's thread."""

    def __init__(self, proc: Path, sysfs: Path, meter: SpreadMeter | None = None) -> None:
        """`meter` is shared by all GPUs."""
        self._proc = proc
        self._sysfs = sysfs
        self._meter = meter
        self._mark: Mark | None = None
        self._time_ns: dict[str, int] = {}
        self._keeper = Keeper()
        self._worker_bytes: float | None = None
        self._memory_due_ns = 0
        self._limit_until_ns = 0
        self.idle_mains: frozenset[Started] = frozenset()
        """Mains of an idle GPU, which may get free resources."""
        self.last: Observed | None = None
        """The last interval, if known."""
        self._rivals = 1
        self._ranks: Sequence[Prescriber] = ()

    def note(self, tick: Tick) -> None:
        """Add the tick's busy and idle time."""
        add_up(self._time_ns, {"busy": tick.active_ns, **tick.stalls})

    def advise(
        self,
        feed: FeederGroup,
        feeding: Feeding | None,
        host: HostSnapshot | None,
        rivals: int,
        ranks: Sequence[Prescriber],
    ) -> Outlook:
        """The current recommendation; starts a new interval if this one is long enough.

        `rivals`: jobs that share free resources. `ranks`: the job's GPUs of other mains.
        """
        self._rivals, self._ranks = rivals, ranks
        now_ns = feed.last_count_ns
        if now_ns and not (self._mark and now_ns - self._mark.at_ns < CADENCE.prescription_ns):
            self._close(feed, feeding, host, now_ns)
        outlook = self._keeper.outlook
        return outlook if outlook.mains == feed.started else NOTHING_KNOWN

    def _close(
        self, feed: FeederGroup, feeding: Feeding | None, host: HostSnapshot | None, now_ns: int
    ) -> None:
        mark, mains = self._mark, feed.started
        received = feeding.job.received_bytes if feeding else None
        starts = feed.worker_starts
        self._mark = Mark(now_ns, dict(self._time_ns), mains, starts, host, received)
        if mark is None or mark.mains != mains or now_ns - mark.at_ns > SECONDS_RETENTION_NS:
            self._keeper.skip()
            self.last, self._memory_due_ns = None, 0
            return
        observed = _without_feeders(mark, self._mark, feed)
        if observed is None:
            return
        observed = among(observed, [rank.last for rank in self._ranks])
        idle = feed.idles(now_ns)
        observed = replace(
            observed, limit_cores=self._limit_cores(feed, feeding, now_ns, idle=idle)
        )
        if idle and (bucket := feed.history.seconds(mark.at_ns, now_ns)):
            observed = self._with_feeders(observed, bucket, mark, self._mark, feed, feeding)
        self.last = observed
        self.idle_mains = mains if observed.busy < ADVICE.healthy else frozenset()
        changed_at = max((rank.last_change_at for rank in self._ranks), default=-math.inf)
        setting = _setting(feed, observed)
        self._keeper.add(now_ns / 1e9, observed, setting, self._rivals, changed_at)

    @property
    def last_change_at(self) -> float:
        """Monotonic seconds of the job's last change of a setting."""
        return self._keeper.last_change_at

    def _with_feeders(  # noqa: PLR0913, PLR0917 - all inputs of a model
        self,
        plain: Observed,
        bucket: Bucket,
        mark: Mark,
        now: Mark,
        feed: FeederGroup,
        feeding: Feeding | None,
    ) -> Observed:
        elapsed = max(bucket.elapsed_ns, 1)
        idlers = feed.counters.handovers.idlers()
        min_bytes = 1e6 * elapsed / 1e9  # 1 MB/s, as gpu:threshold:inline_bytes
        held, crew, threads = bucket.held, bucket.of(Role.WORKER), bucket.of(Role.THREAD)
        main, workers = bucket.of(Role.MAIN).used, crew.used
        states, samples = bucket.of(Role.MAIN).by_activity, max(bucket.of(Role.MAIN).samples, 1)
        cores = (main.cpu_ns + workers.cpu_ns) / elapsed
        machines = _machines(mark, now)
        denied = any(worker.denied for worker in feed.workers.values())
        return replace(
            plain,
            workers=max(plain.workers - idlers, 0),
            idlers=idlers,
            active=sum(crew.mean(a) for a in Activity if a.active or a is Activity.TIMER),
            running=crew.mean(Activity.RUN) + crew.mean(Activity.PROGRAM),
            reading=crew.mean(Activity.DISK),
            threads=sum(map(threads.mean, threads.by_activity)),
            worker_cores=workers.cpu_ns / elapsed,
            worker_queue=workers.queue_ns / elapsed,
            main_cores=main.cpu_ns / elapsed,
            main_queue=min(
                (main.queue_ns + main.launch_queue_ns) / elapsed / max(plain.mains, 1), 1.0
            ),
            main_disk=sum(states.get(a, 0) for a in Activity if a.on_files) / samples,
            main_network=states.get(Activity.NETWORK, 0) / samples,
            main_writes=(main.written_bytes or 0) > max(main.read_bytes or 0, min_bytes),
            main_reads=main.read_chars > min_bytes,
            spread=self._spread(feed, now.at_ns) if plain.busy < ADVICE.healthy else None,
            worker_starts=(now.starts - mark.starts) * 1e9 / elapsed,
            throttled=held.throttled_periods / held.periods if held.periods else 0.0,
            free_cores=self._shared(_free_cores(machines, feeding, cores)),
            worker_bytes=self._worker_memory(feed, now.at_ns),
            free_bytes=self._shared(free_bytes(feed.counters.cgroups, _available(now.host))),
            data_bytes=_data_rate(bucket, mark, now, plain),
            handovers=None if denied else workers.write_calls * 1e9 / elapsed,
            pinned=feed.pinned is not None and feed.pinned.are_most,
            saturated=machines is not None and _saturated(machines, self._sysfs),
        )

    def _spread(self, feed: FeederGroup, now_ns: int) -> float | None:
        if self._meter is None or len(feed.mains) != 1 or len(feed.workers) != 1:
            return None
        main, worker = (
            (process.pid, process.reader.started_ticks)
            for process in (*feed.mains.values(), *feed.workers.values())
        )
        return self._meter.spread(Pair(main, worker), now_ns)

    def _shared(self, free: float | None) -> float | None:
        return None if free is None else free / self._rivals

    def _limit_cores(
        self, feed: FeederGroup, feeding: Feeding | None, now_ns: int, *, idle: bool
    ) -> float | None:
        """The CPU limit; for a busy GPU from the snapshot."""
        if idle:
            # Raising the limit may make it busy.
            self._limit_until_ns = now_ns + CADENCE.cache_ttl_ns
        if now_ns < self._limit_until_ns:
            return cpu_cores(feed.counters.cgroups)
        return feeding.job.limits.cpu_cores if feeding else None

    def _worker_memory(self, feed: FeederGroup, now_ns: int) -> float | None:
        """Private bytes of one worker."""
        if not feed.workers:
            self._worker_bytes, self._memory_due_ns = None, 0
        elif now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + CADENCE.cache_ttl_ns
            self._worker_bytes = private_bytes(self._proc, next(iter(feed.workers)))
        return self._worker_bytes


class Prescribers:
    """The prescribers of all GPUs."""

    def __init__(self, proc: Path, sysfs: Path) -> None:
        self._shared = proc, sysfs, SpreadMeter(proc)
        self._by_uuid: dict[str, Prescriber] = {}

    def note(self, tick: Tick) -> None:
        """Add the tick to its GPU. Thread-safe."""
        if tick.windows and (prescriber := self._by_uuid.get(tick.gpu.uuid)):
            prescriber.note(tick)

    def advise(
        self,
        uuid: str,
        feeds: Mapping[str, FeederGroup],
        connections: Connections,
        feeding: Feeding | None,
        host: HostSnapshot | None,
    ) -> Outlook:
        """The recommendation for GPU `uuid`; `feeds` covers all GPUs."""
        feed, prescribers = feeds[uuid], self._by_uuid
        for new in feeds.keys() - prescribers.keys():
            prescribers[new] = Prescriber(*self._shared)
        idle = {prescriber.idle_mains for prescriber in prescribers.values()} - {frozenset()}
        # GPUs of the same processes have the same settings.
        ranks = [
            prescribers[other]
            for other, group in ranks_beside(uuid, feeds, connections)
            if group.mains.keys() != feed.mains.keys()
        ]
        rivals = len(idle | {feed.started})
        return prescribers[uuid].advise(feed, feeding, host, rivals, ranks)

    def stop(self) -> None:
        """Stop the meter's thread."""
        self._shared[-1].stop()

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`."""
        self._by_uuid.pop(uuid, None)


def _without_feeders(mark: Mark, now: Mark, feed: FeederGroup) -> Observed | None:
    """The interval without samples of feeders."""
    stalls = {name: ns - mark.time_ns.get(name, 0) for name, ns in now.time_ns.items()}
    total_ns = sum(stalls.values())
    if total_ns <= 0:
        return None
    return Observed(
        seconds=total_ns / 1e9,
        busy=stalls.pop("busy") / total_ns,
        stalls={wait: ns / total_ns for wait, ns in stalls.items() if ns},
        mains=len(feed.mains),
        owners=len(feed.facts.owners),
        workers=feed.family.worker_count,
    )


def _data_rate(bucket: Bucket, before: Mark, now: Mark, plain: Observed) -> float | None:
    """Bytes per second read, or received if the GPU waits for that."""
    if plain.stalls.get(stall.NETWORK, 0.0) > plain.idle / 2:
        if before.received is None or now.received is None:
            return None
        return max(now.received - before.received, 0) * 1e9 / (now.at_ns - before.at_ns)
    main, workers = bucket.of(Role.MAIN).used.read_bytes, bucket.of(Role.WORKER).used.read_bytes
    return ((main or 0) + (workers or 0)) * 1e9 / max(bucket.elapsed_ns, 1)


def _setting(feed: FeederGroup, observed: Observed) -> Setting:
    facts, job = feed.facts, ""
    # With several owners, a change cannot be attributed.
    if feed.mains and len(facts.owners) <= 1:
        job = repr((*facts.lasting, re.sub(r"\d+", "", facts.command)))
    workers = round(observed.workers + observed.idlers)
    return Setting(job, feed.started, workers, observed.limit_cores)


def _available(host: HostSnapshot | None) -> float | None:
    return host.machine.memory_available_bytes if host and host.machine else None


class Machines(NamedTuple):
    """Two readings of the machine, `seconds` apart."""

    before: Machine
    now: Machine
    seconds: float

    def rates(self, name: str) -> dict[str, float]:
        """Rates per second of counter field `name` by device."""
        before, now = getattr(self.before, name), getattr(self.now, name)
        return {
            device: (now[device] - before[device]) / self.seconds
            for device in now
            if device in before
        }


def _machines(before: Mark, now: Mark) -> Machines | None:
    first, last = before.host, now.host
    if not (first and first.machine and last and last.machine and last.at_ns > first.at_ns):
        return None
    return Machines(first.machine, last.machine, (last.at_ns - first.at_ns) / 1e9)


def _free_cores(machines: Machines | None, feeding: Feeding | None, used: float) -> float | None:
    """Idle cores on which the job may run."""
    if machines is None:
        return None
    cpus, now = machines.now.cpus, machines.now.cpu_busy_seconds
    before = machines.before.cpu_busy_seconds
    if cpus is None or before is None or now is None:
        return None
    free = max(cpus - (now - before) / machines.seconds, 0.0)
    allowed = feeding.job.limits.cpus_allowed if feeding else None
    return free if allowed is None else min(free, max(allowed - used, 0.0))


def _saturated(machines: Machines, sysfs: Path) -> bool:
    disks, received = machines.rates("disk_io_seconds"), machines.rates("network_receive_bytes")
    most = ADVICE.saturated_share
    return any(share > most for share in disks.values()) or any(
        rate > most * _speed(sysfs, name) for name, rate in received.items() if rate
    )


def _speed(sysfs: Path, interface: str) -> float:
    """Bytes per second of a network interface; infinite if unknown.

    Source: /sys/class/net/NAME/speed, in Mbit/s.
    """
    text = (read(sysfs / "class/net" / interface / "speed") or "").strip()
    return int(text) * 1e6 / 8 if text.isdigit() else float("inf")
