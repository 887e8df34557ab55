"""The sampler: opens the driver, keeps one worker per GPU, notices what is down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpu_bottleneck_exporter.collectors.base import Collector
from gpu_bottleneck_exporter.driver.protocol import (
    AccessLost,
    Driver,
    DriverError,
    DriverUnusable,
)
from gpu_bottleneck_exporter.driver.readings import Processes, System, Xid
from gpu_bottleneck_exporter.feeders.watch import FeederWatch
from gpu_bottleneck_exporter.host.watch import HostSnapshot
from gpu_bottleneck_exporter.ledger import GpuSnapshot
from gpu_bottleneck_exporter.news import News
from gpu_bottleneck_exporter.pod import in_a_pod
from gpu_bottleneck_exporter.settings import KUBELET_SOCKET, Settings
from gpu_bottleneck_exporter.starvation import OwnCpu
from gpu_bottleneck_exporter.worker import (
    FIRST_RETRY_SECONDS,
    LONGEST_RETRY_SECONDS,
    GpuWorker,
    Outcome,
)
from gpu_bottleneck_exporter.workload.kubelet import (
    UNASKED,
    Condition,
    KubeletWatch,
    Pace,
    Places,
    Seen,
)

log = logging.getLogger(__name__)

ACCESS_LOST_SECONDS = 30.0
"""The driver refusing everything for so long ends the process: only a new one can help."""
PATIENCE_SECONDS = 60.0
"""What has not moved for so long stands still: a pass over all feeders takes milliseconds."""
_XID_WAIT_SECONDS = 1.0
_XID_RETRY_SECONDS = 30.0
_XID_QUIET_SECONDS = 60.0
_WATCH_SECONDS = 2.0
_BEATS = 4
"""Looks at the workers within the deadline, lest one is told to hang while we were late."""
_WATCH_DEADLINE_SECONDS = 3.0
"""Feeders and host are read once a second, however short the deadline of the GPUs is."""
_FEEDING = frozenset({"stall", "feeders", "workload"})
"""Collectors that need the processes that hold GPUs watched."""
_WATCHING = _FEEDING | {"host"}


@dataclass(frozen=True, slots=True)
class State:
    """What a scrape shows."""

    system: System
    simulated: bool
    collectors: frozenset[str]
    """Names of those that are on: what nobody reads is not missing."""
    gpus: tuple[GpuSnapshot, ...]
    outcomes: tuple[tuple[str, Outcome], ...]
    driver_calls: int
    driver_seconds: float
    xid_events: bool | None
    """Whether the driver reports XIDs; None while there is no driver, or nobody counts them."""
    host: HostSnapshot | None = None
    """None while it is not watched, or was not seen within the deadline."""
    kubelet: Condition = UNASKED
    waited_for_cpu_seconds: float | None = None
    """Of the exporter's own threads; None where the kernel does not tell."""
    starved: bool | None = None
    """Whether the exporter gets so little CPU that it reads too late; None: not known yet."""
    implausible: Mapping[str, int] = field(default_factory=dict)
    """Values that could not be and were dropped, by collector."""


NO_SYSTEM = System(None, None)


