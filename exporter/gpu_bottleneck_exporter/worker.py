"""One thread per physical GPU: it opens the GPU, reads it every tick, and may hang alone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting import Window
from gpu_bottleneck_exporter.collectors.base import SLOWLY, Collector
from gpu_bottleneck_exporter.driver.plausible import Screen, is_void
from gpu_bottleneck_exporter.driver.protocol import (
    CONCERNS_ALL,
    NO_PERMISSION,
    AccessLost,
    Device,
    Driver,
    DriverError,
    DriverUnusable,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import (
    Identity,
    Processes,
    Reading,
    RingState,
    Utilization,
)
from gpu_bottleneck_exporter.driver.refusals import Refusals
from gpu_bottleneck_exporter.feeders.watch import FeederWatch
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace
from gpu_bottleneck_exporter.ledger import GpuLedger, GpuSnapshot
from gpu_bottleneck_exporter.news import News
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.stall import Holders, split
from gpu_bottleneck_exporter.starvation import OwnCpu, OwnDelay, run_delay_ns
from gpu_bottleneck_exporter.workload.desktop import without_desktop

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
_SLOW_READINGS_KEPT = 3
_XID_RETRY_NS = 30_000_000_000
FULL_TICK_SECONDS = 2.0
"""Between two readings of a GPU that works all the time; its ring holds 10 s."""
FULL_LASTS_NS = 10_000_000_000
APART_SECONDS = 0.001
"""Between the ticks of two GPUs: one after the other they find the caches warm, and nobody waits
for Python's lock."""
_EARLY_SECONDS = 0.001
"""Whoever wakes so much before a tick has come to it."""
_FULL = 0.95
"""Of a tick: who works for so much of it has nothing to explain."""


class Outcome(NamedTuple):
    """How a collector last fared on one GPU or MIG instance."""

    success: bool = False
    seconds: float = 0.0
    """Time the last read took."""
    last_success: float | None = None
    """Unix time of the last read that succeeded."""
    error: str | None = None
    down: bool = False
    """Whether it failed with the whole GPU, and not by itself."""


_UNTRIED = Outcome()


@dataclass(slots=True)
class Opened:
    """A device under observation: what is due when, and what it does not have."""

    device: Device
    ledger: GpuLedger
    screen: Screen = field(default_factory=Screen)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    due_ns: dict[str, int] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    """By the collectors' names."""
    forbidden: dict[str, str] = field(default_factory=dict)
    """By collector that wants a permission: what the driver said."""


