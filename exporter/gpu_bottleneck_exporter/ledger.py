"""What is known of one GPU: running sums that outlive failures, and the last readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gpu_bottleneck_exporter.accounting import WINDOW_BUCKETS, Integrator, Window, WindowHistogram
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Identity,
    Processes,
    Reading,
    RingState,
    System,
    Utilization,
)
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.stall import WAITING_ON
from gpu_bottleneck_exporter.workload.join import NOTHING, Assigned

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the exporter started; nanoseconds, bytes, counts. None: never measured."""

    observed_ns: int | None = None
    unobserved_ns: int = 0
    lost_ns: int = 0
    busy_ns: int = 0
    memory_busy_ns: int | None = None
    window_counts: tuple[tuple[float, int], ...] = ()
    window_sum: float = 0.0
    active_ns: Mapping[str, int] = field(default_factory=dict)
    pipe_ns: Mapping[str, int] = field(default_factory=dict)
    traffic_bytes: Mapping[str, float] = field(default_factory=dict)
    stall_ns: Mapping[str, int] | None = None
    last_busy_ratio: float | None = None
    last_memory_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """One GPU as of `at_ns` (monotonic): immutable, so that a scrape can read it at leisure.

    `readings` holds those that are still fresh, by their type.
    """

    identity: Identity
    at_ns: int
    totals: Totals
    readings: Mapping[type[object], object]
    xids: Mapping[int, int]
    system: System
    up: bool = True
    feeding: Feeding | None = None
    """None while it is not known who feeds the GPU, or was not seen within the deadline."""
    assigned: Assigned = NOTHING

    def stale(self) -> GpuSnapshot:
        """What may still be said long after `at_ns`: that it was up, who it is, and its XIDs."""
        return replace(self, totals=Totals(lost_ns=self.totals.lost_ns), readings={})

    def reading(self, kind: type[R]) -> R | None:
        """The last reading of type `kind`, None when it failed or is stale."""
        found = self.readings.get(kind)
        return found if isinstance(found, kind) else None


_NO_UTILIZATION: Mapping[str, Any] = {
    "observed_ns": None,
    "unobserved_ns": 0,
    "busy_ns": 0,
    "window_counts": (),
    "window_sum": 0.0,
    "stall_ns": None,
    "last_busy_ratio": None,
}
_NO_MEMORY_UTILIZATION: Mapping[str, Any] = {"memory_busy_ns": None, "last_memory_ratio": None}