class Sampler:
    """Runs in the background from `start` on; `state` is what it knows."""

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        collectors: Sequence[Collector],
        settings: Settings,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` is called, from a thread, with the reason why the process must end."""
        self._open_driver = open_driver
        self._collectors = collectors
        self._settings = settings
        self._on_fatal = on_fatal
        self._stop = threading.Event()
        self._driver: Driver | None = None
        self._workers: tuple[GpuWorker, ...] = ()
        self._xid_events: bool | None = None
        self._status = "opening the driver"
        self._cause: str | None = None
        self._hung: set[int] = set()
        self._news = News()
        self._beat_seconds = min(_WATCH_SECONDS, settings.deadline_seconds / _BEATS)
        self._own_cpu = OwnCpu(self._beat_seconds)
        self._deadline_ns = int(max(settings.deadline_seconds, _WATCH_DEADLINE_SECONDS) * 1e9)
        self._names = frozenset(collector.name for collector in collectors)
        self._wanted = _WATCHING & self._names
        self._watch = self._new_watch() if self._wanted else None
        asked = "workload" in self._wanted and "kubelet" not in settings.without
        self._kubelet = self._new_kubelet() if asked else None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._xid_thread = threading.Thread(target=self._count_xids, name="xid", daemon=True)

    def start(self) -> None:
        """Begin; returns at once, also where there is no driver."""
        if self._watch is not None:
            self._watch.start()
        if self._kubelet is not None:
            self._kubelet.start()
        self._thread.start()

    def stop(self, timeout_seconds: float = 2.0) -> None:
        """End all threads that are not hung in the driver; the driver stays open."""
        self._stop.set()
        for worker in self._workers:
            worker.stop()
        if self._watch is not None:
            self._watch.stop()
        deadline = time.monotonic() + timeout_seconds
        if self._kubelet is not None:
            self._kubelet.stop(timeout_seconds / 2)
        for worker in self._workers:
            worker.join(max(deadline - time.monotonic(), 0.0))
        for thread in (self._thread, self._xid_thread):
            if thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0.0))

    @property
    def alive(self) -> bool:
        """Whether the sampler's own thread lives; says nothing of the driver."""
        return self._thread.is_alive()

    def standstill(self, patience_seconds: float = PATIENCE_SECONDS) -> str | None:
        """What has stopped, in one sentence; None while all goes on.

        A hung driver is no standstill: it costs what it does not answer for, and a new process
        would hang just so.
        """
        if not self.alive:
            return f"the sampler has stopped: {self.status}"
        if self._watch and self._watch.silent_seconds(time.monotonic_ns()) > patience_seconds:
            return "the watching of the host and its processes is stuck"
        return None

    @property
    def ready(self) -> bool:
        """Whether it is known what there is to show: every GPU tried, or no driver found.

        A GPU that has hung from the start counts as tried: the others are not to wait for it.
        """
        if self._driver is None:
            return self._status != "opening the driver"
        now = time.monotonic_ns()
        return all(worker.attempted or worker.down_reason(now) for worker in self._workers)

    @property
    def status(self) -> str:
        """One plain sentence for people."""
        return self._status

    @property
    def cause(self) -> str | None:
        """What `status` comes from, where there is no GPU: a key of `remedies.OF_DRIVER`."""
        return self._cause

    def down_causes(self) -> dict[int, str | None]:
        """What the reasons of GPUs that are down come from: keys of `remedies.OF_DRIVER`."""
        now = time.monotonic_ns()
        return {w.index: w.down_cause(now) for w in self._workers if w.down_reason(now)}

    def forbidden(self) -> dict[int, dict[str, str]]:
        """By GPU: collectors that want a permission, and what the driver said."""
        return {worker.index: worker.forbidden for worker in self._workers}

    def down_reasons(self) -> dict[int, str]:
        """Why GPUs are down, by index."""
        now = time.monotonic_ns()
        reasons = {worker.index: worker.down_reason(now) for worker in self._workers}
        return {index: reason for index, reason in reasons.items() if reason}

    def state(self) -> State:
        """What is known now; cheap, and never waits for the driver."""
        now = time.monotonic_ns()
        driver, workers = self._driver, self._workers
        return State(
            system=driver.system if driver else NO_SYSTEM,
            simulated=driver is not None and driver.name == "virtual",
            collectors=self._names,
            gpus=self._assigned(self._gpus(workers, now)),
            outcomes=tuple(found for worker in workers for found in worker.outcomes(now)),
            driver_calls=driver.calls if driver else 0,
            driver_seconds=driver.seconds if driver else 0.0,
            xid_events=self._xids_come(),
            implausible=self._implausible(),
            waited_for_cpu_seconds=self._own_cpu.waited_seconds,
            starved=self._own_cpu.starved,
            host=self._host(now),
            kubelet=self._kubelet.condition if self._kubelet else UNASKED,
        )

    def _xids_come(self) -> bool | None:
        """From every GPU that is up and has them."""
        return self._xid_events and not any(worker.xid_trouble for worker in self._workers)

    def _implausible(self) -> Mapping[str, int]:
        counts = {c.name: 0 for c in self._collectors if c.read} if self._driver else {}
        for worker in self._workers:
            for name, count in list(worker.implausible.items()):
                counts[name] += count
        return counts

    def _new_watch(self) -> FeederWatch:
        settings = self._settings
        return FeederWatch(
            settings.procfs,
            settings.sysfs,
            machine="host" in self._wanted,
            owners="workload" in self._wanted,
            longest_answer_seconds=settings.longest_answer_seconds,
            without=settings.without,
        )

    def _new_kubelet(self) -> KubeletWatch:
        settings = self._settings
        expected = in_a_pod() or settings.kubelet_socket != KUBELET_SOCKET
        places = Places(settings.kubelet_socket, settings.container_logs, settings.procfs, expected)
        return KubeletWatch(places, self._seen, Pace())

    def _seen(self) -> Seen:
        now = time.monotonic_ns()
        gpus = self._gpus(self._workers, now)
        owners = (owner for gpu in gpus if gpu.feeding for owner in gpu.feeding.owners)
        return Seen(tuple(gpu.identity for gpu in gpus), frozenset(owners))

    def _gpus(self, workers: Sequence[GpuWorker], now_ns: int) -> list[GpuSnapshot]:
        return [self._fed(gpu, now_ns) for worker in workers for gpu in worker.snapshots(now_ns)]

    def _assigned(self, gpus: Sequence[GpuSnapshot]) -> tuple[GpuSnapshot, ...]:
        """`gpus` with what the kubelet says of those that are up."""
        if self._kubelet is None:
            return tuple(gpus)
        found = self._kubelet.assigned([gpu.identity for gpu in gpus])
        return tuple(
            replace(gpu, assigned=found[gpu.identity.uuid]) if gpu.up else gpu for gpu in gpus
        )

    def _fed(self, gpu: GpuSnapshot, now_ns: int) -> GpuSnapshot:
        """`gpu` with its feeders, if they were seen lately and it is known who they are."""
        if self._watch is None or gpu.reading(Processes) is None:
            return gpu
        feeding = self._watch.feeding(gpu.identity.uuid)
        if feeding is None or now_ns - feeding.at_ns > self._deadline_ns:
            return gpu
        return replace(gpu, feeding=feeding)

    def _host(self, now_ns: int) -> HostSnapshot | None:
        found = self._watch.host.snapshot if self._watch else None
        return found if found and now_ns - found.at_ns <= self._deadline_ns else None

    def _run(self) -> None:
        try:
            driver = self._open_with_patience()
            if driver is None:
                return
            self._start_workers(driver)
        except Exception as error:
            log.exception("the sampler could not start")
            self._fatal(f"the sampler could not start: {type(error).__name__}: {error}")
            return
        while not self._stop.wait(self._beat_seconds):
            self._look_after_workers()

    def _open_with_patience(self) -> Driver | None:
        retry = FIRST_RETRY_SECONDS
        refused_since: float | None = None
        while not self._stop.is_set():
            try:
                return self._open_driver()
            except DriverUnusable as error:
                self._cause = error.cause
                self._fatal(f"the driver cannot be used by this process: {error}")
                return None
            except DriverError as error:
                if self._status != str(error):
                    log.warning("no GPU metrics: %s; trying again", error)
                self._status, self._cause = str(error), error.cause
                now = time.monotonic()
                refused_since = (refused_since or now) if isinstance(error, AccessLost) else None
                if refused_since and now - refused_since > ACCESS_LOST_SECONDS:
                    self._fatal(f"no access to the driver for {ACCESS_LOST_SECONDS:.0f} s: {error}")
                    return None
            self._stop.wait(retry)
            retry = min(2 * retry, LONGEST_RETRY_SECONDS)
        return None

    def _start_workers(self, driver: Driver) -> None:
        count = driver.count()
        # The host can be watched without its GPUs' feeders.
        watch = self._watch if self._wanted & _FEEDING else None
        workers = tuple(
            GpuWorker(index, driver, self._collectors, self._settings, watch, own_cpu=self._own_cpu)
            for index in range(count)
        )
        self._workers, self._driver = workers, driver
        self._cause = None if count else "no_gpu"
        self._status = f"watching {count} GPU{'' if count == 1 else 's'} ({driver.name} driver)"
        log.info("%s, driver version %s", self._status, driver.system.driver_version)
        self._own_cpu.beat(time.monotonic_ns())
        for worker in workers:
            worker.start()
        if "xid" in self._names:
            self._xid_thread.start()

    def _look_after_workers(self) -> None:
        now = time.monotonic_ns()
        self._own_cpu.beat(now)
        if self._news.is_new("own CPU", bool(self._own_cpu.starved), usual=False):
            told = "too little CPU, and reads too late" if self._own_cpu.starved else "enough again"
            log.warning("the exporter gets %s", told)
        for worker in self._workers:
            self._tell_hang(worker.index, worker.hung_seconds(now))
        unusable = [worker.unusable for worker in self._workers if worker.unusable]
        if unusable:
            self._fatal(f"the driver cannot be used by this process any more: {unusable[0]}")
        refused = [worker.access_lost_since for worker in self._workers]
        if refused and all(s and now / 1e9 - s > ACCESS_LOST_SECONDS for s in refused):
            self._fatal(f"the driver has refused all GPUs for {ACCESS_LOST_SECONDS:.0f} s")

    def _tell_hang(self, index: int, seconds: float | None) -> None:
        if seconds and index not in self._hung:
            log.error("gpu %d is down: a driver call has not returned for %.0f s", index, seconds)
            self._hung.add(index)
        elif not seconds and index in self._hung:
            log.info("gpu %d: the driver call has returned", index)
            self._hung.remove(index)

    def _fatal(self, reason: str) -> None:
        self._status = reason
        self._stop.set()
        self._on_fatal(reason)

    def _count_xids(self) -> None:
        assert self._driver is not None  # noqa: S101 - started after it was opened
        self._xid_events = True
        retry = FIRST_RETRY_SECONDS
        while not self._stop.is_set():
            trouble = self._count_xid(self._driver)
            self._xid_events = trouble is None
            if self._news.is_new("XIDs", trouble):
                log.warning("XIDs: %s", trouble or "reported again")
            if trouble:
                self._stop.wait(retry)
            retry = min(2 * retry, _XID_RETRY_SECONDS) if trouble else FIRST_RETRY_SECONDS

    def _count_xid(self, driver: Driver) -> str | None:
        """Wait for one; returns what went wrong."""
        try:
            event = driver.wait_xid(_XID_WAIT_SECONDS)
            if event is not None:
                self._workers[event.index].add_xid(event.code)
                self._tell_xid(event)
        except DriverError as error:
            return str(error)
        except Exception as error:  # one bad event must not end the only thread that counts them
            log.debug("XIDs", exc_info=True)
            return f"{type(error).__name__}: {error}"
        return None

    def _tell_xid(self, event: Xid) -> None:
        """Say so; a job can make thousands of one kind."""
        minute = int(time.monotonic() / _XID_QUIET_SECONDS)
        if self._news.is_new(str(event), minute):
            log.warning("gpu %d: XID %d", event.index, event.code)
