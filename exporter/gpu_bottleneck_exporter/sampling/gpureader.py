"""Reads one physical GPU and its MIG instances into their ledgers, in the GPU's own thread.

Knows which collectors are due, and keeps what goes wrong with one of them from the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.bucket import WINDOW_NS
from gpu_bottleneck_exporter.accounting.stall import Carry, by_file_system, split
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
from gpu_bottleneck_exporter.schedule import LONG_NS, SELDOM_NS
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import without_bystanders

log = logging.getLogger(__name__)

ERROR_EVENTS = "error events cannot be counted", "error events are reported again"
"""Messages about a driver that does not report them, and one that does again."""
_SLOW_READINGS_KEPT = 3
"""Times their interval: one may fail, and the next one come late."""
_STEADY_TICKS = 4
"""As many usual ones, at most, pass between two readings of a GPU that goes on as before."""
_OF_HOLDERS = ("processes", "memory", "power")
"""Collectors that report who holds a GPU, and the energy to charge when that changes."""
_CONTEXT_BYTES = 16 * 2**20
"""Less than any context takes."""
STEADY_TICK_SECONDS = WINDOW_NS / 1e9
"""Also at most, unless somebody asks: its ring holds 10 s; its feeders are judged over as much."""


class Outcome(NamedTuple):
    """The last result of a collector on one GPU or MIG instance."""

    seconds: float
    """Time the last read took."""
    last_success: float | None
    """Unix time of the last read that succeeded."""
    error: str | None = None
    down: bool = False
    """Whether it failed with the whole GPU, and not by itself."""

    @property
    def success(self) -> bool:
        """Whether nothing went wrong."""
        return self.error is None


@dataclass(slots=True)
class Opened:
    """A device under observation: what is due when, and what it does not have."""

    device: Device
    ledger: GpuLedger
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    due_ns: dict[str, int] = field(default_factory=dict)
    read_ns: dict[str, int] = field(default_factory=dict)
    """When each collector was last read, by name."""
    refusals: Refusals = field(default_factory=Refusals)
    """By the collectors' names."""
    forbidden: dict[str, str] = field(default_factory=dict)
    """By collector that wants a permission: what the driver said."""
    free_bytes: int | None = None
    """The least memory that was in use while nobody held it; None until that is certain."""
    used_bytes: int | None = None
    """In use when it was read last; None if somebody has held it since."""
    readings: dict[type[Reading], tuple[int, Reading]] = field(default_factory=dict)
    windows: list[Window] = field(default_factory=list)
    """What was read and is not published yet, and the time that it covers."""
    carry: Carry = field(default_factory=dict)
    """What the split of idle time keeps from tick to tick."""

    def what_failed(self, error: DriverError | None) -> str | None:
        """What went wrong with one reading, in words; raises what concerns the whole GPU."""
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
        """`watch` says what the holders did, and who learns of ticks; without it, nobody does."""
        self.index = index
        self.event_trouble: str | None = None
        """Why the GPU does not report its error events though it should."""
        self.implausible: dict[str, int] = {}
        """Implausible values that were dropped, by collector."""
        self._watch = watch
        self._driver = driver
        self._throttle = LogThrottle(log)
        self._events_due_ns = 0
        self._counts_errors = any(collector.name == "xid" for collector in collectors)
        self._collectors = [collector for collector in collectors if collector.read]
        self._of_holders = [c for c in self._collectors if c.name in _OF_HOLDERS]
        self._settings = settings
        self._tick_ns = self._interval_ns = int(settings.interval_seconds * 1e9)
        """The shortest time between two ticks, and the one after this tick."""
        self._on_demand = {
            c.name: int(c.every_seconds * 1e9) or self._tick_ns
            for c in self._collectors
            if c.on_demand or not c.every_seconds
        }
        """Interval of readings by collector, if somebody asks."""
        self._deadline_ns = int(settings.deadline_seconds * 1e9)
        self._asked = 0, 1
        """Monotonic time of the last request by `ask`, and the time between the last two."""
        self._has_ring = False
        """Whether the driver keeps what it did between two ticks."""
        self._sees_all_holders = (
            driver.about.sees_all_namespaces or in_hosts_pid_namespace(settings.procfs) is not False
        )
        self._ledgers: dict[str, GpuLedger] = {}
        self._opened: tuple[Opened, ...] = ()
        self._answered = False
        """Whether a reading has succeeded since the last tick."""
        self._answered_ns = 0
        """Monotonic time of the last answer."""
        self._has_basics = False
        """Whether the GPU has ever answered one of the simplest calls."""

    def snapshots(self, now_ns: int) -> tuple[GpuSnapshot, ...]:
        """The GPU and its MIG instances as of the last readings."""
        return tuple(opened.ledger.snapshot(now_ns) for opened in self._opened)

    def down_snapshots(self, now_ns: int) -> list[GpuSnapshot]:
        """The same while the GPU is down: what was counted stays, what was read is unknown."""
        ledgers = [opened.ledger for opened in self._opened] or list(self._ledgers.values())
        unknown = GpuLedger(Identity(self.index, uuid=""), self._driver.system, self._tick_ns)
        return [ledger.down(now_ns) for ledger in ledgers or [unknown]]

    def outcomes(self) -> list[tuple[str, Outcome]]:
        """The last result of each collector on each device it is supported on."""
        return [pair for opened in self._opened for pair in list(opened.outcomes.items())]

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

    def open(self) -> None:
        """Open the GPU and its instances; ledgers of those known go on. Raises DriverError."""
        self.close()
        devices = self._driver.open(self.index)
        before = self._ledgers
        self._ledgers = {
            who.uuid: before.get(who.uuid) or GpuLedger(who, self._driver.system, self._tick_ns)
            for who in (device.identity for device in devices)
        }
        for uuid in before.keys() - self._ledgers.keys():
            self._throttle.evict(uuid)
            if self._watch is not None:
                self._watch.forget(uuid)
        self._opened = tuple(Opened(d, self._ledgers[d.identity.uuid]) for d in devices)
        # Other calls do not count: a GPU may answer nothing but those that are due every 10 s.
        with suppress(DriverError):
            devices[0].check()
            self._has_basics = True

    def close(self) -> None:
        """Close them; the ledgers stay."""
        opened, self._opened = self._opened, ()
        for one in opened:
            one.device.close()

    def interval(self) -> float:
        """Seconds between two ticks; more for a GPU that goes on as before.

        Nothing is lost: the driver's ring holds what it did meanwhile.
        """
        usual = self._settings.interval_seconds
        if self._watch is None or not self._has_ring or len(self._opened) > 1:
            return usual
        ledger = self._opened[0].ledger
        feed = self._watch.feed(ledger.identity.uuid)
        # Who comes to a GPU that nobody holds must be noticed before he has left again.
        if (
            feed is None
            or not feed.pace.lasts
            or ledger.holders(time.monotonic_ns()) == frozenset()
        ):
            return usual
        longest = min(STEADY_TICK_SECONDS, self._settings.deadline_seconds)
        return max(usual, min(_STEADY_TICKS * usual, longest))

    def follow_layout(self) -> None:
        """Open the GPU anew if its MIG instances are others now."""
        known = tuple(o.device.identity.uuid for o in self._opened[1:])
        try:
            found = self._driver.instances(self.index)
        except DriverError as error:  # if only this fails, keep reading the rest
            log.debug("cannot list MIG instances", {"gpu": self.index, "err": error})
            return
        if found != known:
            log.info("MIG instances changed", {"gpu": self.index})
            self.open()

    def read(self) -> int:
        """Read what is due; returns the monotonic ns of its end. Raises DriverError."""
        self._watch_errors()
        self._interval_ns = int(self.interval() * 1e9)
        for opened in self._opened:
            self._tick(opened, self._collectors)
            if opened.due_ns.get("processes") == 0:
                self._tick(opened, self._of_holders)
        now_ns = time.monotonic_ns()
        self._raise_if_silent(now_ns)
        return now_ns

    def _tick(self, opened: Opened, collectors: Sequence[Collector]) -> None:
        """Read what is due and integrate it; then explain, split and publish it.

        Time is published at once, as what is read next may hang. Whatever fails, what was read
        until then is published.
        """
        opened.readings, opened.windows = {}, []
        try:
            for collector in collectors:
                if time.monotonic_ns() >= opened.due_ns.get(collector.name, 0):
                    self._collect(collector, opened)
                if opened.windows:
                    self._publish(opened)
        finally:
            self._publish(opened)

    def _publish(self, opened: Opened) -> None:
        """Tell what was read since the last call."""
        if self._watch is not None and opened.readings:
            tick = self._explained(self._watch, opened)
            for note in (opened.ledger.note, *self._watch.subscribers):
                with self._throttle.guarded("noting a tick", uuid=tick.gpu.uuid):
                    note(tick)
        opened.readings, opened.windows = {}, []

    def _explained(self, watch: HostSampler, opened: Opened) -> Tick:
        """The tick, with its idle time by `waiting_on`. Whatever fails, all of it is unknown."""
        gpu, now_ns, windows = opened.ledger.identity, time.monotonic_ns(), opened.windows
        holders = opened.ledger.holders(now_ns)
        if not windows:
            return Tick(gpu, now_ns, holders, opened.readings)
        engine = opened.ledger.engine_share(now_ns)
        known, did = None if holders is None else len(holders), None
        stalls = split(windows, known, None, engine=engine)
        if holders and stalls:  # else there is nothing to explain, or nobody is there
            with self._throttle.guarded("explaining the idle time", uuid=gpu.uuid):
                start_ns = windows[0].end_ns - windows[0].duration_ns
                did = watch.explaining(gpu.uuid, start_ns, windows[-1].end_ns)
                stalls = split(windows, known, did, opened.carry, engine)
        storage = by_file_system(stalls, did)
        return Tick(gpu, now_ns, holders, opened.readings, windows, stalls, storage)

    def _raise_if_silent(self, now_ns: int) -> None:
        """Raise the driver's error if the GPU has answered nothing within the deadline."""
        silent = not self._answered and now_ns - self._answered_ns > self._deadline_ns
        if silent:
            try:
                self._opened[0].device.check()
                self._has_basics = True
            except Unsupported as error:
                if self._has_basics:
                    raise DeviceLost(str(error), error.remedy) from error
        if silent or self._answered:
            self._answered_ns = now_ns
        self._answered = False

    def look(self, uuids: Collection[str]) -> bool:
        """Have the holders of these GPUs read at the next tick; whether it has one of them."""
        mine = [one for one in self._opened if one.ledger.identity.uuid in uuids]
        for opened in mine:
            opened.due_ns["processes"] = 0
        return bool(mine)

    def ask(self, now_ns: int) -> bool:
        """Have readings on demand that are older than their interval read at the next tick.

        Returns whether there are any. For any thread.
        """
        self._asked = now_ns, max(now_ns - self._asked[0], 1)
        old = [
            (opened, name)
            for opened in self._opened
            for name, interval_ns in self._on_demand.items()
            if now_ns - opened.read_ns.get(name, now_ns) >= interval_ns
        ]
        for opened, name in old:
            opened.due_ns[name] = 0
        return bool(old)

    def _unasked_ns(self, now_ns: int) -> int:
        """Time until a tick before the next request that is a tick ahead; long without one."""
        asked_ns, pause_ns = self._asked  # at once: other threads ask
        ahead_ns = now_ns + self._tick_ns - asked_ns
        if ahead_ns > self._tick_ns + 2 * pause_ns:
            return LONG_NS
        return pause_ns - ahead_ns % pause_ns + self._tick_ns // 2

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
        self._throttle.log_change(
            logging.WARNING,
            "error events",
            self.event_trouble,
            ERROR_EVENTS,
            gpu=self.index,
            event=self._driver.about.error_event,
            err=self.event_trouble,
        )

    def _count_implausible(self, collector: str, name: str, value: object) -> None:
        """Count a value that cannot be; say so for the first of its kind."""
        self.implausible[collector] = self.implausible.get(collector, 0) + 1
        if self._throttle.is_new(f"{collector} {name}", state=True):
            values = {"gpu": self.index, "collector": collector, "field": name}
            text = "impossible value of the driver: dropped and counted"
            log.warning(text, {**values, "value": f"{value!s:.40}"})

    def _collect(self, collector: Collector, opened: Opened) -> None:
        began = time.monotonic_ns()
        name = collector.name
        if opened.refusals.stands(name):
            opened.read_ns.pop(name, None)
            return
        before = opened.outcomes.get(name)
        every_ns = int(collector.every_seconds * 1e9)
        if collector.on_demand and (before is None or before.success):
            unasked_ns = min(self._unasked_ns(began), _SLOW_READINGS_KEPT * every_ns)
            every_ns = max(every_ns, unasked_ns)
        # Half a tick early, or a tick that comes a little sooner would skip this collector.
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

    def _read(self, collector: Collector, opened: Opened) -> str | None:
        """Read and book; returns what went wrong.

        Raises Unsupported, or what concerns the whole GPU.
        """
        assert collector.read is not None  # noqa: S101 - `__init__` kept only those
        kept = max(self._deadline_ns, int(collector.every_seconds * 1e9) * _SLOW_READINGS_KEPT)
        fresh_ns = self._interval_ns + kept
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
            log.debug(
                "collector failed", {"gpu": self.index, "collector": collector.name}, exc_info=True
            )
            return f"{type(error).__name__}: {error}"
        trouble = opened.what_failed(opened.device.last_error)
        of_gpu = reading and not (isinstance(reading, Memory) and reading.of_machine)
        self._answered |= trouble is None and bool(of_gpu)
        return trouble

    def _plausible(self, collector: Collector, reading: Reading) -> Reading:
        reading = plausible(reading, partial(self._count_implausible, collector.name))
        if not isinstance(reading, Processes):
            return reading
        hidden = reading.others_hidden or not self._sees_all_holders
        reading = replace(reading, others_hidden=hidden)
        return without_bystanders(reading, self._settings.procfs, self._driver.about.daemons)

    def _book(self, opened: Opened, fresh_ns: int, reading: Reading) -> None:
        now_ns = time.monotonic_ns()
        opened.readings[type(reading)] = now_ns, reading
        before = opened.ledger.holders(now_ns) if isinstance(reading, Processes) else None
        opened.windows += opened.ledger.add(now_ns, fresh_ns, reading)
        if isinstance(reading, Utilization):
            self._has_ring = bool(reading.gpu)
        if isinstance(reading, Video) and opened.ledger.engine_share(now_ns):
            opened.due_ns["video"] = 0  # at each tick while an engine works: it explains idle time
        if isinstance(reading, Processes) and opened.ledger.holders(now_ns) != before:
            opened.due_ns["power"] = 0  # the energy so far is that of the holders before
        if isinstance(reading, (Processes, Memory)):
            self._expect_holder(opened, reading)

    def _expect_holder(self, opened: Opened, reading: Processes | Memory) -> None:
        """Look at the memory of a GPU that nobody holds at each tick: a context takes some.

        That is cheap, unlike the list of processes, which is read again at once. What is in use
        without anybody was read between two lists that are empty: a holder who came after the
        first one is in the second. Not where the kernel uses the memory, too.
        """
        if opened.ledger.identity.coherent:
            return
        if opened.ledger.holders(time.monotonic_ns()) != frozenset():
            opened.used_bytes = None
            return
        opened.due_ns["memory"] = 0
        if isinstance(reading, Processes):
            opened.free_bytes = opened.used_bytes
        elif (used := reading.used_bytes) is not None:
            opened.used_bytes = used
            if opened.free_bytes is None or used - opened.free_bytes >= _CONTEXT_BYTES:
                opened.due_ns["processes"] = 0
            else:
                opened.free_bytes = min(opened.free_bytes, used)
