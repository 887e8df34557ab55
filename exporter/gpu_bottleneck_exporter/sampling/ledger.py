"""The totals of one GPU, which survive failures, and its readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from gpu_bottleneck_exporter.accounting.bucket import N, add_up
from gpu_bottleneck_exporter.accounting.stall import FILE_SYSTEMS, REQUESTS, WAITING_ON
from gpu_bottleneck_exporter.accounting.tick import UNATTRIBUTED, R, TenantTime, Tick
from gpu_bottleneck_exporter.accounting.windows import (
    WINDOW_BUCKETS,
    ClockMap,
    Integrator,
    Window,
    WindowHistogram,
    sums,
)
from gpu_bottleneck_exporter.driver.readings import (
    Identity,
    Link,
    Processes,
    Reading,
    Ring,
    System,
    UnitActivity,
    Utilization,
    Video,
)
from gpu_bottleneck_exporter.feeders.snapshot import Feeding
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.workload.join import UNASSIGNED, Assigned

MAX_TENANTS = 8
"""Tenants of one GPU with series of their own."""
OTHER_TENANTS = "others"
"""Name of the rest."""
JOINT_TENANTS = frozenset({OTHER_TENANTS, UNATTRIBUTED})
"""Names of no single tenant."""
MIN_WORK_NS = 10_000_000_000
"""Minimum work of a productive start in ns, also of a server without requests: a job that crashes
early works less."""


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """Sums of a tenant since it first shared the GPU."""

    busy_ns: int = 0
    stall_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuTotals:
    """Sums since the exporter started. None: never measured."""

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
    engine_ns: Mapping[str, int] = field(default_factory=dict)
    stall_ns: Mapping[str, int] | None = None
    storage_ns: Mapping[str, int] = field(default_factory=dict)
    """Storage stalls by file system."""
    last_busy_ratio: float | None = None
    last_memory_ratio: float | None = None
    starts: int | None = None
    productive_starts: int | None = None
    """Starts with `MIN_WORK_NS` of work; None without busy time."""
    tenants: Mapping[str, TenantTotals] = field(default_factory=dict)
    """Sums by name, recent tenants included, while the GPU is shared."""


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """A GPU as of `at_ns` (monotonic), with fresh readings by type."""

    identity: Identity
    at_ns: int
    totals: GpuTotals
    readings: Mapping[type[object], object]
    errors: Mapping[int, int]
    system: System
    up: bool = True
    feeding: Feeding | None = None
    """None: unknown or outdated."""
    assigned: Assigned = UNASSIGNED
    most_lanes: int | None = None
    """Maximum number of PCIe lanes since the start."""
    unlisted_pids: tuple[int, ...] | None = None
    """Pids with its device open, if memory is in use without listed processes."""

    def stale(self) -> GpuSnapshot:
        """A copy without outdated data: readings and most totals."""
        return replace(self, totals=GpuTotals(lost_ns=self.totals.lost_ns), readings={})

    def reading(self, kind: type[R]) -> R | None:
        """The last reading of type `kind`; None if failed or stale."""
        reading = self.readings.get(kind)
        return reading if isinstance(reading, kind) else None


class _Sums(Generic[N]):
    """Sums by name, each with its expiry time."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[N, int]] = {}

    def add(self, until_ns: int, amounts: Mapping[str, N]) -> None:
        for name, amount in amounts.items():
            before, _ = self._sums.get(name, (0, 0))
            self._sums[name] = before + amount, until_ns

    def current(self, now_ns: int) -> dict[str, N]:
        return {name: total for name, (total, until) in self._sums.items() if now_ns <= until}


