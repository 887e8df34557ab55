"""The sampler: opens the driver, runs one worker per GPU, and notices what is down."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.accounting.tick import Subscriber
from gpu_bottleneck_exporter.driver.about import NO_GPU, UNKNOWN_DRIVER, About
from gpu_bottleneck_exporter.driver.protocol import AccessLost, Driver, DriverError, DriverUnusable
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, Identity, Processes, System
from gpu_bottleneck_exporter.logthrottle import THROTTLE_SECONDS, LogThrottle
from gpu_bottleneck_exporter.loop import Loop
from gpu_bottleneck_exporter.pod import in_a_pod
from gpu_bottleneck_exporter.sampling.collector import UNHURRIEDLY, Collector
from gpu_bottleneck_exporter.sampling.gpureader import ERROR_EVENTS, Outcome
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu
from gpu_bottleneck_exporter.sampling.unlisted import UnlistedProcesses, is_kept
from gpu_bottleneck_exporter.sampling.watching import REFRESH_SECONDS, SNAPSHOT_SECONDS, HostSampler
from gpu_bottleneck_exporter.sampling.worker import Down, GpuWorker
from gpu_bottleneck_exporter.schedule import LONG_NS, SELDOM_NS, Backoff
from gpu_bottleneck_exporter.settings import JOB_MAPPING_DIR, KUBELET_SOCKET, Settings
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.jobfiles import JobFiles
from gpu_bottleneck_exporter.workload.join import UNASSIGNED
from gpu_bottleneck_exporter.workload.kubelet import (
    NOT_QUERIED,
    KubeletState,
    KubeletTiming,
    KubeletWatch,
)
from gpu_bottleneck_exporter.workload.users import UserNames

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.stacktraces.watch import LineWatch

log = logging.getLogger(__name__)

OPENING = "opening the driver"
"""The status until the driver answers for the first time."""
ACCESS_LOST_SECONDS = SELDOM_NS / 1e9
"""If the driver refuses everything for so long, the process ends: only a new one can help."""
PATIENCE_SECONDS = LONG_NS / 1e9
"""A thread without progress for so long is stuck: a pass over all feeders takes milliseconds."""
_EVENT_WAIT_SECONDS = 1.0
"""Within one call of the driver: so long it takes to stop."""
_MAX_CODE = 1023
"""Largest code of an error event that counts: each has a series. XIDs are below 200."""
_BEATS = 4
"""Looks at the workers per deadline, at least: one must not seem to hang when we are late."""
_WATCH_DEADLINE_SECONDS = 1.5 * SNAPSHOT_SECONDS
"""At least this for feeders and host, however short the GPUs' deadline."""
_FEEDING = frozenset({"stall", "prescription", "feeders", "workload", "stacks"})
"""Collectors that need the holders of GPUs watched."""
_WATCHING = _FEEDING | {"host"}


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The state that a scrape shows."""

    system: System
    about: About
    collectors: frozenset[str]
    """Names of the enabled ones: what a disabled collector would read is not missing."""
    gpus: tuple[GpuSnapshot, ...]
    outcomes: tuple[tuple[str, Outcome], ...]
    driver_calls: int
    driver_seconds: float
    error_events: bool | None
    """Whether every GPU that is up and has them reports them.

    None without a driver, or if the collector is disabled.
    """
    host: HostSnapshot | None = None
    """None if it is not watched, or was not read within the deadline."""
    kubelet: KubeletState = NOT_QUERIED
    waited_for_cpu_seconds: float | None = None
    """Run queue delay of the exporter's own threads; None if the kernel does not report it."""
    starved: bool | None = None
    """Whether the exporter gets so little CPU that it reads too late; None: not known yet."""
    implausible: Mapping[str, int] = field(default_factory=dict)
    """Impossible values that were dropped, by collector."""


NO_SYSTEM = System(None, None)