class GpuWorker:
    """Reads physical GPU `index` and its MIG instances."""

    def __init__(  # noqa: PLR0913 - what one GPU's reader needs of the whole
        self,
        index: int,
        driver: Driver,
        collectors: Sequence[Collector],
        settings: Settings,
        watch: FeederWatch | None = None,
        *,
        own_cpu: OwnCpu,
    ) -> None:
        """`watch` is told who holds the GPU and asked what they did; without it no stalls.

        `own_cpu` knows, of a thread that never calls the driver, how late it was.
        """
        self.index = index
        self._own_cpu = own_cpu
        self._watch = watch
        self.access_lost_since: float | None = None
        """Monotonic seconds since which the driver has refused everything, if it does."""
        self.unusable: str | None = None
        """Why only a new process could talk to the driver again, if so."""
        self.xid_trouble: str | None = None
        """Why the GPU does not report its XIDs though it should."""
        self.implausible: dict[str, int] = {}
        """Values that could not be and were dropped, by collector."""
        self._news = News()
        self._xids_due_ns = 0
        self._counts_xids = any(collector.name == "xid" for collector in collectors)
        self._driver = driver
        self._collectors = [collector for collector in collectors if collector.read]
        self._tick_seconds = settings.interval_seconds
        self._full_tick_seconds = max(
            self._tick_seconds,
            min(2 * self._tick_seconds, FULL_TICK_SECONDS, settings.deadline_seconds / 2),
        )
        self._full_since_ns: int | None = None
        """Since when the GPU works all the time, if it does."""
        # NVML leaves out the processes of other PID namespaces: none may be some.
        self._sees_all_holders = (
            driver.name == "virtual" or in_hosts_pid_namespace(settings.procfs) is not False
        )
        self._proc = settings.procfs
        self._deadline_ns = int(settings.deadline_seconds * 1e9)
        self._stop = threading.Event()
        self._ledgers: dict[str, GpuLedger] = {}
        self._opened: tuple[Opened, ...] = ()
        self._snapshots: tuple[GpuSnapshot, ...] = ()
        self._finished_tick_ns = time.monotonic_ns()
        self._late_ns = own_cpu.late_ns(self._finished_tick_ns)
        self._own_delay = OwnDelay()
        self._delay_ns: int | None = 0
        """How long this thread had waited for a CPU at the end of the last tick."""
        self._down: str | None = None
        self._down_cause: str | None = None
        self._attempted = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gpu{index}", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after the tick it is in; it may be hung in the driver."""
        self._stop.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread's end; False when it has not come."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    @property
    def attempted(self) -> bool:
        """Whether the first tick is over, well or badly."""
        return self._attempted.is_set()

    def down_reason(self, now_ns: int) -> str | None:
        """Why this GPU is down; None while it is up."""
        if self._down:
            return self._down
        hung = self.hung_seconds(now_ns)
        return f"a driver call has not returned for {hung:.0f} s" if hung else None

    def down_cause(self, now_ns: int) -> str | None:
        """What `down_reason` comes from: a key of `remedies.OF_DRIVER`, if there is one."""
        return "hung" if self.hung_seconds(now_ns) else self._down_cause

    def hung_seconds(self, now_ns: int) -> float | None:
        """For how long the thread has been inside the driver, if past the deadline.

        What it lacked a CPU for is not the driver's fault, and does not count towards the deadline.
        """
        silent_ns = now_ns - self._finished_tick_ns
        if silent_ns <= self._deadline_ns or self._down:
            return None
        hung = silent_ns - self._starved_ns(now_ns) > self._deadline_ns
        return silent_ns / 1e9 if hung else None

    def _starved_ns(self, now_ns: int) -> int:
        """For how long the thread could not run since the last tick, at most.

        What it waited for a CPU itself, and what all waited: for a lock whose owner has no CPU.
        Some may be in both: rather is a hang told late than the driver blamed.
        """
        late_ns = self._own_cpu.late_ns(now_ns) - self._late_ns
        delay_ns = run_delay_ns(self._thread.native_id) if self._thread.native_id else None
        if delay_ns is None or self._delay_ns is None:
            return late_ns
        return late_ns + delay_ns - self._delay_ns

    def _finish_tick(self, now_ns: int) -> None:
        self._delay_ns = self._own_delay.read_ns()
        self._late_ns = self._own_cpu.late_ns(now_ns)
        self._finished_tick_ns = now_ns

    def snapshots(self, now_ns: int) -> list[GpuSnapshot]:
        """The GPU and its MIG instances as they may be shown now."""
        if self.down_reason(now_ns) is None:
            late = now_ns - self._finished_tick_ns > self._deadline_ns
            return [shot.stale() for shot in self._snapshots] if late else list(self._snapshots)
        if not self._opened:
            ledgers = list(self._ledgers.values())
        else:
            ledgers = [opened.ledger for opened in self._opened]
        if not ledgers:
            unknown = Identity(index=self.index, uuid="")
            ledgers = [GpuLedger(unknown, self._driver.system, self._tick_ns)]
        return [ledger.down(now_ns) for ledger in ledgers]

    def outcomes(self, now_ns: int) -> list[tuple[str, Outcome]]:
        """How each collector fared on each device it is supported on."""
        down = self.down_reason(now_ns)
        found = [
            (name, outcome)
            for opened in self._opened
            for name, outcome in list(opened.outcomes.items())
        ]
        if down is None:
            return found
        return [
            (name, outcome._replace(success=False, error=down, down=True))
            for name, outcome in found
        ]

    @property
    def forbidden(self) -> dict[str, str]:
        """Collectors that want a permission on the physical GPU, and what the driver said."""
        opened = self._opened
        return dict(opened[0].forbidden) if opened else {}

    def add_xid(self, code: int) -> None:
        """Count an XID of the physical GPU."""
        for ledger in self._ledgers.values():
            if ledger.identity.parent_uuid is None:
                ledger.add_xid(code)

    @property
    def _tick_ns(self) -> int:
        return int(self._tick_seconds * 1e9)

    def _run(self) -> None:
        retry = FIRST_RETRY_SECONDS
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
            finally:
                self._attempted.set()
            if time.monotonic() - up_since > LONGEST_RETRY_SECONDS:
                retry = FIRST_RETRY_SECONDS  # it is not one that comes and goes
            self._stop.wait(retry)
            retry = min(2 * retry, LONGEST_RETRY_SECONDS)
        self._own_delay.close()

    def _open(self) -> None:
        self._close()
        devices = self._driver.open(self.index)
        before, self._ledgers = (
            self._ledgers,
            {
                who.uuid: self._ledgers.get(who.uuid)
                or GpuLedger(who, self._driver.system, self._tick_ns)
                for who in (device.identity for device in devices)
            },
        )
        if self._watch is not None:
            for uuid in before.keys() - self._ledgers.keys():
                self._watch.forget(uuid)
        self._opened = tuple(Opened(d, self._ledgers[d.identity.uuid]) for d in devices)

    def _close(self) -> None:
        opened, self._opened = self._opened, ()
        for one in opened:
            one.device.close()

    def _read_until_stopped(self) -> None:
        next_layout_check = time.monotonic() + SLOWLY
        while not self._stop.is_set():
            tick = _next_tick(time.monotonic(), self._interval(), self.index * APART_SECONDS)
            self._stop.wait(tick - time.monotonic())
            if time.monotonic() >= next_layout_check:
                next_layout_check += SLOWLY
                self._follow_layout()
            self._tick()

    def _interval(self) -> float:
        """Seconds between two ticks; twice as many of a GPU that works all the time.

        Its ring says what it did.
        """
        since_ns = self._full_since_ns
        lasts = since_ns is not None and time.monotonic_ns() - since_ns >= FULL_LASTS_NS
        return self._full_tick_seconds if lasts else self._tick_seconds

    def _follow_layout(self) -> None:
        known = tuple(o.device.identity.uuid for o in self._opened[1:])
        try:
            found = self._driver.instances(self.index)
        except DriverError as error:  # if that is all that fails, the rest is read on
            log.debug("gpu %d: MIG instances: %s", self.index, error)
            return
        if found != known:
            log.info("gpu %d: MIG instances changed", self.index)
            self._open()

    def _watch_xids(self) -> None:
        now = time.monotonic_ns()
        if not self._counts_xids or now < self._xids_due_ns:
            return
        self.xid_trouble = None
        try:
            self._driver.watch_xids(self.index)
        except DriverError as error:
            self.xid_trouble = str(error)
            self._xids_due_ns = now + _XID_RETRY_NS
        if self._news.is_new("XIDs", self.xid_trouble):
            log.warning("gpu %d: XIDs are %s", self.index, self.xid_trouble or "reported again")

    def _drop(self, collector: str, name: str, value: object) -> None:
        """Count a value that cannot be; say so for the first of its kind."""
        told = f"{collector} {name}"
        self.implausible[collector] = self.implausible.get(collector, 0) + 1
        if self._news.is_new(told, state=True):
            log.warning(
                "gpu %d: the driver gave %s for %s; such values are dropped and counted",
                self.index,
                value,
                told,
            )

    def _tick(self) -> None:
        self._watch_xids()
        for opened in self._opened:
            for collector in self._collectors:
                if time.monotonic_ns() >= opened.due_ns.get(collector.name, 0):
                    self._collect(collector, opened)
        now = time.monotonic_ns()
        self._snapshots = tuple(opened.ledger.snapshot(now) for opened in self._opened)
        self._finish_tick(now)
        self._attempted.set()
        self.access_lost_since = None
        self._down = None
        self._tell_state()

    def _collect(self, collector: Collector, opened: Opened) -> None:
        began = time.monotonic_ns()
        name = collector.name
        if opened.refusals.stands(name):
            return
        # Half a tick early: a tick that comes a little sooner than the last must not wait for one.
        opened.due_ns[name] = began + int(collector.every_seconds * 1e9) - self._tick_ns // 2
        before = opened.outcomes.get(name, _UNTRIED)
        try:
            error = self._read(collector, opened)
        except Unsupported as refusal:
            if refusal.cause == NO_PERMISSION:
                opened.forbidden[name] = str(refusal)
            if not opened.refusals.refused(name):
                opened.outcomes.pop(name, None)
                if name == "utilization":
                    opened.ledger.without_utilization()
                return
            error = str(refusal)
        self._tell(opened, name, error)
        opened.outcomes[name] = Outcome(
            success=error is None,
            seconds=(time.monotonic_ns() - began) / 1e9,
            last_success=time.time() if error is None else before.last_success,
            error=error,
        )

    def _read(self, collector: Collector, opened: Opened) -> str | None:
        """Read and book; returns what went wrong.

        Raises Unsupported, or what concerns the whole GPU.
        """
        assert collector.read is not None  # noqa: S101 - `__init__` kept only those
        fresh_ns = max(self._deadline_ns, int(collector.every_seconds * 1e9) * _SLOW_READINGS_KEPT)
        try:
            reading = collector.read(opened.device)
            if reading is None:  # a mean wants two readings: the second at the next tick
                opened.due_ns[collector.name] = 0
            else:
                opened.refusals.given(collector.name)
                opened.forbidden.pop(collector.name, None)
                before = self.implausible.get(collector.name)
                reading = self._screened(collector, opened, reading)
                self._book(opened, fresh_ns, reading)
                if before != self.implausible.get(collector.name) and is_void(reading):
                    return "no value that can be"
        except Unsupported:
            raise
        except DriverError as error:
            return self._weigh(opened, error)
        except Exception as error:  # the one place that isolates collectors from each other
            log.debug("gpu %d: %s", self.index, collector.name, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return self._weigh(opened, opened.device.trouble)

    @staticmethod
    def _weigh(opened: Opened, error: DriverError | None) -> str | None:
        """What went wrong with one reading; raises what concerns them all."""
        if isinstance(error, CONCERNS_ALL):
            opened.device.check()
        return str(error) if error else None

    def _screened(self, collector: Collector, opened: Opened, reading: Reading) -> Reading:
        drop = partial(self._drop, collector.name)
        reading = opened.screen.clean(time.monotonic_ns(), reading, drop)
        if not isinstance(reading, Processes):
            return reading
        hidden = reading.others_hidden or not self._sees_all_holders
        return without_desktop(replace(reading, others_hidden=hidden), self._proc)

    def _book(self, opened: Opened, fresh_ns: int, reading: Reading) -> None:
        windows = opened.ledger.add(time.monotonic_ns(), fresh_ns, reading)
        if isinstance(reading, Utilization):
            self._note_work(reading, windows)
        if windows or isinstance(reading, Processes):
            self._account_stall(opened.ledger, windows)

    def _note_work(self, reading: Utilization, windows: list[Window]) -> None:
        """Only of a GPU that is read through its ring, and has no instances."""
        observed = sum(window.duration_ns for window in windows)
        active = sum(window.active_ns for window in windows)
        rings = reading.gpu.state is RingState.SAMPLES and len(self._opened) == 1
        if not rings or active < _FULL * observed:
            self._full_since_ns = None
        elif self._full_since_ns is None:
            self._full_since_ns = time.monotonic_ns()

    def _account_stall(self, ledger: GpuLedger, windows: list[Window]) -> None:
        if self._watch is None:
            return
        uuid = ledger.identity.uuid
        holders = ledger.holders(time.monotonic_ns())
        self._watch.hold(uuid, holders, ledger.identity.parent_uuid)
        if not windows:
            return
        observed = sum(window.duration_ns for window in windows)
        active = sum(window.active_ns for window in windows)
        self._watch.tell_busy(uuid, active / observed)
        known = Holders(None if holders is None else len(holders))
        feeders = None
        try:
            if holders and active < observed:  # else nothing is to be explained, or nobody there
                start = windows[0].end_ns - windows[0].duration_ns
                feeders = self._watch.feeders(uuid, start, windows[-1].end_ns)
            stalls = split(windows, known, feeders)
        except Exception:  # what was observed is charged, if only to nobody
            log.debug("gpu %d: stall", self.index, exc_info=True)
            stalls = split(windows, known, None)
            ledger.add_stall(stalls)
            raise
        ledger.add_stall(stalls)
        self._watch.tell_split(uuid, active, stalls)

    def _tell(self, opened: Opened, name: str, error: str | None) -> None:
        """Say how a collector fares, if that is new."""
        if not self._news.is_new(f"{opened.ledger.identity.uuid} {name}", error):
            return
        if error is None:
            log.info("gpu %d: collector %s works again", self.index, name)
        else:
            log.warning("gpu %d: collector %s failed: %s", self.index, name, error)

    def _tell_state(self) -> None:
        """Say whether the GPU is down, if that is new."""
        if not self._news.is_new("gpu", self._down):
            return
        if self._down is None:
            log.info("gpu %d is back", self.index)
        else:
            log.error("gpu %d is down: %s", self.index, self._down)

    def _fail(self, error: DriverError) -> None:
        if isinstance(error, DriverUnusable):
            self.unusable = str(error)
        if isinstance(error, AccessLost):
            self.access_lost_since = self.access_lost_since or time.monotonic()
        else:
            self.access_lost_since = None
        self._down, self._down_cause = str(error), error.cause
        self._tell_state()
        self._close()
        self._finish_tick(time.monotonic_ns())


def _next_tick(now: float, interval: float, offset: float) -> float:
    """The next point ahead of the grid that the ticks of all GPUs keep to, each `offset` later."""
    passed = (now - offset + _EARLY_SECONDS) // interval
    return (passed + 1) * interval + offset
