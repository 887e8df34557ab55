"""One thread per physical GPU: opens it, reads it every tick, and if it hangs, hangs alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.bucket import WINDOW_NS
from gpu_bottleneck_exporter.driver.plausible import is_void, plausible
from gpu_bottleneck_exporter.driver.protocol import (
    AccessLost,
    Driver,
    DriverError,
    DriverUnusable,
    Forbidden,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import Identity, Processes, Reading, Utilization
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.sampling.collector import SLOWLY, Collector
from gpu_bottleneck_exporter.sampling.ledger import GpuLedger, GpuSnapshot
from gpu_bottleneck_exporter.sampling.opened import Opened, Outcome, charge
from gpu_bottleneck_exporter.sampling.starvation import OwnCpu, run_delay_ns
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.schedule import LONG_NS, SELDOM_NS, Backoff, Every
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import without_bystanders

log = logging.getLogger(__name__)

_STAYS_SECONDS = LONG_NS / 1e9
"""A GPU that was up for so long is not one that comes and goes."""
_SLOW_READINGS_KEPT = 3
"""Times their interval: one may fail, and the next one come late."""
_STEADY_TICKS = 4
"""As many usual ones, at most, pass between two readings of a GPU that goes on as before."""
STEADY_TICK_SECONDS = WINDOW_NS / 1e9
"""Also at most, unless somebody asks: its ring holds 10 s; its feeders are judged over as much."""
APART_SECONDS = 0.001
"""Between the ticks of two GPUs: one after the other, they find warm caches and never wait for
Python's lock. A thread that wakes early by less has reached its tick."""


