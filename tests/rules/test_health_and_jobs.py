"""What is wrong with the GPU itself, what nobody uses, and jobs that do not start or move.

Each row is a GPU on a node of its own and what is told of it, minute by minute. promtool names
the node in what it says of a failure: that is the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rules.fleet import (
    FILES,
    GROUPS,
    JOB,
    RULES,
    STALE,
    WAITING_ON,
    Fleet,
    Gpu,
    Signal,
    add_gpu,
    nodes,
)

MINUTES = 90
LONG_MINUTES = 200
USUAL = (20, 45, 75)
"""Asked at these minutes, it is no matter of one minute more or less."""
APPLICATION_XIDS = ("13", "31", "43", "45", "63", "92")
HOST_BOUND = "GpuHostLoopBound/warning"
EXPORTER_DOWN = "GpuExporterDown/warning"
LOST = "GpuTelemetryLost/warning"
FAULT = "GpuFault/critical"
CONTAINED = "GpuFault/warning"
SLOWDOWN = "GpuHardwareSlowdown/warning"
HOT = "GpuThermalThrottle/warning"
WARM = "GpuThermalThrottle/info"
CAPPED = "GpuPowerCapped/info"
LIMITED = "GpuClockLimited/warning"
LINK = "GpuPcieLinkDegraded/warning"
STARTING = "GpuStartupStall/info"
NOT_STARTING = "GpuStartupStall/warning"
NEVER_USED = "GpuAllocatedNeverUsed/warning"
INTERACTIVE = "GpuInteractiveSession/info"
IDLE = "GpuAllocatedIdle/info"
IDLE_LONG = "GpuAllocatedIdle/warning"
STALLED = "GpuJobStalled/warning"
UNASKED = "GpuWaitsForRequests/info"
PARTLY_IDLE = "GpuUnderused/info"
LOOPING = "GpuRestartLoop/warning"
UNEXPLAINED = "GpuUnexplainedLowUtilization/warning"
FEEDERS = frozenset(
    "gpu_feeder_" + name
    for name in (
        "age_seconds",
        "interactive",
        "processes",
        "cpu_seconds_total",
        "read_bytes_total",
        "written_bytes_total",
        "network_receive_bytes_total",
        "network_transmit_bytes_total",
        "worker_starts_total",
        "throttled_seconds_total",
        "cpus_allowed",
        "shm_size_bytes",
        "shm_used_bytes",
    )
)
BUSY = frozenset({"gpu_busy_seconds_total", "gpu_observed_seconds_total"})
STALLS = frozenset({"gpu_stall_seconds_total"})


@dataclass(frozen=True, slots=True)
class At:
    """What is told of the GPU at this minute: its primary cause, and what fires."""

    minute: float
    cause: str | None
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One GPU, and what is told of it."""

    name: str
    gpu: Gpu
    told: tuple[At, ...]
    unscraped: tuple[int, int] | None = None
    """Minutes between which the exporter does not answer."""
    unknown_until: int = 0
    """Minute at which Prometheus begins to scrape it."""

    @property
    def takes_its_time(self) -> bool:
        """Evaluated half as often."""
        return not self.unscraped and {told.minute for told in self.told} <= set(USUAL)


def case(name: str, gpu: Gpu, *told: At, unscraped: tuple[int, int] | None = None) -> Case:
    return Case(name, gpu, told, unscraped)


def quiet(name: str, gpu: Gpu, *minutes: float) -> Case:
    """Nothing is told, at no time."""
    return Case(name, gpu, tuple(At(minute, None) for minute in minutes or USUAL))


def at(minute: float, cause: str | None, *alerts: str) -> At:
    return At(minute, cause, alerts)


def lean(**changes: object) -> Gpu:
    """A busy GPU without what these causes do not ask for: the test takes half as long."""
    little: dict[str, object] = {
        "sm": None,
        "occupancy": None,
        "dram": None,
        "pipes": None,
        "memory_controller": None,
        "nvlink_bytes": None,
        "feeders": "stalls" in changes,
    }
    return replace(Gpu(), **{**little, **changes})  # type: ignore[arg-type]


def idle(**changes: object) -> Gpu:
    """Held, and nothing moves."""
    still: dict[str, object] = {
        "busy": 0.0,
        "power_watts": None,
        "clock": None,
        "pcie_bytes": 0.0,
        "feeders": True,
        "worker_cpu": 0.0,
        "main_cpu": 0.0,
        "worker_read_bytes": 0.0,
        "main_written_bytes": 0.0,
        "network_bytes": 0.0,
    }
    return lean(**{**still, **changes})


def free(**changes: object) -> Gpu:
    """Nobody holds it."""
    nobody: dict[str, object] = {
        "processes": 0,
        "memory": 0.0,
        "stalls": {"unallocated": 1.0},
        "missing": FEEDERS,
    }
    return idle(**{**nobody, **changes})


def pod(uid: str) -> Mapping[str, str]:
    """Its owner: GPUs with the same one would be of one job."""
    return {"pod_uid": uid, "user": "ann"}


def after(minute: int, value: float, before: float = 0.0) -> list[tuple[int, float]]:
    """From this minute on another value."""
    return [(minute, before), (LONG_MINUTES, value)]


def born(minute: int, value: float = 1.0) -> list[tuple[int, float | None]]:
    """A series that is not there before this minute."""
    return [(minute, None), (LONG_MINUTES, value)]


def ages(*starts: int) -> list[tuple[int, float]]:
    """The age of jobs of which one starts at each of these minutes, an old one before."""

    def age(minute: int) -> float:
        return 60.0 * (minute - max((s for s in starts if s <= minute), default=-120))

    return [(1, age(minute)) for minute in range(LONG_MINUTES)]


def stops(minute: int, busy: float = 0.95, **changes: object) -> Gpu:
    """Worked until this minute; since then everything of it sleeps."""
    return idle(**{"busy": after(minute, 0.0, busy), **changes})


