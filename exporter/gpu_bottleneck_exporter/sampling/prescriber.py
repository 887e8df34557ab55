"""Watches what each GPU and its feeders do in stretches of a few seconds, and what would help."""

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
from gpu_bottleneck_exporter.prescription.advise import HEALTHY
from gpu_bottleneck_exporter.prescription.batchtimes import Pair, SpreadMeter
from gpu_bottleneck_exporter.prescription.keeper import Keeper, Setting
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from gpu_bottleneck_exporter.prescription.observed import Observed, among
from gpu_bottleneck_exporter.sampling.discovery import Connections, ranks_beside
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.schedule import LONG_NS

STRETCH_NS = 3_900_000_000
"""At least: the feeders are counted every 4 s, or more often."""
_MUCH_BYTES_PER_SECOND = 1e6
"""As the rules have it (`gpu:threshold:inline_bytes`)."""
_SATURATED = 0.9
"""Busy share of a disk, or of an interface's speed, beyond which more requests only queue."""
_BYTES_PER_MEGABIT = 125_000
_DIGITS = re.compile(r"\d+")
_BUSY = "busy"
_AT_WORK = (*(one for one in Activity if one.active), Activity.TIMER)


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a stretch."""

    at_ns: int
    time_ns: Mapping[str, int]
    """Of the GPU since the start: `_BUSY`, and what it waited on."""
    mains: frozenset[Started]
    starts: int
    host: HostSnapshot | None
    received: int | None
    """Bytes, since the job was first seen."""


class Prescriber:
    """What would help one GPU; the thread that reads it calls `note`, another `advise`."""

    def __init__(self, proc: Path, sysfs: Path, meter: SpreadMeter | None = None) -> None:
        """`meter`: of all GPUs; None: how much batches vary stays unknown."""
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
        """Who has the GPU, while it idles: more may be prescribed for them."""
        self.last: Observed | None = None
        """The last stretch, as far as it is known."""
        self._rivals = 1
        self._ranks: Sequence[Prescriber] = ()

    def note(self, tick: Tick) -> None:
        """Note what the GPU did."""
        add_up(self._time_ns, {_BUSY: tick.active_ns, **tick.stalls})

    def advise(
        self,
        feed: FeederGroup,
        feeding: Feeding | None,
        host: HostSnapshot | None,
        rivals: int,
        ranks: Sequence[Prescriber],
    ) -> Outlook:
        """What is known now; closes the stretch, if it is long enough, and begins the next one.

        `rivals`: jobs on this machine, this one included, for which more may be prescribed; they
        share what is free. `ranks`: of the other GPUs of the job that other processes have.
        """
        self._rivals, self._ranks = rivals, ranks
        now_ns = feed.last_count_ns
        if now_ns and not (self._mark and now_ns - self._mark.at_ns < STRETCH_NS):
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
        seen = _plain(mark, self._mark, feed)
        if seen is None:
            return
        seen = among(seen, [rank.last for rank in self._ranks])
        wanted = feed.idles(now_ns)
        seen = replace(seen, limit_cores=self._limit(feed, feeding, now_ns, wanted=wanted))
        if wanted and (did := feed.history.seconds(mark.at_ns, now_ns)):
            seen = self._explained(seen, did, mark, self._mark, feed, feeding)
        self.last = seen
        self.idle_mains = mains if seen.busy < HEALTHY else frozenset()
        turned = max((rank.turned for rank in self._ranks), default=-math.inf)
        self._keeper.add(now_ns / 1e9, seen, _setting(feed, seen), self._rivals, turned)

    @property
    def turned(self) -> float:
        """Monotonic seconds at which a knob of its job was last seen to be turned."""
        return self._keeper.last_change_at

    def _explained(  # noqa: PLR0913, PLR0917 - all there is to know
        self,
        plain: Observed,
        did: Bucket,
        mark: Mark,
        now: Mark,
        feed: FeederGroup,
        feeding: Feeding | None,
    ) -> Observed:
        elapsed = max(did.elapsed_ns, 1)
        idlers = feed.counters.handovers.idlers()
        much = _MUCH_BYTES_PER_SECOND * elapsed / 1e9
        held, crew, states = did.held, did.of(Role.WORKER), did.of(Role.MAIN).by_activity
        main, workers = did.of(Role.MAIN).used, crew.used
        samples = max(did.of(Role.MAIN).samples, 1)
        cores = (main.cpu_ns + workers.cpu_ns) / elapsed
        machines = _machines(mark, now)
        denied = any(worker.denied for worker in feed.workers.values())
        return replace(
            plain,
            workers=max(plain.workers - idlers, 0),
            idlers=idlers,
            active=sum(crew.mean(activity) for activity in _AT_WORK),
            running=crew.mean(Activity.RUN) + crew.mean(Activity.PROGRAM),
            reading=crew.mean(Activity.DISK),
            threads=sum(map(did.of(Role.THREAD).mean, did.of(Role.THREAD).by_activity)),
            worker_cores=workers.cpu_ns / elapsed,
            worker_queue=workers.queue_ns / elapsed,
            main_cores=main.cpu_ns / elapsed,
            main_queue=min(
                (main.queue_ns + main.launch_queue_ns) / elapsed / max(plain.mains, 1), 1.0
            ),
            main_disk=sum(states.get(one, 0) for one in Activity if one.on_files) / samples,
            main_network=states.get(Activity.NETWORK, 0) / samples,
            main_writes=(main.written_bytes or 0) > max(main.read_bytes or 0, much),
            main_reads=main.read_chars > much,
            spread=self._spread(feed, now.at_ns) if plain.busy < HEALTHY else None,
            worker_starts=(now.starts - mark.starts) * 1e9 / elapsed,
            throttled=held.throttled_periods / held.periods if held.periods else 0.0,
            free_cores=self._shared(_free_cores(machines, feeding, cores)),
            worker_bytes=self._size(feed, now.at_ns),
            free_bytes=self._shared(free_bytes(feed.counters.cgroups, _available(now.host))),
            data_bytes=_data(did, mark, now, plain),
            handovers=None if denied else workers.write_calls * 1e9 / elapsed,
            pinned=feed.pinned is not None and feed.pinned.are_most,
            saturated=machines is not None and _saturated(machines, self._sysfs),
        )

    def _spread(self, feed: FeederGroup, now_ns: int) -> float | None:
        """Spread of the times between batches, if one main has one worker."""
        if self._meter is None or len(feed.mains) != 1 or len(feed.workers) != 1:
            return None
        main, worker = (
            (one.pid, one.reader.started_ticks)
            for one in (*feed.mains.values(), *feed.workers.values())
        )
        return self._meter.spread(Pair(main, worker), now_ns)

    def _shared(self, free: float | None) -> float | None:
        return None if free is None else free / self._rivals

    def _limit(
        self, feed: FeederGroup, feeding: Feeding | None, now_ns: int, *, wanted: bool
    ) -> float | None:
        """The CPU limit: of a GPU that stays busy as the metrics have it, which costs nothing."""
        if wanted:
            # It may become busy because the limit is raised.
            self._limit_until_ns = now_ns + LONG_NS
        if now_ns < self._limit_until_ns:
            return cpu_cores(feed.counters.cgroups)
        return feeding.job.limits.cpu_cores if feeding else None

    def _size(self, feed: FeederGroup, now_ns: int) -> float | None:
        """Memory of one worker."""
        if not feed.workers:
            self._worker_bytes, self._memory_due_ns = None, 0
        elif now_ns >= self._memory_due_ns:
            self._memory_due_ns = now_ns + LONG_NS
            self._worker_bytes = private_bytes(self._proc, next(iter(feed.workers)))
        return self._worker_bytes


class Prescribers:
    """What would help each GPU."""

    def __init__(self, proc: Path, sysfs: Path) -> None:
        """`proc`, `sysfs`: the host's."""
        self._shared = proc, sysfs, SpreadMeter(proc)
        self._of: dict[str, Prescriber] = {}

    def note(self, tick: Tick) -> None:
        """Note what a GPU did. For any thread."""
        if tick.windows and (found := self._of.get(tick.gpu.uuid)):
            found.note(tick)

    def advise(
        self,
        uuid: str,
        feeds: Mapping[str, FeederGroup],
        connections: Connections,
        feeding: Feeding | None,
        host: HostSnapshot | None,
    ) -> Outlook:
        """What would help GPU `uuid` of those that `feeds` feed."""
        feed = feeds[uuid]
        self._of |= {one: Prescriber(*self._shared) for one in feeds.keys() - self._of.keys()}
        idle = {one.idle_mains for one in self._of.values() if one.idle_mains}
        # GPUs of the same processes have the same knobs.
        beside = ranks_beside(uuid, feeds, connections)
        ranks = [
            self._of[other] for other, theirs in beside if theirs.mains.keys() != feed.mains.keys()
        ]
        rivals = len(idle | {feed.started})
        return self._of[uuid].advise(feed, feeding, host, rivals, ranks)

    def stop(self) -> None:
        """End what runs beside the calls."""
        self._shared[-1].stop()

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`."""
        self._of.pop(uuid, None)


def _plain(mark: Mark, now: Mark, feed: FeederGroup) -> Observed | None:
    """What is known without a look at the feeders."""
    stalls = {name: ns - mark.time_ns.get(name, 0) for name, ns in now.time_ns.items()}
    total_ns = sum(stalls.values())
    if total_ns <= 0:
        return None
    return Observed(
        seconds=total_ns / 1e9,
        busy=stalls.pop(_BUSY) / total_ns,
        stalls={wait: ns / total_ns for wait, ns in stalls.items() if ns},
        mains=len(feed.mains),
        owners=len(feed.facts.owners),
        workers=feed.family.worker_count,
    )


def _data(did: Bucket, before: Mark, now: Mark, plain: Observed) -> float | None:
    """Bytes per second that main and workers read, or received if they wait for the network.

    Received is what comes into the job's network namespace, from whomever.
    """
    if plain.stalls.get(stall.NETWORK, 0.0) > plain.idle / 2:
        if before.received is None or now.received is None:
            return None
        return max(now.received - before.received, 0) * 1e9 / (now.at_ns - before.at_ns)
    main, workers = did.of(Role.MAIN).used.read_bytes, did.of(Role.WORKER).used.read_bytes
    return ((main or 0) + (workers or 0)) * 1e9 / max(did.elapsed_ns, 1)


def _setting(feed: FeederGroup, seen: Observed) -> Setting:
    facts = feed.facts
    # Of several owners, nobody's change is known.
    job = repr((*facts.lasting, _DIGITS.sub("", facts.command))) if len(facts.owners) <= 1 else ""
    workers = round(seen.workers + seen.idlers)
    return Setting(job if feed.mains else "", feed.started, workers, seen.limit_cores)


def _available(host: HostSnapshot | None) -> float | None:
    return host.machine.memory_available_bytes if host and host.machine else None


class Machines(NamedTuple):
    """The machine as it was before and is now, and the seconds between."""

    before: Machine
    now: Machine
    seconds: float

    def rates(self, name: str) -> dict[str, float]:
        """Rates per second, by device, at which the counters in field `name` rise."""
        before, now = getattr(self.before, name), getattr(self.now, name)
        return {
            device: (now[device] - before[device]) / self.seconds
            for device in now
            if device in before
        }


def _machines(before: Mark, now: Mark) -> Machines | None:
    then, host = before.host, now.host
    if not (then and then.machine and host and host.machine and host.at_ns > then.at_ns):
        return None
    return Machines(then.machine, host.machine, (host.at_ns - then.at_ns) / 1e9)


def _free_cores(found: Machines | None, feeding: Feeding | None, used: float) -> float | None:
    """Idle cores of the machine, at most those on which the job may run."""
    if found is None:
        return None
    cpus, then, now = found.now.cpus, found.before.cpu_busy_seconds, found.now.cpu_busy_seconds
    if cpus is None or then is None or now is None:
        return None
    free = max(cpus - (now - then) / found.seconds, 0.0)
    allowed = feeding.job.limits.cpus_allowed if feeding else None
    return free if allowed is None else min(free, max(allowed - used, 0.0))


def _saturated(found: Machines, sysfs: Path) -> bool:
    """Whether a disk or a network interface was busy nearly all the time."""
    received = found.rates("network_receive_bytes")
    return any(share > _SATURATED for share in found.rates("disk_io_seconds").values()) or any(
        rate > _SATURATED * _speed(sysfs, name) for name, rate in received.items() if rate
    )


def _speed(sysfs: Path, interface: str) -> float:
    """Bytes per second of a network interface; infinite if unknown.

    Source: /sys/class/net/NAME/speed, in Mbit/s.
    """
    text = (read(sysfs / "class/net" / interface / "speed") or "").strip()
    return int(text) * _BYTES_PER_MEGABIT if text.isdigit() else float("inf")
