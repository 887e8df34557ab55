"""What is wrong with the GPU itself, what nobody uses, and jobs that do not start or move.

Each row is a GPU on a node of its own and what is told of it, minute by minute. promtool names
the node in what it says of a failure: that is the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.accounting.stall import WAITING_ON
from rules import causes_table
from rules.cases import Row, Table, add_row, fleets_of, merged, node_of
from rules.fleet import FILES, GROUPS, JOB, Fleet, Gpu, add_gpu
from rules.series import STALE, Signal

MINUTES = 90
LONG_MINUTES = 200
USUAL = (20, 45, 75)
"""Asked at these minutes, it is no matter of one minute more or less."""
APPLICATION_XIDS = ("13", "31", "43", "45", "63", "92")
EXPORTER_DOWN = "GpuExporterDown/warning"
LOST = "GpuTelemetryLost/warning"
FEEDERS = frozenset(
    f"gpu_feeder_{name}"
    for name in (
        *("age_seconds", "interactive", "processes", "cpus_allowed", "cpu_seconds_total"),
        *("read_bytes_total", "written_bytes_total", "worker_starts_total"),
        *("network_receive_bytes_total", "network_transmit_bytes_total"),
        *("throttled_seconds_total", "shm_size_bytes", "shm_used_bytes"),
    )
)
BUSY = frozenset({"gpu_busy_seconds_total", "gpu_observed_seconds_total"})
STALLS = frozenset({"gpu_stall_seconds_total"})


def quiet(gpu: Gpu, minutes: str = "20,45,75") -> Row:
    """Nothing is told, at no time."""
    return Row(gpu, f"{minutes} -")


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


TELEMETRY: Table = {
    "does not answer": Row(
        lean(up=after(30, 0, 1), busy=[(30, 0.98), (1, STALE), (60, None)]),
        "29 -; 35 telemetry_lost; 36,75 telemetry_lost/warning",
    ),
    "does not answer while a stuck driver repeats its last readings": Row(
        lean(up=after(30, 0, 1), busy=0.2, stalls={"host_code": 0.8}),
        "29 host_loop_bound/warning; 55 telemetry_lost/warning host_loop_bound/warning",
    ),
    "does not answer for four minutes": quiet(lean(up=[(30, 1), (4, 0), (60, 1)]), "36,40,75"),
    "answers again": Row(
        lean(up=[(30, 1), (20, 0), (60, 1)]),
        "49 telemetry_lost/warning; 59 - telemetry_lost/warning; 61 -",
    ),
    "does not say whether it is up": quiet(lean(missing=frozenset({"gpu_up"}))),
    "does not answer and scrapes fail for three minutes": Row(
        lean(up=after(30, 0, 1)),
        "52,56 telemetry_lost/warning",
        unscraped=(50, 53),
    ),
    "exporter down": Row(lean(), "39 -; 42,75 - GpuExporterDown/warning", unscraped=(30, 91)),
    "exporter down for eight minutes": Row(lean(), "39,75 -", unscraped=(30, 38)),
    "exporter restarted": quiet(lean(reset_at=45), "44,46,50,75"),
}

FAULTS: Table = {
    "XID born": Row(
        lean(xids={"79": born(40)}),
        "41 gpu_fault; 43,49 gpu_fault/critical; 55,79 - gpu_fault/critical; 83 -",
    ),
    "same XID twice": Row(lean(xids={"48": after(40, 2, 1)}), "39 -; 43 gpu_fault/critical"),
    "new XID beside an old one": Row(
        lean(xids={"48": 3, "64": born(40)}), "39 -; 44 gpu_fault/critical"
    ),
    **{
        f"XID {code}": Row(lean(xids={code: after(40, 1, 0)}), "44 gpu_fault/critical")
        for code in ("62", "74", "95", "119", "120")
    },
    "XIDs of applications": quiet(lean(xids=dict.fromkeys(APPLICATION_XIDS, born(40))), "41,44,49"),
    "XIDs of applications again": quiet(
        lean(xids=dict.fromkeys(APPLICATION_XIDS, after(40, 5, 1))), "41,44,49"
    ),
    "XID 94": Row(lean(xids={"94": born(40)}), "41 -; 44,79 - gpu_fault/warning; 83 -"),
    "XID 94 again": Row(lean(xids={"94": after(40, 2, 1)}), "39 -; 44 - gpu_fault/warning"),
    "XID 94 of a pod": Row(lean(xids={"94": born(40)}, owner=pod("1")), "44 - gpu_fault/warning"),
    "XID 94 beside a fatal one": Row(
        lean(xids={"94": born(40), "95": born(40)}), "44 gpu_fault/critical"
    ),
    "XID 94 while starved": Row(
        lean(xids={"94": born(40)}, busy=0.2, stalls={"host_code": 0.8}),
        "44 host_loop_bound/warning gpu_fault/warning",
    ),
    "row remap failed": Row(
        lean(row_remap_failed=after(40, 1)), "40 gpu_fault; 42,75 gpu_fault/critical"
    ),
    "row remap failed long after an XID": Row(
        lean(row_remap_failed=after(40, 1), xids={"79": 1}), "39 -; 42 gpu_fault/critical"
    ),
    "row remap pending": Row(
        lean(row_remap_pending=after(40, 1)), "40 -; 42,75 - gpu_fault/warning"
    ),
    "knows no row remapping": quiet(
        lean(missing=frozenset({"gpu_row_remap_failed", "gpu_row_remap_pending"}), xids={"79": 1})
    ),
    "XID without row remapping": Row(
        lean(
            missing=frozenset({"gpu_row_remap_failed", "gpu_row_remap_pending"}),
            xids={"79": born(40)},
        ),
        "44 gpu_fault/critical",
    ),
    "exporter restarted after an XID": quiet(
        lean(xids={"79": [(40, 2), (1, STALE), (60, None)]}, reset_at=40), "39,42,45,55"
    ),
    "new XID after a restart": Row(
        lean(xids={"79": [(40, 2), (1, STALE), (20, None), (40, 1)]}, reset_at=40),
        "59 -; 64 gpu_fault/critical",
    ),
    "new XID soon after a restart": Row(
        lean(xids={"79": [(40, 2), (1, STALE), (4, None), (60, 1)]}, reset_at=40),
        "44 -; 48 gpu_fault/critical",
    ),
    "Prometheus begins to scrape": Row(
        lean(xids={"79": 2, "94": 1}), "31,33,39,41,45,60 -", unknown_until=30
    ),
    "old XID after a time without scrapes": Row(
        lean(xids={"79": 2, "94": 1}),
        "29 -; 49 - GpuExporterDown/warning; 52,55,59,61,65,75 -",
        unscraped=(30, 50),
    ),
    "XID just before scrapes fail for three minutes": Row(
        lean(xids={"79": born(40)}),
        "45 - gpu_fault/critical; 48 gpu_fault/critical",
        unscraped=(44, 47),
    ),
    "off the bus": Row(
        lean(xids={"79": born(40)}, up=after(41, 0, 1), busy=[(41, 0.98), (1, STALE), (60, None)]),
        "43,49,60,89 gpu_fault/critical",
    ),
    # The alert is kept for half an hour.
    "off the bus, and back": Row(
        lean(
            xids={"79": born(40)},
            up=[(41, 1), (20, 0), (60, 1)],
            busy=[(41, 0.98), (20, STALE), (60, 0.98)],
        ),
        "60 gpu_fault/critical; 75,89 - gpu_fault/critical",
    ),
    "XID of a free GPU": Row(free(xids={"79": born(40)}), "44 gpu_fault/critical"),
    # The latter is kept for ten minutes.
    "XID and hot": Row(
        lean(xids={"79": after(70, 2, 1)}, throttle={"hw_thermal": 0.1}),
        "69 hw_slowdown/warning; 74 gpu_fault/critical hw_slowdown/warning",
    ),
}

CLOCKS: Table = {
    "too hot for the hardware": Row(
        lean(throttle={"hw_thermal": after(30, 0.1)}, clock=after(30, 0.5, 1.0)),
        "29 -; 35 hw_slowdown; 38,75 hw_slowdown/warning",
    ),
    "power brake": Row(
        lean(throttle={"hw_power_brake": 0.02}, reset_at=60), "59,61,75 hw_slowdown/warning"
    ),
    "hardly too hot for the hardware": quiet(lean(throttle={"hw_thermal": 0.009})),
    "glitch": quiet(
        lean(throttle={"hw_power_brake": [(30, 0.0), (1, 1.0), (60, 0.0)]}), "36,38,45"
    ),
    "too hot for the hardware and starved": Row(
        lean(throttle={"hw_thermal": 0.1}, clock=0.5, busy=0.3, stalls={"host_code": 0.7}),
        "75 hw_slowdown/warning",
    ),
    "too hot for hardware and software": Row(
        lean(throttle={"hw_thermal": 0.1, "sw_thermal": 0.5, "power_cap": 0.6}, clock=0.5),
        "75 hw_slowdown/warning",
    ),
    "does not tell why it is slow": quiet(lean(throttle=None, clock=0.5)),
    # At first its rates still tell of it.
    "scrapes fail while too hot": Row(
        lean(throttle={"hw_thermal": 0.1}), "52,58 hw_slowdown/warning", unscraped=(50, 53)
    ),
    "free and too hot": Row(free(throttle={"hw_thermal": 0.1}), "75 hw_slowdown/warning"),
    "hot": Row(
        lean(throttle={"sw_thermal": after(30, 0.3)}, clock=after(30, 0.85, 1.0)),
        "29 -; 45 thermal_throttle; 53,75 thermal_throttle/warning",
    ),
    "warm": Row(
        lean(throttle={"sw_thermal": 0.1}, clock=0.85, reset_at=60),
        "14 thermal_throttle; 18,61,75 thermal_throttle/info",
    ),
    "warm and then hot": Row(
        lean(throttle={"sw_thermal": after(40, 0.3, 0.1)}, clock=0.85),
        "39,55 thermal_throttle/info; 64 thermal_throttle/warning",
    ),
    "hardly warm": quiet(lean(throttle={"sw_thermal": 0.045}, clock=0.85)),
    "hot at full clocks": quiet(lean(throttle={"sw_thermal": 0.3}, clock=0.91)),
    "hot while it has little to do": quiet(
        lean(throttle={"sw_thermal": 0.3}, clock=0.5, busy=0.69, stalls={"asleep": 0.31}), "14,45"
    ),
    "hot without clocks": quiet(lean(throttle={"sw_thermal": 0.3}, clock=None)),
    "hot, it is not known how busy": quiet(lean(throttle={"sw_thermal": 0.3}, missing=BUSY)),
    "hot and at the power limit": Row(
        lean(throttle={"sw_thermal": 0.3, "power_cap": 0.6}, clock=0.7),
        "75 thermal_throttle/warning",
    ),
    "scrapes fail while hot": Row(
        lean(throttle={"sw_thermal": 0.3}, clock=0.8),
        "52,60 thermal_throttle/warning",
        unscraped=(50, 53),
    ),
    "at a low power limit": Row(
        lean(throttle={"power_cap": after(30, 0.8)}, clock=after(30, 0.7, 1.0)),
        "29 -; 45 power_capped; 55,75 power_capped/info",
    ),
    "at the board's own power limit with low clocks": quiet(
        lean(throttle={"power_cap": 0.95}, clock=0.6, power_default_watts=700)
    ),
    "at a power limit that was lowered": Row(
        lean(
            throttle={"power_cap": 0.95},
            clock=0.6,
            power_limit_watts=420,
            power_watts=415,
            power_default_watts=700,
        ),
        "45 power_capped/info",
    ),
    "at the power limit under full load": quiet(lean(throttle={"power_cap": 0.95}, clock=0.8)),
    "seldom at the power limit": quiet(lean(throttle={"power_cap": 0.45}, clock=0.7)),
    "at the power limit while it has little to do": quiet(
        lean(throttle={"power_cap": 0.8}, clock=0.7, busy=0.69, stalls={"asleep": 0.31}), "14,45"
    ),
    "at the power limit without clocks": quiet(lean(throttle={"power_cap": 0.8}, clock=None)),
    "power capped, scrapes failed, exporter restarted": Row(
        lean(throttle={"power_cap": 0.8}, clock=0.7, reset_at=53),
        "52,60 power_capped/info",
        unscraped=(50, 53),
    ),
    "clocks locked": Row(
        lean(clock=after(30, 0.6, 1.0)), "29 -; 45 clock_limited; 55,75 clock_limited/warning"
    ),
    "clocks hardly lowered": quiet(lean(clock=0.76)),
    "clocks locked while starved": Row(
        lean(clock=0.6, busy=0.1, stalls={"host_code": 0.9}), "75 host_loop_bound/warning"
    ),
    "low clocks and some heat": quiet(lean(clock=0.6, throttle={"power_cap": 0.06})),
    "no clocks": quiet(lean(clock=None)),
    "clocks locked, scrapes failed, exporter restarted": Row(
        lean(clock=0.6, reset_at=53),
        "52,60 clock_limited/warning",
        unscraped=(50, 53),
    ),
}

LINKS: Table = {
    "half the lanes": Row(
        lean(link_width=after(30, 8, 16)),
        "29 -; 44 pcie_link_degraded; 47,75 pcie_link_degraded/warning",
    ),
    "half the lanes and starved": Row(
        lean(link_width=8, busy=0.3, stalls={"host_code": 0.7}),
        "75 host_loop_bound/warning pcie_link_degraded/warning",
    ),
    "half the lanes of a pod": Row(
        lean(link_width=8, owner=pod("2")), "75 pcie_link_degraded/warning"
    ),
    "half the lanes of a free GPU": Row(free(link_width=8), "75 - pcie_link_degraded/warning"),
    "half the lanes and nothing else is known of the link": Row(
        lean(link_width=8, missing=BUSY | {"gpu_pcie_link_generation", "gpu_pcie_replays_total"}),
        "75 pcie_link_degraded/warning",
    ),
    "first generation while busy": Row(
        lean(link_generation=1, busy=0.6, stalls={"asleep": 0.4}),
        "14 pcie_link_degraded; 45 pcie_link_degraded/warning; "
        "85 pcie_link_degraded/warning GpuUnderused/info",
    ),
    "first generation while free": quiet(free(link_generation=1)),
    "first generation while starved": Row(
        lean(link_generation=1, busy=0.45, stalls={"host_code": 0.55}), "75 host_loop_bound/warning"
    ),
    "nothing is known of the link": quiet(lean(missing=frozenset({"gpu_pcie_link_width"}))),
    "replays": Row(
        lean(replays=after(30, 0.6)), "42 -; 50 pcie_link_degraded; 62 pcie_link_degraded/warning"
    ),
    "few replays, exporter restarted": quiet(lean(replays=0.5, reset_at=45), "44,46,50,75"),
    "few replays, scrapes failed": quiet(lean(replays=0.5, gap=(50, 53)), "49,54,70"),
    "half the lanes, scrapes failed, exporter restarted": Row(
        lean(link_width=8, reset_at=53),
        "52,60 pcie_link_degraded/warning",
        unscraped=(50, 53),
    ),
}

BURSTS: list[tuple[int, float]] = [(6, 0.0), *[(1, 0.33), (5, 0.0)] * 33]
STARTS: Table = {
    "starts for an hour": Row(
        idle(age_seconds=ages(0), memory=0.1),
        "9 -; 11 startup_stall; 13,19 startup_stall/info; 23,59 startup_stall/warning; "
        "75 allocated_idle/warning startup_stall/warning",
    ),
    "starts for 14 minutes": Row(
        idle(age_seconds=ages(0), busy=after(14, 0.95), main_cpu=0.5),
        "9 -; 13 startup_stall/info; 25,75 -",
    ),
    "starts, scrapes fail, exporter restarts": Row(
        idle(age_seconds=ages(0), reset_at=33), "29,40 startup_stall/warning", unscraped=(30, 33)
    ),
    "starts after another job": Row(
        idle(age_seconds=ages(32), busy=[(30, 0.95), (2, 0.0), (60, 0.0)]),
        "31,41 -; 45 startup_stall/info; 56,75 startup_stall/warning",
    ),
    "used in its first minutes": Row(
        stops(40, age_seconds=ages(20)), "38 -; 63 job_stalled/warning"
    ),
    "hardly used since it started": Row(
        idle(age_seconds=ages(0), busy=0.06), "12,35 unexplained_low_utilization"
    ),
    "compiles and tries kernels out": Row(
        compiling(),
        "12 startup_stall/info; 40 startup_stall/warning; "
        "75 too_few_workers/warning startup_stall/warning",
    ),
    "compiles, it is not known what is copied": Row(
        compiling(pcie_bytes=None), "12 too_few_workers"
    ),
    "is fed by too few from its start": Row(compiling(pcie_bytes=5e7), "12 too_few_workers"),
    "reads from its start": Row(compiling(worker_read_bytes=2e7), "12 too_few_workers"),
    "has worked, and compiles again": Row(
        compiling(busy=[(15, 0.1), (6, 0.6), (75, 0.1)]),
        "14 startup_stall/info; 35 too_few_workers/warning",
    ),
    "starts at an unknown time": Row(
        idle(missing=frozenset({"gpu_feeder_age_seconds"})),
        "12,29 unexplained_low_utilization; 40 allocated_idle/info",
    ),
    "starts, it is not known how busy": quiet(idle(age_seconds=ages(0), missing=BUSY | STALLS)),
    "starts again every eight minutes": Row(
        idle(age_seconds=ages(*range(0, LONG_MINUTES, 8))),
        "9,20,33 -; 46 restart_loop; 60,75 restart_loop/warning",
    ),
    "works again every eight minutes": Row(
        lean(busy=0.2, stalls={"worker_cpu": 0.8}, age_seconds=ages(*range(0, LONG_MINUTES, 8))),
        "33 -; 46 restart_loop; 75 restart_loop/warning",
    ),
    "short runs that use it": quiet(
        lean(busy=0.7, stalls={"host_code": 0.3}, age_seconds=ages(*range(0, LONG_MINUTES, 8))),
        "33,46,60,75",
    ),
    "starts again every quarter of an hour": quiet(
        idle(age_seconds=ages(*range(0, LONG_MINUTES, 15)), busy=0.45), "9,24,39"
    ),
    "a notebook's kernel is restarted": quiet(
        idle(age_seconds=ages(*range(0, LONG_MINUTES, 8)), interactive=1), "33,46,60"
    ),
}

HOLDERS: Table = {
    "free": quiet(free(), "1,9,20,45,75"),
    "free but for a monitor": quiet(free(processes=1, memory=0.003), "20,45,75"),
    "free on a busy host": quiet(free(host_busy_cores=31.0, disk_busy=0.95, host_iowait_cores=9)),
    "assigned and never opened": Row(
        free(owner=pod("3"), main_cpu=1.0),
        "5,14 allocated_never_used; 17,75 allocated_never_used/warning",
    ),
    "assigned, opened after twelve minutes": Row(
        lean(owner=pod("4"), processes=after(12, 1, 0), busy=after(12, 0.98)),
        "11 allocated_never_used; 25,75 -",
    ),
    "assigned and opened, not used": Row(idle(owner=pod("5")), "45 allocated_idle/info"),
    "assigned, no memory used, processes unknown": Row(
        free(owner=pod("6"), missing=FEEDERS | {"gpu_processes"}),
        "20,75 allocated_never_used/warning",
    ),
    "free, processes unknown": quiet(free(missing=FEEDERS | {"gpu_processes"})),
    "assigned and never opened, scrapes failed, exporter restarted": Row(
        free(owner=pod("7"), reset_at=53),
        "52,58 allocated_never_used/warning",
        unscraped=(50, 53),
    ),
    "a notebook that was just opened": Row(
        idle(interactive=1, age_seconds=ages(0)),
        "20 interactive_session; 45 interactive_session/info; 80 allocated_idle/warning",
    ),
    "notebook": Row(
        idle(interactive=1, busy=BURSTS), "29 interactive_session; 45,75 interactive_session/info"
    ),
    "notebook, scrapes failed, exporter restarted": Row(
        idle(interactive=1, busy=BURSTS, reset_at=53),
        "52,65,75 interactive_session/info",
        unscraped=(50, 53),
    ),
    "the same bursts of a batch job": Row(
        idle(interactive=0, busy=BURSTS),
        "29 unexplained_low_utilization; 75 unexplained_low_utilization/warning",
    ),
    "the same bursts of somebody unknown": Row(
        idle(busy=BURSTS, missing=frozenset({"gpu_feeder_interactive"})),
        "75 unexplained_low_utilization/warning",
    ),
    "busy notebook": Row(idle(interactive=1, busy=0.15), "75 unexplained_low_utilization/warning"),
    "notebook that nobody uses": Row(
        idle(interactive=1), "40 allocated_idle/info; 75 allocated_idle/warning"
    ),
    "notebook after a training": Row(
        stops(20, interactive=1), "46 unexplained_low_utilization; 58 allocated_idle/info"
    ),
    "idle": Row(
        idle(clock=0.2, power_watts=80.0, link_generation=1),
        "29 unexplained_low_utilization; 34 allocated_idle; 37,62 allocated_idle/info; "
        "69,75 allocated_idle/warning",
    ),
    "ended and still held": Row(
        stops(15, busy=0.55, network_bytes=2e5),
        "43 unexplained_low_utilization; 60 allocated_idle/info; 90 allocated_idle/warning",
    ),
    "idle, feeders unknown": Row(
        idle(feeders=False), "40 allocated_idle/info; 75 allocated_idle/warning"
    ),
    "idle, scrapes failed, exporter restarted": Row(
        idle(reset_at=78),
        "77,84 allocated_idle/warning",
        unscraped=(75, 78),
    ),
    "idle while its CPUs work": Row(
        idle(main_cpu=1.0, stalls={"host_code": 1.0}), "75 host_loop_bound/warning"
    ),
    "idle while it waits for the disk": Row(
        idle(stalls={"storage": 0.9, "asleep": 0.1}, disk_busy=0.9),
        "75 local_storage_bound/warning",
    ),
    "hardly idle": Row(idle(busy=0.03), "75 unexplained_low_utilization/warning"),
    "it is not known how busy": quiet(idle(missing=BUSY | STALLS)),
    "idle, too hot for the hardware": Row(
        idle(throttle={"hw_thermal": 0.1}), "75 hw_slowdown/warning"
    ),
}

SERVERS: Table = {
    "server at night": Row(
        serves(0.0, requests=1.0), "9,29 waits_for_requests; 40,75 waits_for_requests/info"
    ),
    "server after a busy day": Row(
        serves([(30, 0.95), (60, 0.0)], requests=[(30, 0.05), (60, 1.0)]),
        "28 -; 45,58 waits_for_requests; 75 waits_for_requests/info",
    ),
    "server in the morning": Row(
        serves([(40, 0.0), (50, 0.95)], requests=[(40, 1.0), (50, 0.05)]),
        "40 waits_for_requests/info; 62,75 -",
    ),
    # It is old enough to be judged, and its GPU has not been used yet.
    "server without its first request": Row(
        serves(0.0, requests=1.0, age_seconds=ages(0)),
        "9 -; 25 waits_for_requests; 50,75 waits_for_requests/info",
    ),
    "server in a terminal": Row(
        serves(BURSTS, requests=[(length, 1 - share) for length, share in BURSTS], interactive=1),
        "75 waits_for_requests/info",
    ),
    # Two fifths of the idle time, and half of all time.
    "server that mostly sleeps": Row(
        serves(0.0, requests=0.39, asleep=0.61), "75 allocated_idle/warning"
    ),
    "server that sleeps, too": Row(
        serves(0.0, requests=0.41, asleep=0.59), "75 waits_for_requests/info"
    ),
    "server with requests for more than half of the time": Row(
        serves(0.2, requests=0.49, host_code=0.31), "75 waits_for_requests"
    ),
    "server with requests for less than half of the time": Row(
        serves(0.2, requests=0.51, host_code=0.29), "75 waits_for_requests/info"
    ),
    "server that is used well": quiet(serves(0.72, requests=0.28)),
    # What takes more of the idle time is the cause.
    "server with a slow loop": Row(
        serves(0.1, requests=0.44, host_code=0.46), "75 host_loop_bound/warning"
    ),
    "server with a slow store, by disks and connections": Row(
        serves(0.1, requests=0.4, network=0.3, storage=0.2), "75 network_storage_bound/warning"
    ),
    "server that is still loading": Row(
        serves(0.0, requests=0.3, storage=0.7, age_seconds=ages(0), disk_busy=0.9),
        "25 startup_stall/warning",
    ),
    "server, too hot for the hardware": Row(
        serves(0.0, requests=1.0, throttle={"hw_thermal": 0.1}), "75 hw_slowdown/warning"
    ),
    "server of which it is not known what it waits for": Row(
        idle(missing=STALLS), "75 allocated_idle/warning"
    ),
    "server whose connections cannot be read": Row(
        serves(0.0, unknown=1.0), "75 allocated_idle/warning"
    ),
    "server of which it is not known how busy": quiet(idle(missing=BUSY | STALLS, interactive=0)),
}

STOPS: Table = {
    "stalled": Row(
        stops(30), "28 -; 43 unexplained_low_utilization; 49 job_stalled; 53,75 job_stalled/warning"
    ),
    "stalled, scrapes failed, exporter restarted": Row(
        stops(30, reset_at=73),
        "72,82 job_stalled/warning",
        unscraped=(70, 73),
    ),
    "exporter restarted while it stalls": Row(stops(30, reset_at=45), "60 job_stalled/warning"),
    "stalled, bytes unknown": Row(
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
        "60 job_stalled/warning",
    ),
    "stalled and too hot for the hardware": Row(
        stops(30, throttle={"hw_thermal": 0.1}), "75 hw_slowdown/warning"
    ),
    "pauses for ten minutes": Row(
        idle(busy=[(30, 0.95), (10, 0.0), (60, 0.95)]), "39 unexplained_low_utilization; 55,75 -"
    ),
    "hardly worked before": Row(stops(20, busy=0.25), "70 allocated_idle/info"),
    "stopped, data arrives": Row(stops(20, network_bytes=2e5), "70 allocated_idle/info"),
    "stopped, data is read": Row(stops(20, worker_read_bytes=2e5), "70 allocated_idle/info"),
    "stopped, somebody unknown": Row(stops(20, missing=STALLS), "70 allocated_idle/info"),
    "stopped, its CPUs work a little": Row(
        stops(20, stalls={"asleep": 0.85, "host_code": 0.15}, main_cpu=0.15),
        "50 unexplained_low_utilization",
    ),
}

LONG: Table = {
    "stalled two hours ago": Row(stops(30), "150 job_stalled/warning; 185 allocated_idle/warning"),
    "worked long ago": Row(stops(30, busy=0.25), "110,190 allocated_idle/warning"),
    "notebook in the morning": Row(
        idle(interactive=1, busy=[(60, 0.0), *BURSTS]),
        "59 allocated_idle/info; 190 interactive_session/info",
    ),
    "healthy": quiet(lean(owner=pod("8")), "20,100,190"),
}

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


BLIND: Mapping[str, tuple[Gpu, str]] = {
    "sees everything": (seen(owner=pod("9")), ""),
    "sees everything, never waits": (seen(owner=pod("10"), busy=1.0), ""),
    "Hopper without GPM": (seen(owner=pod("20"), sm=None), "device_causes"),
    "Ampere": (seen(owner=pod("11"), sm=None, architecture="ampere"), ""),
    "MIG on Hopper": (seen(owner=pod("12"), **MIG), "clock_causes host_causes link_causes"),
    "MIG on Ampere": (
        seen(owner=pod("13"), **{**MIG, "sm": None, "missing": MIG["missing"] | BUSY}),  # type: ignore[operator]
        "clock_causes device_causes host_causes link_causes",
    ),
    "feeders not seen": (seen(owner=pod("14"), feeders=False), "host_causes"),
    "waits unknown": (
        seen(owner=pod("15"), busy=0.75, stalls={"unknown": 0.2, "asleep": 0.05}),
        "host_causes",
    ),
    "waits hardly unknown": (
        seen(owner=pod("16"), busy=0.75, stalls={"unknown": 0.05, "asleep": 0.2}),
        "",
    ),
    "no throttle counters": (seen(owner=pod("17"), throttle=None), "clock_causes"),
    "no PCIe counters": (seen(owner=pod("18"), pcie_bytes=None), "link_causes"),
    "I/O of processes unreadable": (
        seen(owner=pod("19"), missing=frozenset({"gpu_feeder_read_bytes_total"})),
        "io_causes",
    ),
    "nobody's": (seen(), "job_causes"),
    "of a user only": (seen(owner={"user": "ann"}), "job_causes"),
    "free and blind": (free(sm=None, missing=FEEDERS | STALLS), ""),
}


def fleets(*tables: Table) -> tuple[Fleet, Fleet]:
    """Every row; those of the second fleet are evaluated half as often."""
    return fleets_of(merged(*tables), MINUTES, USUAL)


def expect_blind(fleet: Fleet, node: str, minutes: float, *kinds: str) -> None:
    query = (
        "sum by (blind, severity) "
        f'(ALERTS{{alertname="GpuCausesBlind",alertstate="firing",instance="{node}"}})'
    )
    answer = {f'{{blind="{kind}",severity="info"}}': 1.0 for kind in kinds}
    fleet.expect(minutes, query, answer)


HALF = pytest.mark.parametrize("half", [0, 1], ids=["each minute", "every other minute"])
"""Each of the two fleets takes promtool long enough to be a test."""


@HALF
def test_what_is_wrong_with_the_gpu(half: int, tmp_path: Path) -> None:
    fleets(TELEMETRY, FAULTS, CLOCKS, LINKS)[half].check(tmp_path)


@HALF
def test_who_holds_it_and_does_not_use_it(half: int, tmp_path: Path) -> None:
    fleet = fleets(STARTS, HOLDERS, SERVERS, STOPS)[half]
    if half == 1:
        add_blind(fleet)
        add_siblings(fleet)
    fleet.check(tmp_path)


def add_blind(fleet: Fleet) -> None:
    """Nodes on which some causes cannot be determined, and such as only look like it."""
    for name, (gpu, kinds) in BLIND.items():
        node = node_of(name)
        add_gpu(fleet, node, gpu)
        fleet.expect_firing(node, 85)
        expect_blind(fleet, node, 59)
        expect_blind(fleet, node, 85, *kinds.split())
        fleet.end(node, 85)


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
    fleet = Fleet(LONG_MINUTES, evaluation_interval="2m")
    for name, row in LONG.items():
        add_row(fleet, name, row, LONG_MINUTES)
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
    fleet = Fleet(30, files=FILES[1:], groups=GROUPS[2:], thresholds_evaluated=True)
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


def test_with_thresholds_nothing_is_missing(tmp_path: Path) -> None:
    """Other fleets have the same numbers as series."""
    fleet = Fleet(10, thresholds_evaluated=True)
    add_gpu(fleet, "hot", lean(throttle={"hw_thermal": 0.5, "sw_thermal": 0.5}, clock=0.4))
    fleet.expect(9, 'ALERTS{alertname="GpuThresholdsMissing"}', {})
    fleet.expect_firing("hot", 9, "GpuHardwareSlowdown/warning")
    fleet.check(tmp_path)


def test_targets_that_are_no_gpu_exporter_may_be_down(tmp_path: Path) -> None:
    fleet = Fleet(30)
    fleet.gauge("up", 0, job=JOB, instance="other")
    fleet.expect(30, 'ALERTS{alertname="GpuExporterDown"}', {})
    fleet.check(tmp_path)


def severities() -> dict[str, set[str]]:
    """The alerts of each severity."""
    found: dict[str, set[str]] = {}
    for rule in causes_table.pack():
        if rule.is_alert:
            found.setdefault(rule.labels["severity"], set()).add(rule.name)
    return found


def test_nobody_is_woken_for_under_use() -> None:
    assert severities()["critical"] == {"GpuFault"}


def test_there_are_three_severities() -> None:
    assert set(severities()) == {"critical", "warning", "info"}
