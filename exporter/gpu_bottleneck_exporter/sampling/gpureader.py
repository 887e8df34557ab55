"""Reads one physical GPU and its MIG instances into their ledgers.

Isolates failures of collectors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import Carry, by_file_system, split
from gpu_bottleneck_exporter.accounting.tenants import TenantMeter
from gpu_bottleneck_exporter.accounting.tick import Tick
from gpu_bottleneck_exporter.accounting.windows import Window
from gpu_bottleneck_exporter.driver.plausible import is_void, plausible
from gpu_bottleneck_exporter.driver.protocol import (
    GPU_WIDE_ERRORS,
    Device,
    DeviceLost,
    Driver,
    DriverError,
    Forbidden,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import (
    Identity,
    Memory,
    Processes,
    ProcessUse,
    Reading,
    Utilization,
    Video,
)
from gpu_bottleneck_exporter.driver.refusals import Refusals
from gpu_bottleneck_exporter.host.signals import in_hosts_pid_namespace
from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.sampling.collector import Collector
from gpu_bottleneck_exporter.sampling.ledger import GpuLedger, GpuSnapshot
from gpu_bottleneck_exporter.sampling.watching import HostSampler
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import without_bystanders

log = logging.getLogger(__name__)

ERROR_EVENT_MESSAGES = "error events cannot be counted", "error events are reported again"
"""Log messages for a failure and for its end."""


class Outcome(NamedTuple):
    """The last result of a collector on one GPU or MIG instance."""

    seconds: float
    last_success: float | None
    """Unix time."""
    error: str | None = None
    down: bool = False
    """Whether the whole GPU is down."""

    @property
    def success(self) -> bool:
        """Whether the last read succeeded."""
        return self.error is None


@dataclass(slots=True)
class OpenDevice:
    """An open device: schedule, errors and unpublished data."""

    device: Device
    ledger: GpuLedger
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    due_ns: dict[str, int] = field(default_factory=dict)
    read_ns: dict[str, int] = field(default_factory=dict)
    refusals: Refusals = field(default_factory=Refusals)
    forbidden: dict[str, str] = field(default_factory=dict)
    """Driver errors by collector without permission."""
    baseline_bytes: int | None = None
    """Memory in use without holders."""
    used_bytes: int | None = None
    """Memory in use at the last reading without a holder since."""
    readings: dict[type[Reading], tuple[int, Reading]] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    carry: Carry = field(default_factory=dict)
    """State of `split`."""
    unlisted: frozenset[int] = frozenset()
    """Pids with samples that were no holders."""
    meter: TenantMeter = field(init=False)

    def __post_init__(self) -> None:
        """Divide the time by the clock of the GPU's ring."""
        self.meter = TenantMeter(self.ledger.clock)

    def failure_text(self, error: DriverError | None) -> str | None:
        """The error message. Raises errors of the whole GPU."""
        if isinstance(error, GPU_WIDE_ERRORS):
            with suppress(Unsupported):
                self.device.check()
        return str(error) if error else None


