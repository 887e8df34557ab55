"""Opens the driver, runs a worker per GPU and detects hung ones."""

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
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.gpureader import ERROR_EVENT_MESSAGES, Outcome
from gpu_bottleneck_exporter.sampling.hostreader import HostSnapshot
from gpu_bottleneck_exporter.sampling.ledger import GpuSnapshot
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu
from gpu_bottleneck_exporter.sampling.unlisted import UnlistedProcesses, has_unlisted_holder
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.sampling.worker import Down, GpuWorker
from gpu_bottleneck_exporter.schedule import CADENCE, Backoff
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
"""The initial status."""
_FEEDER_COLLECTORS = frozenset({"stall", "prescription", "feeders", "workload", "stacks"})
"""Collectors that need the GPUs' holders watched."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The state that a scrape shows."""

    system: System
    about: About
    collectors: frozenset[str]
    gpus: tuple[GpuSnapshot, ...]
    outcomes: tuple[tuple[str, Outcome], ...]
    driver_calls: int
    driver_seconds: float
    error_events: bool | None
    """Whether all GPUs report their error events; None without driver or collector."""
    host: HostSnapshot | None = None
    """None: not watched, or outdated."""
    kubelet: KubeletState = NOT_QUERIED
    waited_for_cpu_seconds: float | None = None
    """Run-queue delay of the exporter's threads; None: not reported."""
    starved: bool | None = None
    """Whether the exporter lacks CPU; None: not known yet."""
    implausible: Mapping[str, int] = field(default_factory=dict)
    """Implausible values by collector."""