class GpuLedger:
    """The running state of one GPU or MIG instance; only its worker writes it."""

    def __init__(self, identity: Identity, system: System, tick_ns: int) -> None:
        self.identity = identity
        self._system = system
        self.xids: dict[int, int] = {}
        self._busy = Integrator(tick_ns)
        self._memory = Integrator(tick_ns)
        self._histogram = WindowHistogram()
        self._active_ns: dict[str, int] = {}
        self._pipe_ns: dict[str, int] = {}
        self._traffic_bytes: dict[str, float] = {}
        self._added_until_ns: dict[str, int] = {}
        """By SM figure, pipe and link: until when its sum is current."""
        self._fresh_ns = 0
        """For how long a reading of utilization is."""
        self._readings: dict[type[object], tuple[int, Reading]] = {}
        self._last_busy: float | None = None
        self._last_memory: float | None = None
        self._samples_utilization = True
        self._stall_ns: dict[str, int] | None = None

    def add(self, now_ns: int, fresh_ns: int, reading: Reading) -> list[Window]:
        """Take a reading in; it stays fresh for `fresh_ns`.

        Returns the windows of utilization that it accounted, for `add_stall`.
        """
        self._readings[type(reading)] = now_ns + fresh_ns, reading
        if isinstance(reading, Utilization):
            self._fresh_ns = fresh_ns
            return self._add_utilization(now_ns, reading)
        if isinstance(reading, Activity):
            if not self._samples_utilization:
                self._fresh_ns = fresh_ns
            return self._add_activity(now_ns, fresh_ns, reading)
        return []

    def add_stall(self, parts: Mapping[str, int]) -> None:
        """Book the idle nanoseconds of the windows that `add` returned, by what they waited on."""
        if self._stall_ns is None:
            self._stall_ns = dict.fromkeys(WAITING_ON, 0)
        for cause, nanoseconds in parts.items():
            self._stall_ns[cause] += nanoseconds

    def holders(self, now_ns: int) -> frozenset[int] | None:
        """Processes that hold the GPU; None where they cannot be read, or none may be some."""
        until_ns, reading = self._readings.get(Processes, (0, None))
        if not isinstance(reading, Processes) or now_ns > until_ns:
            return None
        if not reading.processes and reading.others_hidden:
            return None
        return frozenset(process.pid for process in reading.processes)

    def without_utilization(self) -> None:
        """The driver samples no utilization here (MIG): busy time comes from `Activity`.

        Until a reading of `Utilization` comes: one source at a time.
        """
        self._samples_utilization = False

    def add_xid(self, code: int) -> None:
        """Count one XID."""
        # Replaced, not changed: snapshots share it with threads that render.
        self.xids = {**self.xids, code: self.xids.get(code, 0) + 1}

    def snapshot(self, now_ns: int) -> GpuSnapshot:
        """The state as of now."""
        fresh = {
            kind: reading
            for kind, (until_ns, reading) in self._readings.items()
            if now_ns <= until_ns
        }
        totals = self._totals(now_ns)
        # Sums that stand still would say that the GPU idles.
        if not self._is_current(self._busy, now_ns):
            totals = replace(totals, **_NO_UTILIZATION)
        if not self._is_current(self._memory, now_ns):
            totals = replace(totals, **_NO_MEMORY_UTILIZATION)
        return GpuSnapshot(
            identity=self.identity,
            at_ns=now_ns,
            totals=totals,
            readings=fresh,
            xids=self.xids,
            system=self._system,
        )

    def down(self, now_ns: int) -> GpuSnapshot:
        """What may still be said of a GPU that does not answer: who it is, and its XIDs."""
        totals = Totals(lost_ns=self._busy.lost_ns)  # part of a sum over all GPUs
        return GpuSnapshot(self.identity, now_ns, totals, {}, self.xids, self._system, up=False)

    def _add_utilization(self, now_ns: int, reading: Utilization) -> list[Window]:
        self._samples_utilization = True
        busy = self._busy.ring(now_ns, reading.gpu, reading.gpu_percent)
        self._histogram.observe(busy)
        self._last_busy = _ratio(busy, reading.gpu.state, reading.gpu_percent)
        windows = self._memory.ring(now_ns, reading.memory, reading.memory_percent)
        self._last_memory = _ratio(windows, reading.memory.state, reading.memory_percent)
        return busy

    def _is_current(self, integrator: Integrator, now_ns: int) -> bool:
        booked_ns = integrator.booked_at_ns
        wait_ns = max(self._fresh_ns, integrator.longest_wait_ns())
        return booked_ns is not None and now_ns - booked_ns <= wait_ns

    def _add_activity(self, now_ns: int, fresh_ns: int, reading: Activity) -> list[Window]:
        interval = reading.interval_ns
        windows: list[Window] = []
        if not self._samples_utilization and reading.graphics is not None:
            windows = self._busy.mean(now_ns, interval, reading.graphics)
            self._histogram.observe(windows)
            self._last_busy = reading.graphics
        ratios = {
            "sm": reading.sm_active,
            "occupancy": reading.sm_occupancy,
            "dram": reading.dram_active,
        }
        for name, ratio in ratios.items():
            if ratio is not None:
                self._active_ns[name] = self._active_ns.get(name, 0) + round(interval * ratio)
        for pipe, ratio in reading.pipes.items():
            self._pipe_ns[pipe] = self._pipe_ns.get(pipe, 0) + round(interval * ratio)
        for link, amount in reading.traffic_bytes.items():
            self._traffic_bytes[link] = self._traffic_bytes.get(link, 0.0) + amount
        added = (name for name, ratio in ratios.items() if ratio is not None)
        until_ns = now_ns + fresh_ns
        self._added_until_ns |= dict.fromkeys(
            (*added, *reading.pipes, *reading.traffic_bytes), until_ns
        )
        return windows

    def _totals(self, now_ns: int) -> Totals:
        current = {name for name, until_ns in self._added_until_ns.items() if now_ns <= until_ns}
        measured = self._busy.observed_ns > 0
        return Totals(
            observed_ns=self._busy.observed_ns if measured else None,
            unobserved_ns=self._busy.unobserved_ns,
            lost_ns=self._busy.lost_ns,
            busy_ns=self._busy.active_ns,
            memory_busy_ns=self._memory.active_ns if self._memory_is_measured() else None,
            window_counts=tuple(
                zip(WINDOW_BUCKETS, self._histogram.cumulative(), strict=True) if measured else ()
            ),
            window_sum=self._histogram.sum,
            active_ns={name: ns for name, ns in self._active_ns.items() if name in current},
            pipe_ns={name: ns for name, ns in self._pipe_ns.items() if name in current},
            traffic_bytes={k: v for k, v in self._traffic_bytes.items() if k in current},
            stall_ns=None if self._stall_ns is None else dict(self._stall_ns),
            last_busy_ratio=self._last_busy,
            last_memory_ratio=self._last_memory if self._memory_is_measured() else None,
        )

    def _memory_is_measured(self) -> bool:
        # Unified-memory parts answer 0 % whatever runs. Zero is believed while no
        # kernel ran; a GPU that worked without ever touching its memory is not.
        memory = self._memory
        return memory.observed_ns > 0 and (memory.active_ns > 0 or self._busy.active_ns == 0)


def _ratio(windows: list[Window], state: RingState, percent: int | None) -> float | None:
    """Busy share of the tick: of its windows, else the driver's single reading."""
    observed = sum(window.duration_ns for window in windows)
    if observed:
        return sum(window.active_ns for window in windows) / observed
    if state is RingState.SAMPLES or percent is None:
        return None
    return percent / 100