class GpuReader:
    """Reads physical GPU `index` and its MIG instances."""

    def __init__(
        self,
        index: int,
        driver: Driver,
        collectors: Sequence[Collector],
        settings: Settings,
        watch: HostSampler | None = None,
    ) -> None:
        """`watch` attributes idle time; without it, no tick is published."""
        self.index = index
        self.event_error: str | None = None
        """Reason why error events are missing."""
        self.implausible: dict[str, int] = {}
        """Implausible values dropped, by collector."""
        self._watch = watch
        self._driver = driver
        self._throttle = LogThrottle(log)
        self._events_due_ns = 0
        self._counts_errors = any(collector.name == "xid" for collector in collectors)
        self._collectors = [collector for collector in collectors if collector.read]
        self._holder_collectors = [
            c for c in self._collectors if c.name in {"processes", "memory", "power"}
        ]
        """Collectors of holders, and of the energy to attribute when they change."""
        self._settings = settings
        self._tick_ns = self._interval_ns = int(settings.interval_seconds * 1e9)
        """Minimum and current interval between ticks."""
        self._on_demand = {
            c.name: c.every_ns or self._tick_ns
            for c in self._collectors
            if c.on_demand or not c.every_ns
        }
        """Maximum age at a scrape by collector."""
        self._deadline_ns = int(settings.deadline_seconds * 1e9)
        self._last_request = 0, 1
        """Time of the last scrape, and the interval before it, in ns."""
        self._has_ring = False
        self._sees_all_holders = (
            driver.about.sees_all_namespaces or in_hosts_pid_namespace(settings.procfs) is not False
        )
        self._ledgers: dict[str, GpuLedger] = {}
        self._opened: tuple[OpenDevice, ...] = ()
        self._answered = False
        """Whether a reading has succeeded since the last tick."""
        self._answered_ns = 0
        self._supports_check = False

    def snapshots(self, now_ns: int) -> tuple[GpuSnapshot, ...]:
        """The GPU and its MIG instances."""
        return tuple(opened.ledger.snapshot(now_ns) for opened in self._opened)

    def down_snapshots(self, now_ns: int) -> list[GpuSnapshot]:
        """The same while the GPU is down: totals without readings."""
        ledgers = [opened.ledger for opened in self._opened] or list(self._ledgers.values())
        unknown = GpuLedger(Identity(self.index, uuid=""), self._driver.system, self._tick_ns)
        return [ledger.down(now_ns) for ledger in ledgers or [unknown]]

    def outcomes(self) -> list[tuple[str, Outcome]]:
        """Outcomes by collector and device."""
        return [pair for opened in self._opened for pair in list(opened.outcomes.items())]

    @property
    def forbidden(self) -> dict[str, str]:
        """Driver errors of the physical GPU by collector without permission."""
        opened = self._opened
        return dict(opened[0].forbidden) if opened else {}

    def add_error(self, code: int) -> None:
        """Count an error event of the physical GPU."""
        for ledger in self._ledgers.values():
            if ledger.identity.parent_uuid is None:
                ledger.add_error(code)

    def open(self) -> None:
        """Open the devices; known ones keep their ledgers. Raises DriverError."""
        self.close()
        devices = self._driver.open(self.index)
        before = self._ledgers
        self._ledgers = {
            gpu.uuid: before.get(gpu.uuid) or GpuLedger(gpu, self._driver.system, self._tick_ns)
            for gpu in (device.identity for device in devices)
        }
        for uuid in before.keys() - self._ledgers.keys():
            self._throttle.evict(uuid)
            if self._watch is not None:
                self._watch.forget(uuid)
        self._opened = tuple(OpenDevice(d, self._ledgers[d.identity.uuid]) for d in devices)
        # `check` only: a GPU may support only rare calls.
        with suppress(DriverError):
            devices[0].check()
            self._supports_check = True

    def close(self) -> None:
        """Close the devices; the ledgers remain."""
        devices, self._opened = self._opened, ()
        for opened in devices:
            opened.device.close()

    def interval(self) -> float:
        """Seconds between ticks: four times the usual for a steady GPU."""
        usual = self._settings.interval_seconds
        if self._watch is None or not self._has_ring or len(self._opened) > 1:
            return usual
        ledger = self._opened[0].ledger
        feed = self._watch.feed(ledger.identity.uuid)
        # On an unallocated GPU, notice short-lived processes.
        if (
            feed is None
            or not feed.pace.is_steady
            or ledger.holders(time.monotonic_ns()) == frozenset()
        ):
            return usual
        longest = min(CADENCE.window_ns / 1e9, self._settings.deadline_seconds)
        return max(usual, min(4 * usual, longest))

    def follow_layout(self) -> None:
        """Reopen the GPU if its MIG instances have changed."""
        try:
            uuids = self._driver.instances(self.index)
        except DriverError as error:  # if only this fails, keep reading the rest
            log.debug("cannot list MIG instances", {"gpu": self.index, "err": error})
            return
        if uuids != tuple(opened.device.identity.uuid for opened in self._opened[1:]):
            log.info("MIG instances changed", {"gpu": self.index})
            self.open()

    def read(self) -> int:
        """Read due collectors; returns the monotonic end in ns. Raises DriverError."""
        self._watch_errors()
        self._interval_ns = int(self.interval() * 1e9)
        for opened in self._opened:
            self._tick(opened, self._collectors)
            if opened.due_ns.get("processes") == 0:
                self._tick(opened, self._holder_collectors)
        now_ns = time.monotonic_ns()
        self._raise_if_silent(now_ns)
        return now_ns

    def _tick(self, opened: OpenDevice, collectors: Sequence[Collector]) -> None:
        """Read due collectors; publish windows before the next call, which may hang."""
        opened.readings, opened.windows = {}, []
        try:
            for collector in collectors:
                due = time.monotonic_ns() >= opened.due_ns.get(collector.name, 0)
                if due and (collector.name != "tenants" or self._tenants(opened)):
                    self._collect(collector, opened)
                if opened.windows:
                    self._publish(opened)
        finally:
            self._publish(opened)

    def _publish(self, opened: OpenDevice) -> None:
        if self._watch is not None and opened.readings:
            tick = self._attributed(self._watch, opened)
            for note in (opened.ledger.note, *self._watch.subscribers):
                with self._throttle.guarded("publishing a tick", uuid=tick.gpu.uuid):
                    note(tick)
        opened.readings, opened.windows = {}, []

    def _attributed(self, watch: HostSampler, opened: OpenDevice) -> Tick:
        """The tick with idle time by `waiting_on`, unknown after an error."""
        gpu, now_ns, windows = opened.ledger.identity, time.monotonic_ns(), opened.windows
        holders = opened.ledger.holders(now_ns)
        if not windows:
            return Tick(gpu, now_ns, holders, opened.readings)
        engine = opened.ledger.engine_share(now_ns)
        holder_count, bucket = None if holders is None else len(holders), None
        stalls = split(windows, holder_count, None, engine=engine)
        if holders and stalls:
            with self._throttle.guarded("attributing idle time", uuid=gpu.uuid):
                start_ns = windows[0].end_ns - windows[0].duration_ns
                bucket = watch.explaining(gpu.uuid, start_ns, windows[-1].end_ns)
                stalls = split(windows, holder_count, bucket, opened.carry, engine)
        storage = by_file_system(stalls, bucket)
        tick = Tick(gpu, now_ns, holders, opened.readings, windows, stalls, storage)
        if names := self._tenants(opened):
            with self._throttle.guarded("dividing the time among tenants", uuid=gpu.uuid):
                tick = replace(tick, tenants=opened.meter.divide(tick, names, bucket, engine))
        return tick

    def _tenants(self, opened: OpenDevice) -> Mapping[int, str]:
        """Tenants by pid while a GPU is shared; none of a board with MIG instances."""
        if self._watch is None or (len(self._opened) > 1 and opened is self._opened[0]):
            return {}
        return self._watch.tenants(opened.ledger.identity.uuid)

    def _raise_if_silent(self, now_ns: int) -> None:
        """Raise DriverError if no reading has succeeded within the deadline."""
        silent = not self._answered and now_ns - self._answered_ns > self._deadline_ns
        if silent:
            try:
                self._opened[0].device.check()
                self._supports_check = True
            except Unsupported as error:
                if self._supports_check:
                    raise DeviceLost(str(error), error.remedy) from error
        if silent or self._answered:
            self._answered_ns = now_ns
        self._answered = False

    def request_holders(self, uuids: Collection[str]) -> bool:
        """Make the holders of its GPUs among `uuids` due; returns whether it has any."""
        mine = [opened for opened in self._opened if opened.ledger.identity.uuid in uuids]
        for opened in mine:
            opened.due_ns["processes"] = 0
        return bool(mine)

    def request_refresh(self, now_ns: int) -> bool:
        """Make outdated readings due; returns whether there are any. Thread-safe."""
        self._last_request = now_ns, max(now_ns - self._last_request[0], 1)
        old = [
            (opened, name)
            for opened in self._opened
            for name, interval_ns in self._on_demand.items()
            if now_ns - opened.read_ns.get(name, now_ns) >= interval_ns
        ]
        for opened, name in old:
            opened.due_ns[name] = 0
        return bool(old)

    def _before_request_ns(self, now_ns: int) -> int:
        """Time until the tick before the next expected scrape."""
        requested_ns, pause_ns = self._last_request  # one read: other threads write it
        ahead_ns = now_ns + self._tick_ns - requested_ns
        if ahead_ns > self._tick_ns + 2 * pause_ns:
            return CADENCE.cache_ttl_ns
        return pause_ns - ahead_ns % pause_ns + self._tick_ns // 2

    def _watch_errors(self) -> None:
        now = time.monotonic_ns()
        if not self._counts_errors or now < self._events_due_ns:
            return
        self.event_error = None
        try:
            self._driver.watch_errors(self.index)
        except DriverError as error:
            self.event_error = str(error)
            self._events_due_ns = now + CADENCE.rare_ns
        self._throttle.log_change(
            logging.WARNING,
            "error events",
            self.event_error,
            ERROR_EVENT_MESSAGES,
            gpu=self.index,
            event=self._driver.about.error_event,
            err=self.event_error,
        )

    def _count_implausible(self, collector: str, name: str, value: object) -> None:
        self.implausible[collector] = self.implausible.get(collector, 0) + 1
        if self._throttle.is_new(f"{collector} {name}", state=True):
            values = {"gpu": self.index, "collector": collector, "field": name}
            text = "implausible value from the driver: dropped and counted"
            log.warning(text, {**values, "value": f"{value!s:.40}"})

    def _collect(self, collector: Collector, opened: OpenDevice) -> None:
        began = time.monotonic_ns()
        name = collector.name
        if opened.refusals.stands(name):
            opened.read_ns.pop(name, None)
            return
        before = opened.outcomes.get(name)
        every_ns = collector.every_ns
        # Half a tick early, as ticks jitter.
        opened.due_ns[name] = began + every_ns - self._tick_ns // 2
        opened.read_ns[name] = began
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
        self._throttle.log_change(
            logging.WARNING,
            f"{opened.ledger.identity.uuid} {name}",
            error,
            ("collector failed", "collector works again"),
            gpu=self.index,
            collector=name,
            err=error,
        )
        seconds = (time.monotonic_ns() - began) / 1e9
        last_success = time.time() if error is None else before and before.last_success
        opened.outcomes[name] = Outcome(seconds, last_success, error)
        if collector.on_demand and error is None:
            wait_ns = min(self._before_request_ns(began), CADENCE.reading_intervals * every_ns)
            opened.due_ns[name] += max(wait_ns - every_ns, 0)

    def _read(self, collector: Collector, opened: OpenDevice) -> str | None:
        """Read; returns the error. Raises Unsupported and errors of the whole GPU."""
        assert collector.read is not None  # noqa: S101 - `__init__` selects those
        every_ns = collector.every_ns
        fresh_ns = self._interval_ns + max(self._deadline_ns, CADENCE.reading_intervals * every_ns)
        try:
            reading = collector.read(opened.device)
            if reading is None:  # a mean needs a second reading
                opened.due_ns[collector.name] = 0
            else:
                opened.refusals.answered(collector.name)
                opened.forbidden.pop(collector.name, None)
                before = self.implausible.get(collector.name)
                reading = self._plausible(collector, reading)
                self._record(opened, fresh_ns, reading)
                if before != self.implausible.get(collector.name) and is_void(reading):
                    return "only implausible values"
        except Unsupported:
            raise
        except DriverError as error:
            return opened.failure_text(error)
        except Exception as error:  # isolates collectors from each other
            log.debug(
                "collector failed", {"gpu": self.index, "collector": collector.name}, exc_info=True
            )
            return f"{type(error).__name__}: {error}"
        failure = opened.failure_text(opened.device.last_error)
        of_gpu = reading and not (isinstance(reading, Memory) and reading.of_machine)
        self._answered |= failure is None and bool(of_gpu)
        return failure

    def _plausible(self, collector: Collector, reading: Reading) -> Reading:
        reading = plausible(reading, partial(self._count_implausible, collector.name))
        if not isinstance(reading, Processes):
            return reading
        hidden = reading.others_hidden or not self._sees_all_holders
        reading = replace(reading, others_hidden=hidden)
        return without_bystanders(reading, self._settings.procfs, self._driver.about.daemons)

    def _record(self, opened: OpenDevice, fresh_ns: int, reading: Reading) -> None:
        now_ns = time.monotonic_ns()
        opened.readings[type(reading)] = now_ns, reading
        before = opened.ledger.holders(now_ns) if isinstance(reading, Processes) else None
        opened.windows += opened.ledger.add(now_ns, fresh_ns, reading)
        if isinstance(reading, Utilization):
            self._has_ring = bool(reading.gpu)
        if isinstance(reading, Video) and opened.ledger.engine_share(now_ns):
            opened.due_ns["video"] = 0  # an active engine explains idle time
        if isinstance(reading, Processes) and opened.ledger.holders(now_ns) != before:
            opened.due_ns["power"] = 0  # attribute energy to the previous holders
        if isinstance(reading, (Processes, Memory)):
            self._expect_holder(opened, reading)
        if isinstance(reading, ProcessUse):
            pids = frozenset(sample.pid for sample in reading.samples)
            unlisted = pids - (opened.ledger.holders(now_ns) or frozenset())
            if unlisted - opened.unlisted:  # new holders
                opened.due_ns["processes"] = 0
            opened.unlisted = unlisted

    def _expect_holder(self, opened: OpenDevice, reading: Processes | Memory) -> None:
        """Detect new holders by their memory, which is cheaper to read than processes.

        The baseline is read between two empty lists. Coherent memory, which the kernel uses, has
        none.
        """
        if opened.ledger.identity.coherent:
            return
        if opened.ledger.holders(time.monotonic_ns()) != frozenset():
            opened.used_bytes = None
            return
        opened.due_ns["memory"] = 0
        if isinstance(reading, Processes):
            opened.baseline_bytes = opened.used_bytes
        elif (used := reading.used_bytes) is not None:
            opened.used_bytes = used
            # Any context takes more than 16 MiB.
            if opened.baseline_bytes is None or used - opened.baseline_bytes >= 16 * 2**20:
                opened.due_ns["processes"] = 0
            else:
                opened.baseline_bytes = min(opened.baseline_bytes, used)