class Starts:
    """Counts job starts on one GPU, except of jobs older than the exporter.

    The previous job's initial processes must have exited.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        """None until processes are known."""
        self.productive = 0
        self._holders: frozenset[int] = frozenset()
        """Running initial processes of the current job."""
        self._worked_before_ns: int | None = None
        """Total work at the current start; None once productive."""

    def record_holders(self, pids: frozenset[int], worked_ns: int) -> None:
        """Record the holders at a total work of `worked_ns`."""
        self.record_work(worked_ns)
        if self.total is None:
            self.total, self._holders = 0, pids
            return
        self._holders &= pids
        if pids and not self._holders:
            self.total += 1
            self._holders, self._worked_before_ns = pids, worked_ns

    def record_work(self, worked_ns: int) -> None:
        """Record the total work, also after the job's exit."""
        before_ns = self._worked_before_ns
        if before_ns is not None and worked_ns - before_ns >= MIN_WORK_NS:
            self.productive += 1
            self._worked_before_ns = None


class _Tenants:
    """Sums of the tenants of one GPU: those that came first by name, the rest together."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[TenantTotals, int]] = {}
        """Sums by name, with the time of the last tick."""

    def add(self, now_ns: int, parts: Sequence[TenantTime]) -> None:
        self._totals = {
            name: (total, now_ns if name in JOINT_TENANTS else at)
            for name, (total, at) in self._recent(now_ns)
        }
        for part in parts:
            self._make_room(now_ns, part.name)
            named = self._totals.keys() - JOINT_TENANTS
            has_room = part.name in {*named, *JOINT_TENANTS} or len(named) < MAX_TENANTS
            name = part.name if has_room else OTHER_TENANTS
            total, _ = self._totals.get(name, (TenantTotals(), now_ns))
            stall_ns = dict(total.stall_ns)
            add_up(stall_ns, part.stalls)
            busy_ns = total.busy_ns + sum(part.busy_ns.values())
            self._totals[name] = TenantTotals(busy_ns, stall_ns), now_ns

    def _make_room(self, now_ns: int, name: str) -> None:
        """Drop the tenant that left first, if `name` needs its place and scrapes saw its end."""
        ends = {of: at for of, (_, at) in self._totals.items() if of not in JOINT_TENANTS}
        if name in self._totals or len(ends) < MAX_TENANTS:
            return
        first = min(ends, key=lambda of: ends[of])
        if ends[first] < now_ns - CADENCE.cache_ttl_ns:
            del self._totals[first]

    def current(self, now_ns: int) -> dict[str, TenantTotals]:
        return {name: total for name, (total, _) in self._recent(now_ns)}

    def _recent(self, now_ns: int) -> list[tuple[str, tuple[TenantTotals, int]]]:
        since_ns = now_ns - CADENCE.tenant_ns
        return [(name, entry) for name, entry in self._totals.items() if entry[1] > since_ns]


class GpuLedger:
    """The state of a GPU or MIG instance. Single writer: its worker."""

    def __init__(self, identity: Identity, system: System, tick_ns: int) -> None:
        self.identity = identity
        self._system = system
        self.errors: dict[int, int] = {}
        self._busy = Integrator(tick_ns)
        self._memory = Integrator(tick_ns)
        self._histogram = WindowHistogram()
        self._active_ns = _Sums[int]()
        self._pipe_ns = _Sums[int]()
        self._traffic_bytes = _Sums[float]()
        self._tick_ns = tick_ns
        self._engines: dict[str, Integrator] = {}
        self._idle_engines: dict[str, tuple[int, Ring]] = {}
        """Time and newest sample by idle engine."""
        self._engine_ns = _Sums[int]()
        self._engine_share: tuple[int, float] = (0, 0.0)
        """Expiry time and value of `engine_share`."""
        self._fresh_ns = 0
        """Lifetime of utilization readings."""
        self._readings: dict[type[object], tuple[int, Reading]] = {}
        self._last_busy: float | None = None
        self._last_memory: float | None = None
        self._samples_utilization = True
        self._stall_ns: dict[str, int] | None = None
        self._storage_ns: dict[str, int] = {}
        self._most_lanes: int | None = None
        self._starts = Starts()
        self._tenants = _Tenants()

    def add(self, now_ns: int, fresh_ns: int, reading: Reading) -> list[Window]:
        """Add a reading with a lifetime of `fresh_ns`; returns windows for `note`."""
        self._readings[type(reading)] = now_ns + fresh_ns, reading
        if isinstance(reading, Utilization):
            self._fresh_ns = fresh_ns
            return self._add_utilization(now_ns, reading)
        if isinstance(reading, Video):
            self._add_video(now_ns, fresh_ns, reading)
        if isinstance(reading, UnitActivity):
            if not self._samples_utilization:
                self._fresh_ns = fresh_ns
            return self._add_activity(now_ns, fresh_ns, reading)
        if isinstance(reading, Processes) and reading.count is not None:
            pids = frozenset(process.pid for process in reading.processes)
            self._starts.record_holders(pids, self._worked_ns())
        if isinstance(reading, Link) and reading.width is not None:
            self._most_lanes = max(reading.width, self._most_lanes or 0)
        return []

    def note(self, tick: Tick) -> None:
        """Add the idle time of the windows that `add` returned."""
        if not tick.windows:
            return
        if self._stall_ns is None:
            self._stall_ns = dict.fromkeys(WAITING_ON, 0)
        for wait, nanoseconds in tick.stalls.items():
            self._stall_ns[wait] += nanoseconds
        for place in FILE_SYSTEMS if tick.storage else ():
            self._storage_ns[place] = self._storage_ns.get(place, 0) + tick.storage.get(place, 0)
        if tick.tenants:
            self._tenants.add(tick.at_ns, tick.tenants)

    @property
    def clock(self) -> ClockMap:
        """The clock of the ring of busy time."""
        return self._busy.clock

    def holders(self, now_ns: int) -> frozenset[int] | None:
        """Pids of the holders; None: unreadable or hidden."""
        until_ns, reading = self._readings.get(Processes, (0, None))
        if not isinstance(reading, Processes) or now_ns > until_ns:
            return None
        if not reading.processes and reading.others_hidden:
            return None
        return frozenset(process.pid for process in reading.processes)

    def engine_share(self, now_ns: int) -> float:
        """Busy share (0-1) of the busiest video engine; 0 if stale."""
        until_ns, share = self._engine_share
        return share if now_ns <= until_ns else 0.0

    def without_utilization(self) -> None:
        """Take busy time from `UnitActivity` until the next `Utilization`."""
        self._samples_utilization = False

    def add_error(self, code: int) -> None:
        """Count one error event."""
        # Replaced, not mutated: rendering threads share it.
        self.errors = {**self.errors, code: self.errors.get(code, 0) + 1}

    def snapshot(self, now_ns: int) -> GpuSnapshot:
        """The state as of now."""
        fresh = {
            kind: reading
            for kind, (until_ns, reading) in self._readings.items()
            if now_ns <= until_ns
        }
        return GpuSnapshot(
            self.identity,
            now_ns,
            self._totals(now_ns),
            fresh,
            self.errors,
            self._system,
            most_lanes=self._most_lanes,
        )

    def down(self, now_ns: int) -> GpuSnapshot:
        """The state of an unresponsive GPU: identity and errors."""
        totals = GpuTotals(lost_ns=self._busy.lost_ns)  # summed over all GPUs
        return GpuSnapshot(self.identity, now_ns, totals, {}, self.errors, self._system, up=False)

    def _add_utilization(self, now_ns: int, reading: Utilization) -> list[Window]:
        self._samples_utilization = True
        busy = self._busy.ring(now_ns, reading.gpu, reading.gpu_percent)
        self._histogram.observe(busy)
        self._last_busy = _ratio(busy, reading.gpu, reading.gpu_percent)
        windows = self._memory.ring(now_ns, reading.memory, reading.memory_percent)
        self._last_memory = _ratio(windows, reading.memory, reading.memory_percent)
        return busy

    def _add_video(self, now_ns: int, fresh_ns: int, reading: Video) -> None:
        until_ns, shares = now_ns + fresh_ns, [0.0]
        for engine in sorted({*reading.rings, *reading.percents}):
            ring, percent = reading.rings.get(engine), reading.percents.get(engine)
            observed, active = sums(self._engine_windows(engine, now_ns, ring, percent))
            self._engine_ns.add(until_ns, {engine: active})
            shares.append(active / observed if observed else 0.0)
        self._engine_share = until_ns, max(shares)

    def _engine_windows(
        self, engine: str, now_ns: int, ring: Ring | None, percent: int | None
    ) -> list[Window]:
        """Windows of a video engine; none while idle, to save CPU."""
        if ring and len(ring) == 1 and ring[0].percent == 0:
            self._idle_engines[engine] = now_ns, ring
            return []
        integrator = self._engines.setdefault(engine, Integrator(self._tick_ns))
        if idle := self._idle_engines.pop(engine, None):
            integrator.ring(*idle, None)
        return integrator.ring(now_ns, ring, percent)

    def _is_current(self, integrator: Integrator, now_ns: int) -> bool:
        booked_ns = integrator.booked_at_ns
        wait_ns = max(self._fresh_ns, integrator.longest_wait_ns())
        return booked_ns is not None and now_ns - booked_ns <= wait_ns

    def _add_activity(self, now_ns: int, fresh_ns: int, reading: UnitActivity) -> list[Window]:
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
        until_ns = now_ns + fresh_ns
        self._active_ns.add(
            until_ns, {k: round(interval * r) for k, r in ratios.items() if r is not None}
        )
        self._pipe_ns.add(
            until_ns, {pipe: round(interval * ratio) for pipe, ratio in reading.pipes.items()}
        )
        self._traffic_bytes.add(until_ns, reading.traffic_bytes)
        return windows

    def _worked_ns(self) -> int:
        """Busy time and time of servers without requests."""
        return self._busy.active_ns + (self._stall_ns or {}).get(REQUESTS, 0)

    def _totals(self, now_ns: int) -> GpuTotals:
        """Totals without outdated ones, which would look like idleness."""
        busy, memory, starts = self._busy, self._memory, self._starts
        starts.record_work(self._worked_ns())
        measures_memory = self._is_current(memory, now_ns) and self._memory_is_measured()
        totals = GpuTotals(
            lost_ns=busy.lost_ns,
            memory_busy_ns=memory.active_ns if measures_memory else None,
            last_memory_ratio=self._last_memory if measures_memory else None,
            active_ns=self._active_ns.current(now_ns),
            pipe_ns=self._pipe_ns.current(now_ns),
            traffic_bytes=self._traffic_bytes.current(now_ns),
            engine_ns=self._engine_ns.current(now_ns),
            starts=starts.total,
            productive_starts=None
            if starts.total is None or not busy.observed_ns
            else starts.productive,
        )
        if not self._is_current(busy, now_ns):
            return totals
        counts = zip(WINDOW_BUCKETS, self._histogram.cumulative(), strict=True)
        return replace(
            totals,
            observed_ns=busy.observed_ns or None,
            unobserved_ns=busy.unobserved_ns,
            busy_ns=busy.active_ns,
            window_counts=tuple(counts) if busy.observed_ns else (),
            window_sum=self._histogram.sum,
            stall_ns=None if self._stall_ns is None else dict(self._stall_ns),
            storage_ns=dict(self._storage_ns),
            tenants=self._tenants.current(now_ns),
            last_busy_ratio=self._last_busy,
        )

    def _memory_is_measured(self) -> bool:
        # Unified memory always reports 0 %.
        memory = self._memory
        return memory.observed_ns > 0 and (memory.active_ns > 0 or self._busy.active_ns == 0)


def _ratio(windows: list[Window], ring: Ring | None, percent: int | None) -> float | None:
    """Busy share (0-1): from windows, else from the driver's single reading."""
    observed, active = sums(windows)
    if observed:
        return active / observed
    if ring or percent is None:
        return None
    return percent / 100