class Down(NamedTuple):
    """Why a GPU is down, and what to do about it."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return self.reason


class GpuWorker:
    """Reads physical GPU `index` and its MIG instances."""

    def __init__(  # noqa: PLR0913 - what one GPU's reader needs of the whole
        self,
        index: int,
        driver: Driver,
        collectors: Sequence[Collector],
        settings: Settings,
        watch: HostSampler | None = None,
        *,
        own_cpu: OwnCpu,
    ) -> None:
        """`watch` learns who holds the GPU and says what they did; without it, no stalls.

        `own_cpu` measures how late a thread wakes that never calls the driver.
        """
        self.index = index
        self._own_cpu = own_cpu
        self._watch = watch
        self.attempted = False
        """Whether the first tick is over, successful or not."""
        self.access_lost_since: float | None = None
        """Monotonic seconds since which the driver has refused every call; None if it does not."""
        self.unusable: str | None = None
        """Why only a new process can talk to the driver again, if that is so."""
        self.event_trouble: str | None = None
        """Why the GPU does not report its error events though it should."""
        self.implausible: dict[str, int] = {}
        """Implausible values that were dropped, by collector."""
        self._throttle = LogThrottle(log)
        self._events_due_ns = 0
        self._counts_errors = any(collector.name == "xid" for collector in collectors)
        self._driver = driver
        self._collectors = [collector for collector in collectors if collector.read]
        self._settings = settings
        self._tick_ns = int(settings.interval_seconds * 1e9)
        self._has_ring = False
        """Whether the driver keeps what it did between two ticks."""
        self._sees_all_holders = (
            driver.about.sees_all_namespaces or in_hosts_pid_namespace(settings.procfs) is not False
        )
        self._deadline_ns = int(settings.deadline_seconds * 1e9)
        self._stop = threading.Event()
        self._wanted = threading.Event()
        """Set by whoever waits for a reading."""
        self._finished = threading.Condition()
        """Notified at the end of a reading."""
        self._ledgers: dict[str, GpuLedger] = {}
        self._opened: tuple[Opened, ...] = ()
        self._snapshots: tuple[GpuSnapshot, ...] = ()
        self._due_ns = time.monotonic_ns()
        """When the GPU is to be read next, or the end of its last reading if that is later."""
        self._late_ns = own_cpu.late_ns(self._due_ns)
        self._delay_ns: int | None = 0
        """This thread's run-queue delay as of the end of the last tick."""
        self._down: Down | None = None
        self._thread = threading.Thread(target=self._run, name=f"gpu{index}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its current tick; it may hang in the driver."""
        self._stop.set()
        self._wanted.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end; False if it has not."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def down(self, now_ns: int) -> Down | None:
        """Why this GPU is down; None while it is up."""
        if self._down or (hung := self.hung_seconds(now_ns)) is None:
            return self._down
        return Down(f"a driver call has not returned for {hung:.0f} s", self._driver.about.hung)

    def hung_seconds(self, now_ns: int) -> float | None:
        """Time that the thread has been inside the driver, if past the deadline.

        Time without a CPU is not the driver's fault, and does not count towards the deadline.
        """
        silent_ns = now_ns - self._due_ns
        if silent_ns <= self._deadline_ns or self._down:
            return None
        hung = silent_ns - self._starved_ns(now_ns) > self._deadline_ns
        return silent_ns / 1e9 if hung else None

    def _starved_ns(self, now_ns: int) -> int:
        """Longest time that the thread could not run since the last tick.

        Its own run-queue delay, plus the delay that every thread had: it may wait for a lock
        whose owner has no CPU. Some time may be in both; better to report a hang late than to
        blame the driver.
        """
        late_ns = self._own_cpu.late_ns(now_ns) - self._late_ns
        delay_ns = run_delay_ns(self._thread.native_id) if self._thread.native_id else None
        if delay_ns is None or self._delay_ns is None:
            return late_ns
        return late_ns + delay_ns - self._delay_ns

    def refresh(self, until: float) -> None:
        """Have the GPU read, unless that was done within the usual interval. For any thread.

        Waits for it until monotonic `until`, but not for a GPU that is down or being read.
        """
        asked_ns = time.monotonic_ns()
        if not self._snapshots or asked_ns - self._snapshots[0].at_ns < self._tick_ns:
            return
        if self._down is None and asked_ns < self._due_ns:
            with self._finished:
                self._wanted.set()
                self._finished.wait_for(
                    lambda: self._down or self._snapshots[0].at_ns > asked_ns,
                    until - time.monotonic(),
                )

    def _finish_tick(self, now_ns: int) -> None:
        self._delay_ns = run_delay_ns()
        self._late_ns = self._own_cpu.late_ns(now_ns)
        self._due_ns = now_ns
        with self._finished:
            self._finished.notify_all()

    def snapshots(self, now_ns: int) -> list[GpuSnapshot]:
        """The GPU and its MIG instances, as far as they may be shown now."""
        if self.down(now_ns) is None:
            late = now_ns - self._due_ns > self._deadline_ns
            return [shot.stale() for shot in self._snapshots] if late else list(self._snapshots)
        ledgers = [opened.ledger for opened in self._opened] or list(self._ledgers.values())
        unknown = GpuLedger(Identity(self.index, uuid=""), self._driver.system, self._tick_ns)
        return [ledger.down(now_ns) for ledger in ledgers or [unknown]]

    def outcomes(self, now_ns: int) -> list[tuple[str, Outcome]]:
        """The last result of each collector on each device it is supported on."""
        found = [pair for opened in self._opened for pair in list(opened.outcomes.items())]
        down = self.down(now_ns)
        return [
            (name, how._replace(error=down.reason, down=True) if down else how)
            for name, how in found
        ]

    @property
    def forbidden(self) -> dict[str, str]:
        """Collectors that lack a permission on the physical GPU, and what the driver said."""
        opened = self._opened
        return dict(opened[0].forbidden) if opened else {}

    def add_error(self, code: int) -> None:
        """Count an error event of the physical GPU."""
        for ledger in self._ledgers.values():
            if ledger.identity.parent_uuid is None:
                ledger.add_error(code)

    def _run(self) -> None:
        retry = Backoff()
        while not self._stop.is_set():
            up_since = time.monotonic()
            try:
                self._open()
                self._tick()
                up_since = time.monotonic()
                self._read_until_stopped()
            except DriverError as error:
                self._fail(error)
            except Exception as error:  # a bug must not end the only reader of this GPU
                log.debug("gpu %d", self.index, exc_info=True)
                self._fail(DriverError(f"{type(error).__name__}: {error}"))
            if time.monotonic() - up_since > _STAYS_SECONDS:
                retry = Backoff()
            self._stop.wait(retry.pause())

    def _open(self) -> None:
        self._close()
        devices = self._driver.open(self.index)
        before = self._ledgers
        self._ledgers = {
            who.uuid: before.get(who.uuid) or GpuLedger(who, self._driver.system, self._tick_ns)
            for who in (device.identity for device in devices)
        }
        for uuid in before.keys() - self._ledgers.keys():
            self._throttle.forget(uuid)
            if self._watch is not None:
                self._watch.forget(uuid)
        self._opened = tuple(Opened(d, self._ledgers[d.identity.uuid]) for d in devices)

    def _close(self) -> None:
        opened, self._opened = self._opened, ()
        for one in opened:
            one.device.close()

    def _read_until_stopped(self) -> None:
        checking_layout = Every(SLOWLY, time.monotonic() + SLOWLY)  # it was just opened
        while not self._stop.is_set():
            usual = self._settings.interval_seconds
            tick = _next_tick(time.monotonic(), usual, self.index * APART_SECONDS)
            tick += self._interval() - usual
            self._due_ns = int(tick * 1e9)
            self._wanted.wait(tick - time.monotonic())
            if self._stop.is_set():
                return
            self._wanted.clear()
            self._due_ns = min(self._due_ns, time.monotonic_ns())
            if checking_layout.is_due(time.monotonic()):
                self._follow_layout()
            self._tick()

    def _interval(self) -> float:
        """Seconds between two ticks; more for a GPU that goes on as before.

        Nothing is lost: the driver's ring holds what it did meanwhile.
        """
        usual = self._settings.interval_seconds
        if self._watch is None or not self._has_ring or len(self._opened) > 1:
            return usual
        feed = self._watch.feed(self._opened[0].device.identity.uuid)
        if feed is None or not feed.steady:
            return usual
        longest = min(STEADY_TICK_SECONDS, self._settings.deadline_seconds)
        return max(usual, min(_STEADY_TICKS * usual, longest))

    def _follow_layout(self) -> None:
        known = tuple(o.device.identity.uuid for o in self._opened[1:])
        try:
            found = self._driver.instances(self.index)
        except DriverError as error:  # if only this fails, keep reading the rest
            log.debug("gpu %d: MIG instances: %s", self.index, error)
            return
        if found != known:
            log.info("gpu %d: MIG instances changed", self.index)
            self._open()

    def _watch_errors(self) -> None:
        now = time.monotonic_ns()
        if not self._counts_errors or now < self._events_due_ns:
            return
        self.event_trouble = None
        try:
            self._driver.watch_errors(self.index)
        except DriverError as error:
            self.event_trouble = str(error)
            self._events_due_ns = now + SELDOM_NS
        if self._throttle.is_new("error events", self.event_trouble):
            event, told = self._driver.about.error_event, self.event_trouble or "reported again"
            log.warning("gpu %d: %ss are %s", self.index, event, told)

    def _count_implausible(self, collector: str, name: str, value: object) -> None:
        """Count a value that cannot be; say so for the first of its kind."""
        told = f"{collector} {name}"
        self.implausible[collector] = self.implausible.get(collector, 0) + 1
        if self._throttle.is_new(told, state=True):
            what = f"the driver returned {value} for {told}: impossible, dropped and counted"
            log.warning("gpu %d: %s", self.index, what)

    def _tick(self) -> None:
        self._watch_errors()
        for opened in self._opened:
            for collector in self._collectors:
                if time.monotonic_ns() >= opened.due_ns.get(collector.name, 0):
                    self._collect(collector, opened)
        now = time.monotonic_ns()
        self._snapshots = tuple(opened.ledger.snapshot(now) for opened in self._opened)
        self._finish_tick(now)
        self.attempted = True
        self.access_lost_since = None
        self._down = None
        self._log_state()

    def _collect(self, collector: Collector, opened: Opened) -> None:
        began = time.monotonic_ns()
        name = collector.name
        if opened.refusals.stands(name):
            return
        # Half a tick early, or a tick that comes a little sooner would skip this collector.
        opened.due_ns[name] = began + int(collector.every_seconds * 1e9) - self._tick_ns // 2
        before = opened.outcomes.get(name)
        try:
            error = self._read(collector, opened)
        except Unsupported as refusal:
            if isinstance(refusal, Forbidden):
                opened.forbidden[name] = str(refusal)
            if not opened.refusals.refused(name):
                opened.outcomes.pop(name, None)
                if name == "utilization":
                    opened.ledger.without_utilization()
                return
            error = str(refusal)
        who = f"gpu {self.index}: collector {name}"
        said, over = f"{who} failed: {error}", f"{who} works again"
        subject = f"{opened.ledger.identity.uuid} {name}"
        self._throttle.log_change(logging.WARNING, subject, error, said, over)
        seconds = (time.monotonic_ns() - began) / 1e9
        last_success = time.time() if error is None else before and before.last_success
        opened.outcomes[name] = Outcome(seconds, last_success, error)

    def _read(self, collector: Collector, opened: Opened) -> str | None:
        """Read and book; returns what went wrong.

        Raises Unsupported, or what concerns the whole GPU.
        """
        assert collector.read is not None  # noqa: S101 - `__init__` kept only those
        kept = max(self._deadline_ns, int(collector.every_seconds * 1e9) * _SLOW_READINGS_KEPT)
        fresh_ns = int(self._interval() * 1e9) + kept
        try:
            reading = collector.read(opened.device)
            if reading is None:  # a mean needs two readings: take the second at the next tick
                opened.due_ns[collector.name] = 0
            else:
                opened.refusals.answered(collector.name)
                opened.forbidden.pop(collector.name, None)
                before = self.implausible.get(collector.name)
                reading = self._plausible(collector, reading)
                self._book(opened, fresh_ns, reading)
                if before != self.implausible.get(collector.name) and is_void(reading):
                    return "only impossible values"
        except Unsupported:
            raise
        except DriverError as error:
            return opened.what_failed(error)
        except Exception as error:  # the one place that isolates collectors from each other
            log.debug("gpu %d: %s", self.index, collector.name, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return opened.what_failed(opened.device.last_error)

    def _plausible(self, collector: Collector, reading: Reading) -> Reading:
        reading = plausible(reading, partial(self._count_implausible, collector.name))
        if not isinstance(reading, Processes):
            return reading
        hidden = reading.others_hidden or not self._sees_all_holders
        reading = replace(reading, others_hidden=hidden)
        return without_bystanders(reading, self._settings.procfs, self._driver.about.daemons)

    def _book(self, opened: Opened, fresh_ns: int, reading: Reading) -> None:
        windows = opened.ledger.add(time.monotonic_ns(), fresh_ns, reading)
        if isinstance(reading, Utilization):
            self._has_ring = bool(reading.gpu)
        if self._watch is not None and (windows or isinstance(reading, Processes)):
            charge(self._watch, opened, windows)

    def _log_state(self) -> None:
        """Log whether the GPU is down, if that is new."""
        said, over = f"gpu {self.index} is down: {self._down}", f"gpu {self.index} is back"
        self._throttle.log_change(logging.ERROR, "gpu", self._down, said, over)

    def _fail(self, error: DriverError) -> None:
        if isinstance(error, DriverUnusable):
            self.unusable = str(error)
        if isinstance(error, AccessLost):
            self.access_lost_since = self.access_lost_since or time.monotonic()
        else:
            self.access_lost_since = None
        self._down = Down(str(error), error.remedy or self._driver.about.down)
        self._log_state()
        self._close()
        self._finish_tick(time.monotonic_ns())
        self.attempted = True


def _next_tick(now: float, interval: float, offset: float) -> float:
    """The next tick on the grid that all GPUs share, each shifted by its own `offset`."""
    passed = (now - offset + APART_SECONDS) // interval
    return (passed + 1) * interval + offset