def compiling(**changes: object) -> Gpu:
    """A job that begins with four workers which burn CPU, and a GPU that is used now and then."""
    burning = {"busy": 0.1, "stalls": {"worker_cpu": 0.9}, "worker_cpu": 3.9, "workers": 4}
    still = {"pcie_bytes": 2e6, "worker_read_bytes": 0.0, "age_seconds": ages(0)}
    return lean(**{"feeders": True, "host_cpus": 32, **burning, **still, **changes})


def serves(busy: Signal, *, age_seconds: Signal | None = None, **changes: object) -> Gpu:
    """A server: shares of all time by what it waits on, and other changes."""
    waits = {on: changes.pop(on) for on in WAITING_ON if on in changes}
    return idle(busy=busy, stalls=waits, age_seconds=age_seconds, **changes)


TELEMETRY = (
    case(
        "does not answer",
        lean(up=after(30, 0, 1), busy=[(30, 0.98), (1, STALE), (60, None)]),
        at(29, None),
        at(35, "telemetry_lost"),
        at(36, "telemetry_lost", LOST),
        at(75, "telemetry_lost", LOST),
    ),
    case(
        "does not answer while a stuck driver repeats its last readings",
        lean(up=after(30, 0, 1), busy=0.2, stalls={"host_code": 0.8}),
        at(29, "host_loop_bound", HOST_BOUND),
        at(55, "telemetry_lost", LOST),
    ),
    quiet("does not answer for four minutes", lean(up=[(30, 1), (4, 0), (60, 1)]), 36, 40, 75),
    case(
        "answers again",
        lean(up=[(30, 1), (20, 0), (60, 1)]),
        at(49, "telemetry_lost", LOST),
        at(59, None, LOST),
        at(61, None),
    ),
    quiet("does not say whether it is up", lean(missing=frozenset({"gpu_up"}))),
    case(
        "does not answer and scrapes fail for three minutes",
        lean(up=after(30, 0, 1)),
        at(52, None, LOST),
        at(56, "telemetry_lost", LOST),
        unscraped=(50, 53),
    ),
    case(
        "exporter down",
        lean(),
        at(39, None),
        at(42, None, EXPORTER_DOWN),
        at(75, None, EXPORTER_DOWN),
        unscraped=(30, 91),
    ),
    case("exporter down for eight minutes", lean(), at(39, None), at(75, None), unscraped=(30, 38)),
    quiet("exporter restarted", lean(reset_at=45), 44, 46, 50, 75),
)

FAULTS = (
    case(
        "XID born",
        lean(xids={"79": born(40)}),
        at(41, "gpu_fault"),
        at(43, "gpu_fault", FAULT),
        at(49, "gpu_fault", FAULT),
        at(55, None, FAULT),
        at(79, None, FAULT),
        at(83, None),
    ),
    case(
        "same XID twice",
        lean(xids={"48": after(40, 2, 1)}),
        at(39, None),
        at(43, "gpu_fault", FAULT),
    ),
    case(
        "new XID beside an old one",
        lean(xids={"48": 3, "64": born(40)}),
        at(39, None),
        at(44, "gpu_fault", FAULT),
    ),
    *(
        case(f"XID {code}", lean(xids={code: after(40, 1, 0)}), at(44, "gpu_fault", FAULT))
        for code in ("62", "74", "95", "119", "120")
    ),
    quiet("XIDs of applications", lean(xids=dict.fromkeys(APPLICATION_XIDS, born(40))), 41, 44, 49),
    quiet(
        "XIDs of applications again",
        lean(xids=dict.fromkeys(APPLICATION_XIDS, after(40, 5, 1))),
        41,
        44,
        49,
    ),
    case(
        "XID 94",
        lean(xids={"94": born(40)}),
        at(41, None),
        at(44, None, CONTAINED),
        at(79, None, CONTAINED),
        at(83, None),
    ),
    case("XID 94 again", lean(xids={"94": after(40, 2, 1)}), at(39, None), at(44, None, CONTAINED)),
    case(
        "XID 94 of a pod",
        lean(xids={"94": born(40)}, owner=pod("1")),
        at(44, None, CONTAINED),
    ),
    case(
        "XID 94 beside a fatal one",
        lean(xids={"94": born(40), "95": born(40)}),
        at(44, "gpu_fault", FAULT),
    ),
    case(
        "XID 94 while starved",
        lean(xids={"94": born(40)}, busy=0.2, stalls={"host_code": 0.8}),
        at(44, "host_loop_bound", CONTAINED, HOST_BOUND),
    ),
    case(
        "row remap failed",
        lean(row_remap_failed=after(40, 1)),
        at(40, "gpu_fault"),
        at(42, "gpu_fault", FAULT),
        at(75, "gpu_fault", FAULT),
    ),
    case(
        "row remap failed long after an XID",
        lean(row_remap_failed=after(40, 1), xids={"79": 1}),
        at(39, None),
        at(42, "gpu_fault", FAULT),
    ),
    case(
        "row remap pending",
        lean(row_remap_pending=after(40, 1)),
        at(40, None),
        at(42, None, CONTAINED),
        at(75, None, CONTAINED),
    ),
    quiet(
        "knows no row remapping",
        lean(missing=frozenset({"gpu_row_remap_failed", "gpu_row_remap_pending"}), xids={"79": 1}),
    ),
    case(
        "XID without row remapping",
        lean(
            missing=frozenset({"gpu_row_remap_failed", "gpu_row_remap_pending"}),
            xids={"79": born(40)},
        ),
        at(44, "gpu_fault", FAULT),
    ),
    quiet(
        "exporter restarted after an XID",
        lean(xids={"79": [(40, 2), (1, STALE), (60, None)]}, reset_at=40),
        39,
        42,
        45,
        55,
    ),
    case(
        "new XID after a restart",
        lean(xids={"79": [(40, 2), (1, STALE), (20, None), (40, 1)]}, reset_at=40),
        at(59, None),
        at(64, "gpu_fault", FAULT),
    ),
    case(
        "new XID soon after a restart",
        lean(xids={"79": [(40, 2), (1, STALE), (4, None), (60, 1)]}, reset_at=40),
        at(44, None),
        at(48, "gpu_fault", FAULT),
    ),
    Case(
        "Prometheus begins to scrape",
        lean(xids={"79": 2, "94": 1}),
        tuple(at(minute, None) for minute in (31, 33, 39, 41, 45, 60)),
        unknown_until=30,
    ),
    case(
        "old XID after a time without scrapes",
        lean(xids={"79": 2, "94": 1}),
        at(29, None),
        at(49, None, EXPORTER_DOWN),
        *(at(minute, None) for minute in (52, 55, 59, 61, 65, 75)),
        unscraped=(30, 50),
    ),
    case(
        "XID just before scrapes fail for three minutes",
        lean(xids={"79": born(40)}),
        at(45, None, FAULT),
        at(48, "gpu_fault", FAULT),
        unscraped=(44, 47),
    ),
    case(
        "off the bus",
        lean(
            xids={"79": born(40)},
            up=after(41, 0, 1),
            busy=[(41, 0.98), (1, STALE), (60, None)],
        ),
        at(43, "gpu_fault", FAULT),
        at(49, "gpu_fault", FAULT),
        at(60, "gpu_fault", FAULT),
        at(89, "gpu_fault", FAULT),
    ),
    case(
        "off the bus, and back",
        lean(
            xids={"79": born(40)},
            up=[(41, 1), (20, 0), (60, 1)],
            busy=[(41, 0.98), (20, STALE), (60, 0.98)],
        ),
        at(60, "gpu_fault", FAULT),
        at(75, None, FAULT),  # it is kept for half an hour
        at(89, None, FAULT),
    ),
    case("XID of a free GPU", free(xids={"79": born(40)}), at(44, "gpu_fault", FAULT)),
    case(
        "XID and hot",
        lean(xids={"79": after(70, 2, 1)}, throttle={"hw_thermal": 0.1}),
        at(69, "hw_slowdown", SLOWDOWN),
        at(74, "gpu_fault", FAULT, SLOWDOWN),  # the latter is kept for ten minutes
    ),
)