class Sampler:
    """Samples GPUs, feeders and host in background threads. Thread-safe."""

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        collectors: Sequence[Collector],
        settings: Settings,
        on_fatal: Callable[[str], None],
        subscribers: Sequence[Subscriber] = (),
    ) -> None:
        """`on_fatal` is called with the reason why the process must exit, from any thread.

        `subscribers` are called with each tick, from its GPU's thread.
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
        self.remedy = NO_GPU
        self._throttle = LogThrottle(log)
        # Four checks per deadline, so that a late one is harmless.
        self._beat_seconds = min(CADENCE.gauge_ns / 1e9, settings.deadline_seconds / 4)
        self._own_cpu = OwnCpu(self._beat_seconds)
        self._deadline_ns = int(max(settings.deadline_seconds, 1.5 * CADENCE.window_ns / 1e9) * 1e9)
        """Maximum age of feeders and host."""
        self._names = names = frozenset(collector.name for collector in collectors)
        watched = (_FEEDER_COLLECTORS | {"host"}) & names
        self._watch = HostSampler(settings, watched, subscribers) if watched else None
        uses_kubelet = "workload" in names and "kubelet" not in settings.without
        self._kubelet = self._new_kubelet() if uses_kubelet else None
        self._jobs = self._new_jobs() if "workload" in names else None
        self._unlisted = self._new_unlisted() if {"processes", "memory"} <= names else None
        watches = (self._kubelet, self._jobs, self._unlisted)
        self._watches = [watch for watch in watches if watch is not None]
        self._open_backoff, self._event_backoff = Backoff(), Backoff()
        self._access_lost_since: float | None = None
        """Monotonic seconds of the first consecutive denial."""
        self._loop = Loop("sampler", self._supervise, self._beat_seconds, log=log)
        self._event_loop = Loop("xid", self._count_event, log=log)

    def start(self) -> None:
        """Start the threads without waiting for the driver."""
        if self._watch is not None:
            self._watch.start()
        for loop in (*self._watches, self._loop):
            loop.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """Stop the threads, except hung ones; the driver remains open."""
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
        """Whether the sampler's own thread runs."""
        return self._loop.alive

    def standstill(self, timeout_seconds: float = CADENCE.stall_timeout_seconds) -> str | None:
        """A sentence about a stuck thread, if any.

        Hung driver calls do not count: a restart would not help.
        """
        if not self.alive:
            return f"the sampler has stopped: {self.status}"
        if self._watch and self._watch.silent_seconds(time.monotonic_ns()) > timeout_seconds:
            return "the thread that samples the host and its processes is stuck"
        return None

    @property
    def ready(self) -> bool:
        """Whether every GPU was tried (a hung one counts), or no driver was found."""
        if self._driver is None:
            return self.status != OPENING
        now = time.monotonic_ns()
        return all(worker.attempted or worker.down(now) for worker in self._workers)

    def forbidden(self) -> dict[int, dict[str, str]]:
        """Driver errors by GPU index and collector without permission."""
        return {worker.index: worker.reader.forbidden for worker in self._workers}

    def down(self) -> dict[int, Down]:
        """GPUs that are down, by index."""
        now = time.monotonic_ns()
        return {worker.index: down for worker in self._workers if (down := worker.down(now))}

    def refresh(self) -> None:
        """Update outdated snapshots; takes milliseconds."""
        until = time.monotonic() + CADENCE.refresh_timeout_seconds
        for worker in self._workers:  # in sequence: warm caches
            worker.refresh(until)
        if self._watch:
            self._watch.refresh()

    @property
    def lines(self) -> LineWatch | None:
        """The stack sampler; None if disabled."""
        return self._watch.lines if self._watch else None

    def request_holders(self, uuids: Collection[str], *, now: bool) -> None:
        """Have holders of GPUs read at the next tick, which may be `now`."""
        for worker in self._workers:
            worker.request_holders(uuids, now=now)

    def seek_name(self, container_id: str) -> None:
        """Query the name of a container that may exit soon."""
        if self._kubelet:
            self._kubelet.seek(container_id)

    def state(self) -> SamplerState:
        """The current state; never waits for the driver."""
        now = time.monotonic_ns()
        driver, workers = self._driver, self._workers
        return SamplerState(
            system=driver.system if driver else System(None, None),
            about=driver.about if driver else UNKNOWN_DRIVER,
            collectors=self._names,
            gpus=self._with_assignments(
                [self._with_unlisted(gpu) for gpu in self._gpus(workers, now)]
            ),
            outcomes=tuple(pair for worker in workers for pair in worker.outcomes(now)),
            driver_calls=driver.calls if driver else 0,
            driver_seconds=driver.seconds if driver else 0.0,
            error_events=self._error_events and not any(w.reader.event_error for w in workers),
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

    def _with_unlisted(self, gpu: GpuSnapshot) -> GpuSnapshot:
        pids = self._unlisted.pids.get(gpu.identity.uuid) if self._unlisted else None
        if pids is None or not has_unlisted_holder(gpu):
            return gpu
        return replace(gpu, unlisted_pids=pids)

    def _owners(self) -> set[Owner]:
        gpus = self._gpus(self._workers, time.monotonic_ns())
        feedings = [gpu.feeding for gpu in gpus if gpu.feeding]
        tenants = (tenant for feeding in feedings for tenant in feeding.tenants.values())
        owners = {owner for feeding in feedings for owner in feeding.owners}
        return owners.union(*(tenant.owners for tenant in tenants))

    def _gpus(self, workers: Sequence[GpuWorker], now_ns: int) -> list[GpuSnapshot]:
        return [
            self._with_feeding(gpu, now_ns)
            for worker in workers
            for gpu in worker.snapshots(now_ns)
        ]

    def _with_assignments(self, gpus: Sequence[GpuSnapshot]) -> tuple[GpuSnapshot, ...]:
        """`gpus` with the allocations by kubelet and Slurm."""
        if self._jobs is None or self._driver is None:
            return tuple(gpus)
        identities, assigned = [gpu.identity for gpu in gpus], {}
        if self._kubelet:
            assigned = dict(self._kubelet.assigned(identities, self._driver.gpus_of_device))
        for uuid, jobs in self._jobs.jobs(identities).items():
            assigned[uuid] = replace(assigned.get(uuid, UNASSIGNED), jobs=jobs)
        return tuple(
            replace(gpu, assigned=assigned[gpu.identity.uuid])
            if gpu.up and gpu.identity.uuid in assigned
            else gpu
            for gpu in gpus
        )

    def _with_feeding(self, gpu: GpuSnapshot, now_ns: int) -> GpuSnapshot:
        """`gpu` with recent feeders, if its holders are known."""
        if self._watch is None or gpu.reading(Processes) is None:
            return gpu
        feeding = self._watch.feeding(gpu.identity.uuid)
        if feeding is None or now_ns - feeding.at_ns > self._deadline_ns:
            return gpu
        return replace(gpu, feeding=feeding)

    def _host(self, now_ns: int) -> HostSnapshot | None:
        host = self._watch.host.snapshot if self._watch else None
        return host if host and now_ns - host.at_ns <= self._deadline_ns else None

    def _supervise(self) -> float:
        if self._driver is not None:
            self._check_workers()
            return self._beat_seconds
        try:
            return self._open()
        except Exception as error:
            log.exception("the sampler could not start")
            self._fatal(f"the sampler could not start: {type(error).__name__}: {error}")
            return 0.0

    def _open(self) -> float:
        """Open the driver and start workers; returns the pause."""
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
            # Only consecutive denials count.
            since = self._access_lost_since or now
            self._access_lost_since = since if isinstance(error, AccessLost) else None
            timeout = CADENCE.access_lost_timeout_seconds
            if self._access_lost_since and now - since > timeout:
                self._fatal(f"no access to the driver for {timeout:.0f} s: {error}")
            return self._open_backoff.pause()
        self._start_workers(driver)
        return self._beat_seconds

    def _start_workers(self, driver: Driver) -> None:
        count = driver.count()
        watch = self._watch if self._names & _FEEDER_COLLECTORS else None
        workers = tuple(
            GpuWorker(index, driver, self._collectors, self._settings, watch, own_cpu=self._own_cpu)
            for index in range(count)
        )
        # Workers first: `ready` is true of a driver without any.
        self._workers, self._driver = workers, driver
        self.remedy = NO_GPU
        self.status = f"watching {count} GPU{'' if count == 1 else 's'} ({driver.name} driver)"
        version = driver.system.driver_version
        log.info("watching", {"gpus": count, "driver": driver.name, "driver_version": version})
        self._own_cpu.beat(time.monotonic_ns())
        for worker in workers:
            worker.start()
        if "xid" in self._names:
            self._error_events = True  # the first wait takes up to a second
            self._event_loop.start()

    def _check_workers(self) -> None:
        now = time.monotonic_ns()
        self._own_cpu.beat(now)
        if self._watch:
            self._watch.replace_if_hung(now)
        texts = "exporter starved of CPU: readings are late", "exporter no longer starved of CPU"
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
        denied = [worker.access_lost_since for worker in self._workers]
        timeout = CADENCE.access_lost_timeout_seconds
        if denied and all(since and now / 1e9 - since > timeout for since in denied):
            self._fatal(f"the driver has denied access to all GPUs for {timeout:.0f} s")

    def _fatal(self, reason: str) -> None:
        self.status = reason
        self._loop.stop(0.0)
        self._on_fatal(reason)

    def _count_event(self) -> float:
        """Wait for an error event; returns the pause."""
        assert self._driver is not None  # noqa: S101 - started after it was opened
        began, event = time.monotonic(), None
        failure, kind = None, self._driver.about.error_event
        try:
            event = self._driver.wait_error(CADENCE.event_timeout_seconds)
            # Each code has a series; XIDs are below 200.
            if event is not None and event.code in range(1024):
                self._workers[event.index].reader.add_error(event.code)
                self._log_event(event, kind)
        except DriverError as error:
            failure = str(error)
        except Exception as error:  # a bad event must not end the thread
            log.debug("waiting for error events failed", exc_info=True)
            failure = f"{type(error).__name__}: {error}"
        self._error_events = failure is None
        self._throttle.log_change(
            logging.WARNING, "error events", failure, ERROR_EVENT_MESSAGES, event=kind, err=failure
        )
        if failure:
            return self._event_backoff.pause()
        self._event_backoff = Backoff()
        if event is not None:
            return 0.0
        # Some drivers return early; events queue up meanwhile.
        return max(began + CADENCE.event_timeout_seconds - time.monotonic(), 0.0)

    def _log_event(self, event: ErrorEvent, kind: str) -> None:
        """Log once a minute per kind: a job can cause thousands."""
        minute = int(time.monotonic() / THROTTLE_SECONDS)
        if self._throttle.is_new(str(event), minute):
            log.warning("error event", {"gpu": event.index, "event": kind, "code": event.code})