class Sampler:
    """Runs in the background after `start`; `state` returns what is known."""

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        collectors: Sequence[Collector],
        settings: Settings,
        on_fatal: Callable[[str], None],
        subscribers: Sequence[Subscriber] = (),
    ) -> None:
        """`on_fatal` is called from a thread, with the reason why the process must end.

        `subscribers` learn of each tick of each GPU, in the thread that reads it.
        """
        self._open_driver = open_driver
        self._collectors = collectors
        self._settings = settings
        self.procfs = settings.procfs
        self.node = settings.node
        self._on_fatal = on_fatal
        self._driver: Driver | None = None
        self._workers: tuple[GpuWorker, ...] = ()
        self._error_events: bool | None = None
        self.status = OPENING
        """One plain sentence for people."""
        self.remedy = NO_GPU
        """What to do about `status` if there is no GPU."""
        self._throttle = LogThrottle(log)
        self._beat_seconds = min(UNHURRIEDLY, settings.deadline_seconds / _BEATS)
        self._own_cpu = OwnCpu(self._beat_seconds)
        self._deadline_ns = int(max(settings.deadline_seconds, _WATCH_DEADLINE_SECONDS) * 1e9)
        self._names = frozenset(collector.name for collector in collectors)
        self._wanted = _WATCHING & self._names
        self._watch = HostSampler(settings, self._wanted, subscribers) if self._wanted else None
        asked = "workload" in self._wanted and "kubelet" not in settings.without
        self._kubelet = self._new_kubelet() if asked else None
        self._jobs = self._new_jobs() if "workload" in self._wanted else None
        self._unlisted = self._new_unlisted() if {"processes", "memory"} <= self._names else None
        watches = (self._kubelet, self._jobs, self._unlisted)
        self._watches = [watch for watch in watches if watch is not None]
        self._opening, self._counting = Backoff(), Backoff()
        """Pauses between attempts to open the driver, and to count its events."""
        self._refused_since: float | None = None
        """Since when it has refused to be opened."""
        self._loop = Loop("sampler", self._look_after, self._beat_seconds, log=log)
        self._event_loop = Loop("xid", self._count_event, log=log)

    def start(self) -> None:
        """Start the threads; returns at once, even without a driver."""
        if self._watch is not None:
            self._watch.start()
        for loop in (*self._watches, self._loop):
            loop.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Stop all threads that do not hang in the driver; the driver stays open."""
        loops = (*self._workers, self._loop, self._event_loop, *self._watches)
        for loop in loops:
            loop.stop(0.0)
        if self._watch is not None:
            self._watch.stop()
        deadline = time.monotonic() + timeout_seconds
        for loop in loops:
            loop.stop(max(deadline - time.monotonic(), 0.0))

    @property
    def alive(self) -> bool:
        """Whether the sampler's own thread runs; says nothing about the driver."""
        return self._loop.alive

    def standstill(self, patience_seconds: float = PATIENCE_SECONDS) -> str | None:
        """What has stopped, in one sentence; None if nothing has.

        A hung driver does not count: only its GPU is down, and a new process would hang as well.
        """
        if not self.alive:
            return f"the sampler has stopped: {self.status}"
        if self._watch and self._watch.silent_seconds(time.monotonic_ns()) > patience_seconds:
            return "watching the host and its processes is stuck"
        return None

    @property
    def ready(self) -> bool:
        """Whether there is something to show: every GPU was tried, or no driver was found.

        A GPU that hangs from the start counts as tried, so that the others need not wait for it.
        """
        if self._driver is None:
            return self.status != OPENING
        now = time.monotonic_ns()
        return all(worker.attempted or worker.down(now) for worker in self._workers)

    def forbidden(self) -> dict[int, dict[str, str]]:
        """Collectors by GPU that lack a permission, and the driver's error."""
        return {worker.index: worker.reader.forbidden for worker in self._workers}

    def down(self) -> dict[int, Down]:
        """Why GPUs are down, by index, and what to do about it."""
        now = time.monotonic_ns()
        return {worker.index: down for worker in self._workers if (down := worker.down(now))}

    def refresh(self) -> None:
        """Bring what is known of GPUs, feeders and host up to date; takes milliseconds."""
        until = time.monotonic() + REFRESH_SECONDS
        for worker in self._workers:  # one after the other: they find warm caches
            worker.refresh(until)
        if self._watch:
            self._watch.refresh()

    @property
    def lines(self) -> LineWatch | None:
        """What looks at stacks; None if that is switched off."""
        return self._watch.lines if self._watch else None

    def look(self, uuids: Collection[str], *, now: bool) -> None:
        """Have the holders of these GPUs read at the next tick, which may be `now`."""
        for worker in self._workers:
            worker.look(uuids, now=now)

    def seek_name(self, container_id: str) -> None:
        """Have the kubelet's name of a container looked up, though it may end soon."""
        if self._kubelet:
            self._kubelet.seek(container_id)

    def state(self) -> SamplerState:
        """The present state; cheap, and never waits for the driver."""
        now = time.monotonic_ns()
        driver, workers = self._driver, self._workers
        return SamplerState(
            system=driver.system if driver else NO_SYSTEM,
            about=driver.about if driver else UNKNOWN_DRIVER,
            collectors=self._names,
            gpus=self._assigned([self._kept(gpu) for gpu in self._gpus(workers, now)]),
            outcomes=tuple(found for worker in workers for found in worker.outcomes(now)),
            driver_calls=driver.calls if driver else 0,
            driver_seconds=driver.seconds if driver else 0.0,
            error_events=self._error_events and not any(w.reader.event_trouble for w in workers),
            implausible=self._implausible(),
            waited_for_cpu_seconds=self._own_cpu.waited_seconds,
            starved=self._own_cpu.starved,
            host=self._host(now),
            kubelet=self._kubelet.condition if self._kubelet else NOT_QUERIED,
        )

    def _implausible(self) -> Mapping[str, int]:
        counts = Counter({c.name: 0 for c in self._collectors if c.read} if self._driver else {})
        for worker in self._workers:
            counts.update(dict(worker.reader.implausible))  # a copy: its thread adds to it
        return counts

    def _new_kubelet(self) -> KubeletWatch:
        settings = self._settings
        expected = in_a_pod() or settings.kubelet_socket != KUBELET_SOCKET
        return KubeletWatch(settings, self._owners, KubeletTiming(), expected=expected)

    def _new_jobs(self) -> JobFiles:
        folder = self._settings.job_mapping_dir
        users = UserNames(self._settings.procfs)
        return JobFiles(folder, users.of, expected=folder != JOB_MAPPING_DIR)

    def _new_unlisted(self) -> UnlistedProcesses:
        def gpus() -> list[GpuSnapshot]:
            return self._gpus(self._workers, time.monotonic_ns())

        def nodes(gpu: Identity) -> Collection[str]:
            return self._driver.about.device_nodes(gpu) if self._driver else ()

        return UnlistedProcesses(self._settings.procfs, gpus, nodes)

    def _kept(self, gpu: GpuSnapshot) -> GpuSnapshot:
        """`gpu` with the processes that keep its memory though they are not listed."""
        pids = self._unlisted.pids.get(gpu.identity.uuid) if self._unlisted else None
        return gpu if pids is None or not is_kept(gpu) else replace(gpu, unlisted_pids=pids)

    def _owners(self) -> set[Owner]:
        gpus = self._gpus(self._workers, time.monotonic_ns())
        return {owner for gpu in gpus if gpu.feeding for owner in gpu.feeding.owners}

    def _gpus(self, workers: Sequence[GpuWorker], now_ns: int) -> list[GpuSnapshot]:
        return [self._fed(gpu, now_ns) for worker in workers for gpu in worker.snapshots(now_ns)]

    def _assigned(self, gpus: Sequence[GpuSnapshot]) -> tuple[GpuSnapshot, ...]:
        """`gpus` with the allocations of kubelet and Slurm for those that are up."""
        if self._jobs is None or self._driver is None:
            return tuple(gpus)
        known = [gpu.identity for gpu in gpus]
        given = self._kubelet.assigned(known, self._driver.gpus_of_device) if self._kubelet else {}
        found = dict(given)
        for uuid, jobs in self._jobs.jobs(known).items():
            found[uuid] = replace(found.get(uuid, UNASSIGNED), jobs=jobs)
        return tuple(
            replace(gpu, assigned=found[gpu.identity.uuid])
            if gpu.up and gpu.identity.uuid in found
            else gpu
            for gpu in gpus
        )

    def _fed(self, gpu: GpuSnapshot, now_ns: int) -> GpuSnapshot:
        """`gpu` with its feeders, if its holders are known and were read within the deadline."""
        if self._watch is None or gpu.reading(Processes) is None:
            return gpu
        feeding = self._watch.feeding(gpu.identity.uuid)
        if feeding is None or now_ns - feeding.at_ns > self._deadline_ns:
            return gpu
        return replace(gpu, feeding=feeding)

    def _host(self, now_ns: int) -> HostSnapshot | None:
        found = self._watch.host.snapshot if self._watch else None
        return found if found and now_ns - found.at_ns <= self._deadline_ns else None

    def _look_after(self) -> float:
        """Open the driver; once it is open, notice which GPUs hang."""
        if self._driver is not None:
            self._look_after_workers()
            return self._beat_seconds
        try:
            return self._open()
        except Exception as error:
            log.exception("the sampler could not start")
            self._fatal(f"the sampler could not start: {type(error).__name__}: {error}")
            return 0.0

    def _open(self) -> float:
        """Open the driver and start the workers; returns the pause until the next step."""
        try:
            driver = self._open_driver()
        except DriverUnusable as error:
            self.remedy = error.remedy or NO_GPU
            self._fatal(f"this process cannot use the driver: {error}")
            return 0.0
        except DriverError as error:
            if self.status != str(error):
                log.warning("no GPU metrics; trying again", {"err": error})
            self.status, self.remedy = str(error), error.remedy or NO_GPU
            now = time.monotonic()
            # Only refusals in a row count: any other error starts over.
            since = self._refused_since or now
            self._refused_since = since if isinstance(error, AccessLost) else None
            if self._refused_since and now - since > ACCESS_LOST_SECONDS:
                self._fatal(f"no access to the driver for {ACCESS_LOST_SECONDS:.0f} s: {error}")
            return self._opening.pause()
        self._start_workers(driver)
        return self._beat_seconds

    def _start_workers(self, driver: Driver) -> None:
        count = driver.count()
        # The host sampler may run for the host alone: workers then need no feeders.
        watch = self._watch if self._wanted & _FEEDING else None
        workers = tuple(
            GpuWorker(index, driver, self._collectors, self._settings, watch, own_cpu=self._own_cpu)
            for index in range(count)
        )
        # The workers first: `ready` takes a driver without workers for one whose GPUs were tried.
        self._workers, self._driver = workers, driver
        self.remedy = NO_GPU
        self.status = f"watching {count} GPU{'' if count == 1 else 's'} ({driver.name} driver)"
        version = driver.system.driver_version
        log.info("watching", {"gpus": count, "driver": driver.name, "driver_version": version})
        self._own_cpu.beat(time.monotonic_ns())
        for worker in workers:
            worker.start()
        if "xid" in self._names:
            self._error_events = True  # at once, as the first wait takes up to a second
            self._event_loop.start()

    def _look_after_workers(self) -> None:
        now = time.monotonic_ns()
        self._own_cpu.beat(now)
        if self._watch:
            self._watch.replace_if_hung(now)
        texts = "starved of CPU: readings come late", "CPU is enough again"
        self._throttle.log_change(
            logging.WARNING, "own CPU", bool(self._own_cpu.starved) or None, texts
        )
        for worker in self._workers:
            seconds = worker.hung_seconds(now)
            self._throttle.log_change(
                logging.ERROR,
                f"hang of {worker.index}",
                bool(seconds) or None,
                ("GPU is down: a driver call has not returned", "the driver call has returned"),
                gpu=worker.index,
                seconds=round(seconds) if seconds else None,
            )
        unusable = [worker.unusable for worker in self._workers if worker.unusable]
        if unusable:
            self._fatal(f"this process can no longer use the driver: {unusable[0]}")
        refused = [worker.access_lost_since for worker in self._workers]
        if refused and all(s and now / 1e9 - s > ACCESS_LOST_SECONDS for s in refused):
            self._fatal(f"the driver has refused all GPUs for {ACCESS_LOST_SECONDS:.0f} s")

    def _fatal(self, reason: str) -> None:
        self.status = reason
        self._loop.stop(0.0)
        self._on_fatal(reason)

    def _count_event(self) -> float:
        """Wait for an error event; returns the pause after it."""
        assert self._driver is not None  # noqa: S101 - started after it was opened
        began, event = time.monotonic(), None
        trouble, kind = None, self._driver.about.error_event
        try:
            event = self._driver.wait_error(_EVENT_WAIT_SECONDS)
            if event is not None and 0 <= event.code <= _MAX_CODE:
                self._workers[event.index].reader.add_error(event.code)
                self._log_event(event, kind)
        except DriverError as error:
            trouble = str(error)
        except Exception as error:  # one bad event must not end the only thread that counts them
            log.debug("waiting for error events failed", exc_info=True)
            trouble = f"{type(error).__name__}: {error}"
        self._error_events = trouble is None
        self._throttle.log_change(
            logging.WARNING, "error events", trouble, ERROR_EVENTS, event=kind, err=trouble
        )
        if trouble:
            return self._counting.pause()
        self._counting = Backoff()
        if event is not None:
            return 0.0
        # Some drivers return before the time is over; the set queues the next event meanwhile.
        return max(began + _EVENT_WAIT_SECONDS - time.monotonic(), 0.0)

    def _log_event(self, event: ErrorEvent, kind: str) -> None:
        """Log `event`, once a minute for each kind: a job can cause thousands."""
        minute = int(time.monotonic() / THROTTLE_SECONDS)
        if self._throttle.is_new(str(event), minute):
            log.warning("error event", {"gpu": event.index, "event": kind, "code": event.code})