CLOCKS = (
    case(
        "too hot for the hardware",
        lean(throttle={"hw_thermal": after(30, 0.1)}, clock=after(30, 0.5, 1.0)),
        at(29, None),
        at(35, "hw_slowdown"),
        at(38, "hw_slowdown", SLOWDOWN),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    case(
        "power brake",
        lean(throttle={"hw_power_brake": 0.02}, reset_at=60),
        at(59, "hw_slowdown", SLOWDOWN),
        at(61, "hw_slowdown", SLOWDOWN),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    quiet("hardly too hot for the hardware", lean(throttle={"hw_thermal": 0.009})),
    quiet(
        "glitch", lean(throttle={"hw_power_brake": [(30, 0.0), (1, 1.0), (60, 0.0)]}), 36, 38, 45
    ),
    case(
        "too hot for the hardware and starved",
        lean(throttle={"hw_thermal": 0.1}, clock=0.5, busy=0.3, stalls={"host_code": 0.7}),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    case(
        "too hot for hardware and software",
        lean(throttle={"hw_thermal": 0.1, "sw_thermal": 0.5, "power_cap": 0.6}, clock=0.5),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    quiet("does not tell why it is slow", lean(throttle=None, clock=0.5)),
    case(
        "scrapes fail while too hot",
        lean(throttle={"hw_thermal": 0.1}),
        at(52, "hw_slowdown", SLOWDOWN),  # the rates still tell of it
        at(58, "hw_slowdown", SLOWDOWN),
        unscraped=(50, 53),
    ),
    case(
        "free and too hot",
        free(throttle={"hw_thermal": 0.1}),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    case(
        "hot",
        lean(throttle={"sw_thermal": after(30, 0.3)}, clock=after(30, 0.85, 1.0)),
        at(29, None),
        at(45, "thermal_throttle"),
        at(53, "thermal_throttle", HOT),
        at(75, "thermal_throttle", HOT),
    ),
    case(
        "warm",
        lean(throttle={"sw_thermal": 0.1}, clock=0.85, reset_at=60),
        at(14, "thermal_throttle"),
        at(18, "thermal_throttle", WARM),
        at(61, "thermal_throttle", WARM),
        at(75, "thermal_throttle", WARM),
    ),
    case(
        "warm and then hot",
        lean(throttle={"sw_thermal": after(40, 0.3, 0.1)}, clock=0.85),
        at(39, "thermal_throttle", WARM),
        at(55, "thermal_throttle", WARM),
        at(64, "thermal_throttle", HOT),
    ),
    quiet("hardly warm", lean(throttle={"sw_thermal": 0.045}, clock=0.85)),
    quiet("hot at full clocks", lean(throttle={"sw_thermal": 0.3}, clock=0.91)),
    quiet(
        "hot while it has little to do",
        lean(throttle={"sw_thermal": 0.3}, clock=0.5, busy=0.69, stalls={"asleep": 0.31}),
        14,
        45,
    ),
    quiet("hot without clocks", lean(throttle={"sw_thermal": 0.3}, clock=None)),
    quiet("hot, it is not known how busy", lean(throttle={"sw_thermal": 0.3}, missing=BUSY)),
    case(
        "hot and at the power limit",
        lean(throttle={"sw_thermal": 0.3, "power_cap": 0.6}, clock=0.7),
        at(75, "thermal_throttle", HOT),
    ),
    case(
        "scrapes fail while hot",
        lean(throttle={"sw_thermal": 0.3}, clock=0.8),
        at(52, None, HOT),
        at(60, "thermal_throttle", HOT),
        unscraped=(50, 53),
    ),
    case(
        "at a low power limit",
        lean(throttle={"power_cap": after(30, 0.8)}, clock=after(30, 0.7, 1.0)),
        at(29, None),
        at(45, "power_capped"),
        at(55, "power_capped", CAPPED),
        at(75, "power_capped", CAPPED),
    ),
    quiet(
        "at the board's own power limit with low clocks",
        lean(throttle={"power_cap": 0.95}, clock=0.6, power_default_watts=700),
    ),
    case(
        "at a power limit that was lowered",
        lean(
            throttle={"power_cap": 0.95},
            clock=0.6,
            power_limit_watts=420,
            power_watts=415,
            power_default_watts=700,
        ),
        at(45, "power_capped", CAPPED),
    ),
    quiet("at the power limit under full load", lean(throttle={"power_cap": 0.95}, clock=0.8)),
    quiet("seldom at the power limit", lean(throttle={"power_cap": 0.45}, clock=0.7)),
    quiet(
        "at the power limit while it has little to do",
        lean(throttle={"power_cap": 0.8}, clock=0.7, busy=0.69, stalls={"asleep": 0.31}),
        14,
        45,
    ),
    quiet("at the power limit without clocks", lean(throttle={"power_cap": 0.8}, clock=None)),
    case(
        "power capped, scrapes failed, exporter restarted",
        lean(throttle={"power_cap": 0.8}, clock=0.7, reset_at=53),
        at(52, None, CAPPED),
        at(60, "power_capped", CAPPED),
        unscraped=(50, 53),
    ),
    case(
        "clocks locked",
        lean(clock=after(30, 0.6, 1.0)),
        at(29, None),
        at(45, "clock_limited"),
        at(55, "clock_limited", LIMITED),
        at(75, "clock_limited", LIMITED),
    ),
    quiet("clocks hardly lowered", lean(clock=0.76)),
    case(
        "clocks locked while starved",
        lean(clock=0.6, busy=0.1, stalls={"host_code": 0.9}),
        at(75, "host_loop_bound", HOST_BOUND),
    ),
    quiet("low clocks and some heat", lean(clock=0.6, throttle={"power_cap": 0.06})),
    quiet("no clocks", lean(clock=None)),
    case(
        "clocks locked, scrapes failed, exporter restarted",
        lean(clock=0.6, reset_at=53),
        at(52, None, LIMITED),
        at(60, "clock_limited", LIMITED),
        unscraped=(50, 53),
    ),
)

LINKS = (
    case(
        "half the lanes",
        lean(link_width=after(30, 8, 16)),
        at(29, None),
        at(44, "pcie_link_degraded"),
        at(47, "pcie_link_degraded", LINK),
        at(75, "pcie_link_degraded", LINK),
    ),
    case(
        "half the lanes and starved",
        lean(link_width=8, busy=0.3, stalls={"host_code": 0.7}),
        at(75, "host_loop_bound", HOST_BOUND, LINK),
    ),
    case(
        "half the lanes of a pod",
        lean(link_width=8, owner=pod("2")),
        at(75, "pcie_link_degraded", LINK),
    ),
    case("half the lanes of a free GPU", free(link_width=8), at(75, None, LINK)),
    case(
        "half the lanes and nothing else is known of the link",
        lean(
            link_width=8,
            missing=BUSY | {"gpu_pcie_link_generation", "gpu_pcie_replays_total"},
        ),
        at(75, "pcie_link_degraded", LINK),
    ),
    case(
        "first generation while busy",
        lean(link_generation=1, busy=0.6, stalls={"asleep": 0.4}),
        at(14, "pcie_link_degraded"),
        at(45, "pcie_link_degraded", LINK),
        at(85, "pcie_link_degraded", LINK, PARTLY_IDLE),
    ),
    quiet("first generation while free", free(link_generation=1)),
    case(
        "first generation while starved",
        lean(link_generation=1, busy=0.45, stalls={"host_code": 0.55}),
        at(75, "host_loop_bound", HOST_BOUND),
    ),
    quiet("nothing is known of the link", lean(missing=frozenset({"gpu_pcie_link_width"}))),
    case(
        "replays",
        lean(replays=after(30, 0.6)),
        at(42, None),
        at(50, "pcie_link_degraded"),
        at(62, "pcie_link_degraded", LINK),
    ),
    quiet("few replays, exporter restarted", lean(replays=0.5, reset_at=45), 44, 46, 50, 75),
    quiet(
        "few replays, scrapes failed",
        lean(replays=0.5, gap=(50, 53)),
        49,
        54,
        70,
    ),
    case(
        "half the lanes, scrapes failed, exporter restarted",
        lean(link_width=8, reset_at=53),
        at(52, None, LINK),
        at(60, "pcie_link_degraded", LINK),
        unscraped=(50, 53),
    ),
)

BURSTS: list[tuple[int, float]] = [(6, 0.0), *[(1, 0.33), (5, 0.0)] * 33]
STARTS = (
    case(
        "starts for an hour",
        idle(age_seconds=ages(0), memory=0.1),
        at(9, None),
        at(11, "startup_stall"),
        at(13, "startup_stall", STARTING),
        at(19, "startup_stall", STARTING),
        at(23, "startup_stall", NOT_STARTING),
        at(59, "startup_stall", NOT_STARTING),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    case(
        "starts for 14 minutes",
        idle(age_seconds=ages(0), busy=after(14, 0.95), main_cpu=0.5),
        at(9, None),
        at(13, "startup_stall", STARTING),
        at(25, None),
        at(75, None),
    ),
    case(
        "starts, scrapes fail, exporter restarts",
        idle(age_seconds=ages(0), reset_at=33),
        at(29, "startup_stall", NOT_STARTING),
        at(40, "startup_stall", NOT_STARTING),
        unscraped=(30, 33),
    ),
    case(
        "starts after another job",
        idle(age_seconds=ages(32), busy=[(30, 0.95), (2, 0.0), (60, 0.0)]),
        at(31, None),
        at(41, None),
        at(45, "startup_stall", STARTING),
        at(56, "startup_stall", NOT_STARTING),
        at(75, "startup_stall", NOT_STARTING),
    ),
    case(
        "used in its first minutes",
        stops(40, age_seconds=ages(20)),
        at(38, None),
        at(63, "job_stalled", STALLED),
    ),
    case(
        "hardly used since it started",
        idle(age_seconds=ages(0), busy=0.06),
        at(12, "unexplained_low_utilization"),
        at(35, "unexplained_low_utilization"),
    ),
    case(
        "compiles and tries kernels out",
        compiling(),
        at(12, "startup_stall", STARTING),
        at(40, "startup_stall", NOT_STARTING),
        at(75, "too_few_workers", "GpuTooFewWorkers/warning"),
    ),
    case(
        "compiles, it is not known what is copied",
        compiling(pcie_bytes=None),
        at(12, "too_few_workers"),
    ),
    case("is fed by too few from its start", compiling(pcie_bytes=5e7), at(12, "too_few_workers")),
    case("reads from its start", compiling(worker_read_bytes=2e7), at(12, "too_few_workers")),
    case(
        "has worked, and compiles again",
        compiling(busy=[(15, 0.1), (6, 0.6), (75, 0.1)]),
        at(14, "startup_stall", STARTING),
        at(35, "too_few_workers", "GpuTooFewWorkers/warning"),
    ),
    case(
        "starts at an unknown time",
        idle(missing=frozenset({"gpu_feeder_age_seconds"})),
        at(12, "unexplained_low_utilization"),
        at(29, "unexplained_low_utilization"),
        at(40, "allocated_idle", IDLE),
    ),
    quiet("starts, it is not known how busy", idle(age_seconds=ages(0), missing=BUSY | STALLS)),
    case(
        "starts again every eight minutes",
        idle(age_seconds=ages(*range(0, LONG_MINUTES, 8))),
        at(9, None),
        at(20, None),
        at(33, None),
        at(46, "restart_loop"),
        at(60, "restart_loop", LOOPING),
        at(75, "restart_loop", LOOPING),
    ),
    case(
        "works again every eight minutes",
        lean(busy=0.2, stalls={"worker_cpu": 0.8}, age_seconds=ages(*range(0, LONG_MINUTES, 8))),
        at(33, None),
        at(46, "restart_loop"),
        at(75, "restart_loop", LOOPING),
    ),
    quiet(
        "short runs that use it",
        lean(busy=0.7, stalls={"host_code": 0.3}, age_seconds=ages(*range(0, LONG_MINUTES, 8))),
        33,
        46,
        60,
        75,
    ),
    quiet(
        "starts again every quarter of an hour",
        idle(age_seconds=ages(*range(0, LONG_MINUTES, 15)), busy=0.45),
        9,
        24,
        39,
    ),
    quiet(
        "a notebook's kernel is restarted",
        idle(age_seconds=ages(*range(0, LONG_MINUTES, 8)), interactive=1),
        33,
        46,
        60,
    ),
)

HOLDERS = (
    quiet("free", free(), 1, 9, 20, 45, 75),
    quiet("free but for a monitor", free(processes=1, memory=0.003), 20, 45, 75),
    quiet("free on a busy host", free(host_busy_cores=31.0, disk_busy=0.95, host_iowait_cores=9)),
    case(
        "assigned and never opened",
        free(owner=pod("3"), main_cpu=1.0),
        at(5, "allocated_never_used"),
        at(14, "allocated_never_used"),
        at(17, "allocated_never_used", NEVER_USED),
        at(75, "allocated_never_used", NEVER_USED),
    ),
    case(
        "assigned, opened after twelve minutes",
        lean(owner=pod("4"), processes=after(12, 1, 0), busy=after(12, 0.98)),
        at(11, "allocated_never_used"),
        at(25, None),
        at(75, None),
    ),
    case(
        "assigned and opened, not used",
        idle(owner=pod("5")),
        at(45, "allocated_idle", IDLE),
    ),
    case(
        "assigned, no memory used, processes unknown",
        free(owner=pod("6"), missing=FEEDERS | {"gpu_processes"}),
        at(20, "allocated_never_used", NEVER_USED),
        at(75, "allocated_never_used", NEVER_USED),
    ),
    quiet("free, processes unknown", free(missing=FEEDERS | {"gpu_processes"})),
    case(
        "assigned and never opened, scrapes failed, exporter restarted",
        free(owner=pod("7"), reset_at=53),
        at(52, None, NEVER_USED),
        at(58, "allocated_never_used", NEVER_USED),
        unscraped=(50, 53),
    ),
    case(
        "a notebook that was just opened",
        idle(interactive=1, age_seconds=ages(0)),
        at(20, "interactive_session"),
        at(45, "interactive_session", INTERACTIVE),
        at(80, "allocated_idle", IDLE_LONG),
    ),
    case(
        "notebook",
        idle(interactive=1, busy=BURSTS),
        at(29, "interactive_session"),
        at(45, "interactive_session", INTERACTIVE),
        at(75, "interactive_session", INTERACTIVE),
    ),
    case(
        "notebook, scrapes failed, exporter restarted",
        idle(interactive=1, busy=BURSTS, reset_at=53),
        at(52, None, INTERACTIVE),
        at(65, "interactive_session", INTERACTIVE),
        at(75, "interactive_session", INTERACTIVE),
        unscraped=(50, 53),
    ),
    case(
        "the same bursts of a batch job",
        idle(interactive=0, busy=BURSTS),
        at(29, "unexplained_low_utilization"),
        at(75, "unexplained_low_utilization", UNEXPLAINED),
    ),
    case(
        "the same bursts of somebody unknown",
        idle(busy=BURSTS, missing=frozenset({"gpu_feeder_interactive"})),
        at(75, "unexplained_low_utilization", UNEXPLAINED),
    ),
    case(
        "busy notebook",
        idle(interactive=1, busy=0.15),
        at(75, "unexplained_low_utilization", UNEXPLAINED),
    ),
    case(
        "notebook that nobody uses",
        idle(interactive=1),
        at(40, "allocated_idle", IDLE),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    case(
        "notebook after a training",
        stops(20, interactive=1),
        at(46, "unexplained_low_utilization"),
        at(58, "allocated_idle", IDLE),
    ),
    case(
        "idle",
        idle(clock=0.2, power_watts=80.0, link_generation=1),
        at(29, "unexplained_low_utilization"),
        at(34, "allocated_idle"),
        at(37, "allocated_idle", IDLE),
        at(62, "allocated_idle", IDLE),
        at(69, "allocated_idle", IDLE_LONG),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    case(
        "ended and still held",
        stops(15, busy=0.55, network_bytes=2e5),
        at(43, "unexplained_low_utilization"),
        at(60, "allocated_idle", IDLE),
        at(90, "allocated_idle", IDLE_LONG),
    ),
    case(
        "idle, feeders unknown",
        idle(feeders=False),
        at(40, "allocated_idle", IDLE),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    case(
        "idle, scrapes failed, exporter restarted",
        idle(reset_at=78),
        at(77, None, IDLE_LONG),
        at(84, "allocated_idle", IDLE_LONG),
        unscraped=(75, 78),
    ),
    case(
        "idle while its CPUs work",
        idle(main_cpu=1.0, stalls={"host_code": 1.0}),
        at(75, "host_loop_bound", HOST_BOUND),
    ),
    case(
        "idle while it waits for the disk",
        idle(stalls={"storage": 0.9, "asleep": 0.1}, disk_busy=0.9),
        at(75, "local_storage_bound", "GpuLocalStorageBound/warning"),
    ),
    case("hardly idle", idle(busy=0.03), at(75, "unexplained_low_utilization", UNEXPLAINED)),
    quiet("it is not known how busy", idle(missing=BUSY | STALLS)),
    case(
        "idle, too hot for the hardware",
        idle(throttle={"hw_thermal": 0.1}),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
)

SERVERS = (
    case(
        "server at night",
        serves(0.0, requests=1.0),
        at(9, "waits_for_requests"),
        at(29, "waits_for_requests"),
        at(40, "waits_for_requests", UNASKED),
        at(75, "waits_for_requests", UNASKED),
    ),
    case(
        "server after a busy day",
        serves([(30, 0.95), (60, 0.0)], requests=[(30, 0.05), (60, 1.0)]),
        at(28, None),
        at(45, "waits_for_requests"),
        at(58, "waits_for_requests"),
        at(75, "waits_for_requests", UNASKED),
    ),
    case(
        "server in the morning",
        serves([(40, 0.0), (50, 0.95)], requests=[(40, 1.0), (50, 0.05)]),
        at(40, "waits_for_requests", UNASKED),
        at(62, None),
        at(75, None),
    ),
    # It is old enough to be judged, and its GPU has not been used yet.
    case(
        "server without its first request",
        serves(0.0, requests=1.0, age_seconds=ages(0)),
        at(9, None),
        at(25, "waits_for_requests"),
        at(50, "waits_for_requests", UNASKED),
        at(75, "waits_for_requests", UNASKED),
    ),
    case(
        "server in a terminal",
        serves(BURSTS, requests=[(length, 1 - share) for length, share in BURSTS], interactive=1),
        at(75, "waits_for_requests", UNASKED),
    ),
    # Two fifths of the idle time, and half of all time.
    case(
        "server that mostly sleeps",
        serves(0.0, requests=0.39, asleep=0.61),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    case(
        "server that sleeps, too",
        serves(0.0, requests=0.41, asleep=0.59),
        at(75, "waits_for_requests", UNASKED),
    ),
    case(
        "server with requests for more than half of the time",
        serves(0.2, requests=0.49, host_code=0.31),
        at(75, "waits_for_requests"),
    ),
    case(
        "server with requests for less than half of the time",
        serves(0.2, requests=0.51, host_code=0.29),
        at(75, "waits_for_requests", UNASKED),
    ),
    quiet("server that is used well", serves(0.72, requests=0.28)),
    # What takes more of the idle time is the cause.
    case(
        "server with a slow loop",
        serves(0.1, requests=0.44, host_code=0.46),
        at(75, "host_loop_bound", HOST_BOUND),
    ),
    case(
        "server with a slow store, by disks and connections",
        serves(0.1, requests=0.4, network=0.3, storage=0.2),
        at(75, "network_storage_bound", "GpuNetworkStorageBound/warning"),
    ),
    case(
        "server that is still loading",
        serves(0.0, requests=0.3, storage=0.7, age_seconds=ages(0), disk_busy=0.9),
        at(25, "startup_stall", NOT_STARTING),
    ),
    case(
        "server, too hot for the hardware",
        serves(0.0, requests=1.0, throttle={"hw_thermal": 0.1}),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    case(
        "server of which it is not known what it waits for",
        idle(missing=STALLS),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    case(
        "server whose connections cannot be read",
        serves(0.0, unknown=1.0),
        at(75, "allocated_idle", IDLE_LONG),
    ),
    quiet("server of which it is not known how busy", idle(missing=BUSY | STALLS, interactive=0)),
)

STOPS = (
    case(
        "stalled",
        stops(30),
        at(28, None),
        at(43, "unexplained_low_utilization"),
        at(49, "job_stalled"),
        at(53, "job_stalled", STALLED),
        at(75, "job_stalled", STALLED),
    ),
    case(
        "stalled, scrapes failed, exporter restarted",
        stops(30, reset_at=73),
        at(72, None, STALLED),
        at(82, "job_stalled", STALLED),
        unscraped=(70, 73),
    ),
    case(
        "exporter restarted while it stalls",
        stops(30, reset_at=45),
        at(60, "job_stalled", STALLED),
    ),
    case(
        "stalled, bytes unknown",
        stops(
            30,
            missing=frozenset(
                "gpu_feeder_" + name
                for name in (
                    "read_bytes_total",
                    "written_bytes_total",
                    "network_receive_bytes_total",
                    "network_transmit_bytes_total",
                )
            ),
        ),
        at(60, "job_stalled", STALLED),
    ),
    case(
        "stalled and too hot for the hardware",
        stops(30, throttle={"hw_thermal": 0.1}),
        at(75, "hw_slowdown", SLOWDOWN),
    ),
    case(
        "pauses for ten minutes",
        idle(busy=[(30, 0.95), (10, 0.0), (60, 0.95)]),
        at(39, "unexplained_low_utilization"),
        at(55, None),
        at(75, None),
    ),
    case("hardly worked before", stops(20, busy=0.25), at(70, "allocated_idle", IDLE)),
    case("stopped, data arrives", stops(20, network_bytes=2e5), at(70, "allocated_idle", IDLE)),
    case("stopped, data is read", stops(20, worker_read_bytes=2e5), at(70, "allocated_idle", IDLE)),
    case("stopped, somebody unknown", stops(20, missing=STALLS), at(70, "allocated_idle", IDLE)),
    case(
        "stopped, its CPUs work a little",
        stops(20, stalls={"asleep": 0.85, "host_code": 0.15}, main_cpu=0.15),
        at(50, "unexplained_low_utilization"),
    ),
)

LONG = (
    case(
        "stalled two hours ago",
        stops(30),
        at(150, "job_stalled", STALLED),
        at(185, "allocated_idle", IDLE_LONG),
    ),
    case(
        "worked long ago",
        stops(30, busy=0.25),
        at(110, "allocated_idle", IDLE_LONG),
        at(190, "allocated_idle", IDLE_LONG),
    ),
    case(
        "notebook in the morning",
        idle(interactive=1, busy=[(60, 0.0), *BURSTS]),
        at(59, "allocated_idle", IDLE),
        at(190, "interactive_session", INTERACTIVE),
    ),
    quiet("healthy", lean(owner=pod("8")), 20, 100, 190),
)

MIG = {
    "power_watts": None,
    "clock": None,
    "throttle": None,
    "pcie_bytes": None,
    "missing": STALLS
    | {"gpu_pcie_link_width", "gpu_pcie_link_generation", "gpu_pcie_replays_total"}
    | {"gpu_row_remap_failed", "gpu_row_remap_pending"},
}


def seen(**changes: object) -> Gpu:
    """Busy, and all that is needed to judge it can be read."""
    return lean(**{"sm": 0.85, "feeders": True, **changes})


BLIND: Mapping[str, tuple[Gpu, tuple[str, ...]]] = {
    "sees everything": (seen(owner=pod("9")), ()),
    "sees everything, never waits": (seen(owner=pod("10"), busy=1.0), ()),
    "Hopper without GPM": (seen(owner=pod("20"), sm=None), ("device_causes",)),
    "Ampere": (seen(owner=pod("11"), sm=None, architecture="ampere"), ()),
    "MIG on Hopper": (
        seen(owner=pod("12"), **MIG),
        ("clock_causes", "host_causes", "link_causes"),
    ),
    "MIG on Ampere": (
        seen(owner=pod("13"), **{**MIG, "sm": None, "missing": MIG["missing"] | BUSY}),  # type: ignore[operator]
        ("clock_causes", "device_causes", "host_causes", "link_causes"),
    ),
    "feeders not seen": (seen(owner=pod("14"), feeders=False), ("host_causes",)),
    "waits unknown": (
        seen(owner=pod("15"), busy=0.75, stalls={"unknown": 0.2, "asleep": 0.05}),
        ("host_causes",),
    ),
    "waits hardly unknown": (
        seen(owner=pod("16"), busy=0.75, stalls={"unknown": 0.05, "asleep": 0.2}),
        (),
    ),
    "no throttle counters": (seen(owner=pod("17"), throttle=None), ("clock_causes",)),
    "no PCIe counters": (seen(owner=pod("18"), pcie_bytes=None), ("link_causes",)),
    "I/O of processes unreadable": (
        seen(owner=pod("19"), missing=frozenset({"gpu_feeder_read_bytes_total"})),
        ("io_causes",),
    ),
    "nobody's": (seen(), ("job_causes",)),
    "of a user only": (seen(owner={"user": "ann"}), ("job_causes",)),
    "free and blind": (free(sm=None, missing=FEEDERS | STALLS), ()),
}


def fleets_of(*cases: Case) -> tuple[Fleet, Fleet]:
    """Those that take their time are the second one."""
    hurried = [one for one in cases if not one.takes_its_time]
    others = [one for one in cases if one.takes_its_time]
    return fleet_of(MINUTES, "1m", *hurried), fleet_of(MINUTES, "2m", *others)


def fleet_of(minutes: int, interval: str, *cases: Case) -> Fleet:
    fleet = Fleet(minutes, evaluation_interval=interval)
    for one, node in zip(cases, nodes(one.name for one in cases), strict=True):
        add_gpu(fleet, node, one.gpu)
        if one.unscraped:
            fleet.fail_scrapes(node, *one.unscraped)
        fleet.fail_scrapes(node, 0, one.unknown_until, up=None)
        for told in one.told:
            fleet.expect_cause(node, told.minute, told.cause)
            fleet.expect_firing(node, told.minute, *told.alerts)
        fleet.end(node, max(told.minute for told in one.told))
    fleet.expect(USUAL[-1], 'ALERTS{alertname="GpuThresholdsMissing"}', {})
    return fleet


def expect_blind(fleet: Fleet, node: str, minutes: float, *kinds: str) -> None:
    query = (
        "sum by (blind, severity) "
        f'(ALERTS{{alertname="GpuCausesBlind",alertstate="firing",instance="{node}"}})'
    )
    answer = {f'{{blind="{kind}",severity="info"}}': 1.0 for kind in kinds}
    fleet.expect(minutes, query, answer)


def test_rows_have_names_of_their_own() -> None:
    rows = (TELEMETRY, FAULTS, CLOCKS, LINKS, STARTS, HOLDERS, SERVERS, STOPS, LONG)
    names = [one.name for table in rows for one in table] + [*BLIND]
    assert len(names) == len(set(names))


def test_what_is_wrong_with_the_gpu(tmp_path: Path) -> None:
    for fleet in fleets_of(*TELEMETRY, *FAULTS, *CLOCKS, *LINKS):
        fleet.check(tmp_path)


def test_who_holds_it_and_does_not_use_it(tmp_path: Path) -> None:
    every, fleet = fleets_of(*STARTS, *HOLDERS, *SERVERS, *STOPS)
    every.check(tmp_path)
    for node, (gpu, kinds) in zip(nodes(BLIND), BLIND.values(), strict=True):
        add_gpu(fleet, node, gpu)
        fleet.expect_firing(node, 85)
        expect_blind(fleet, node, 59)
        expect_blind(fleet, node, 85, *kinds)
        fleet.end(node, 85)
    add_siblings(fleet)
    fleet.check(tmp_path)


def add_siblings(fleet: Fleet) -> None:
    """Nodes of two GPUs, only one of which is guilty."""
    add_gpu(fleet, "one-of-two-too-hot", lean())
    add_gpu(fleet, "one-of-two-too-hot", lean(throttle={"hw_thermal": 0.1}), index=1)
    query = 'ALERTS{alertstate="firing",instance="one-of-two-too-hot",alertname!="GpuCausesBlind"}'
    fleet.expect(60, f"count by (alertname, gpu) ({query})", {_hot("1"): 1.0})
    for node, changes in (("one-of-two-starts", {"age_seconds": ages(0)}), ("one-of-two-idle", {})):
        add_gpu(fleet, node, lean(owner=pod(node)))
        add_gpu(fleet, node, idle(owner=pod(node), **changes), index=1)
        for minute in (13, 25, 45, 85):
            expected = {'{cause="gpu_imbalance",gpu="1"}': 1.0}
            query = f'sum by (cause, gpu) (gpu:bottleneck:primary{{instance="{node}"}})'
            fleet.expect(minute, query, expected)


def _hot(gpu: str) -> str:
    return f'{{alertname="GpuHardwareSlowdown",gpu="{gpu}"}}'


def test_over_hours(tmp_path: Path) -> None:
    fleet = fleet_of(LONG_MINUTES, "2m", *LONG)
    add_gpus_that_are_told_of_no_more(fleet)
    fleet.check(tmp_path)


def add_gpus_that_are_told_of_no_more(fleet: Fleet) -> None:
    """Lost, and what only looks like it: their targets answer all the time."""
    uuids = {"moved": "GPU-moved", "mig": "MIG-of-before"}
    for node in ("lost", "all-lost", "back", "moved", "mig", "other-machine"):
        add_gpu(fleet, node, lean())
        add_gpu(fleet, node, lean(uuid=uuids.get(node)), index=1)
    fleet.remove("GPU-lost-1", 90)
    fleet.remove("GPU-all-lost-0", 90)
    fleet.remove("GPU-all-lost-1", 90)
    fleet.remove("GPU-back-1", 90, 94)
    fleet.remove("GPU-moved", 90)
    fleet.gauge("up", 1, job=JOB, instance="moved-to")
    add_gpu(fleet, "moved-to", lean(uuid="GPU-moved"), index=1)
    fleet.remove("MIG-of-before", 90)
    fleet.remove("GPU-other-machine-0", 90)
    fleet.remove("GPU-other-machine-1", 90)
    add_gpu(fleet, "other-machine", lean(uuid="GPU-new", up=[(90, STALE), (120, 1)]), index=2)
    fleet.remove("GPU-new", 0, 90)
    for minute in (88, 110, 140, 170):
        for node in ("moved", "moved-to", "mig", "other-machine"):
            fleet.expect_firing(node, minute)
    for minute in (110, 140):
        fleet.expect_firing("lost", minute, LOST)
        fleet.expect(minute, _lost("lost"), {'{gpu="1"}': 1.0})
        fleet.expect(minute, _lost("all-lost"), {'{gpu="0"}': 1.0, '{gpu="1"}': 1.0})
    fleet.expect_cause("lost", 88, None)
    fleet.expect(96, _lost("back"), {})
    fleet.expect_firing("back", 110)
    fleet.expect_firing("lost", 170, LOST)


def _lost(node: str) -> str:
    alert = f'alertname="GpuTelemetryLost",alertstate="firing",instance="{node}"'
    return f"count by (gpu) (ALERTS{{{alert}}})"


def test_without_thresholds_only_that_is_told(tmp_path: Path) -> None:
    fleet = Fleet(30, files=FILES[1:], groups=GROUPS[2:])
    add_gpu(fleet, "starved", lean(busy=0.1, stalls={"host_code": 0.9}))
    add_gpu(fleet, "hot", lean(throttle={"hw_thermal": 0.5, "sw_thermal": 0.5}, clock=0.4))
    add_gpu(fleet, "idle", idle(owner=pod("19")))
    add_gpu(fleet, "free", free())
    query = 'count by (alertname, severity) (ALERTS{alertstate="firing"})'
    expected = {'{alertname="GpuThresholdsMissing",severity="warning"}': 1.0}
    fleet.expect(4, query, {})
    fleet.expect(6, query, expected)
    fleet.expect(30, query, expected)
    fleet.expect(30, "gpu:held:bool", {})  # not: nobody holds one
    fleet.check(tmp_path)


def test_targets_that_are_no_gpu_exporter_may_be_down(tmp_path: Path) -> None:
    fleet = Fleet(30)
    fleet.gauge("up", 0, job=JOB, instance="other")
    fleet.expect(30, 'ALERTS{alertname="GpuExporterDown"}', {})
    fleet.check(tmp_path)


def severities() -> dict[str, set[str]]:
    """The alerts of each severity."""
    found: dict[str, set[str]] = {}
    for group in yaml.safe_load((RULES / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            found.setdefault(rule["labels"]["severity"], set()).add(rule["alert"])
    return found


def test_nobody_is_woken_for_under_use() -> None:
    assert severities()["critical"] == {"GpuFault"}


def test_there_are_three_severities() -> None:
    assert set(severities()) == {"critical", "warning", "info"}
