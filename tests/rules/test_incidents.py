"""One incident, one ticket, and none lost: not silently, and not under the wrong name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rules.cases import Row, Table, fleets_of
from rules.fleet import Fleet, Gpu, add_gpu
from rules.series import Phases, Signal
from rules.test_fleets import SPINS, job
from rules.test_health_and_jobs import ages
from rules.test_on_the_gpu import END, HANGING, HEALTHY, changed, then

MINUTES = 110
UNEXPLAINED = "unexplained_low_utilization/warning"


def mixed(busy: float, **waits: float) -> Mapping[str, Signal]:
    return {on: share * (1 - busy) for on, share in waits.items()}


THIRDS = {"storage": 0.35, "worker_cpu": 0.35, "asleep": 0.3}
"""No single one takes two fifths of the idle time."""

ALONE: Table = {
    # Two causes at once: the quota takes little, and what is lost is a ticket all the same.
    "small quota and heavy decoding": Row(
        Gpu(
            busy=0.35,
            sm=0.3,
            dram=0.1,
            stalls={"worker_cpu": 0.65},
            workers=4,
            worker_cpu=1.9,
            main_cpu=0.1,
            cpu_limit_cores=2.0,
            throttled=0.3,
        ),
        "cpu_throttled/warning",
    ),
    # An info does not hide that most of the day is lost.
    "probably copies": Row(
        Gpu(
            busy=0.4,
            sm=0.1,
            dram=0.1,
            stalls={"asleep": 0.6},
            memory=0.9,
            pcie_bytes=2e9,
        ),
        "pcie_transfer_bound/info GpuUnderused/warning",
    ),
    # What the SMs do while the GPU works says whether its work is wasteful, not that it waits.
    **{
        f"mixed waits at {busy:.0%} with {memory:.0%} of memory": Row(
            Gpu(
                busy=busy,
                sm=busy * 0.85,
                dram=busy * 0.5,
                memory=memory,
                stalls=mixed(busy, **THIRDS),
            ),
            f"50 {UNEXPLAINED}; {UNEXPLAINED}",
        )
        for busy in (0.25, 0.35, 0.45)
        for memory in (0.3, 0.7, 0.9)
    },
    "mixed waits without counters of the SMs": Row(
        Gpu(
            busy=0.4,
            sm=None,
            dram=None,
            pipes=None,
            power_watts=250.0,
            memory=0.3,
            stalls=mixed(0.4, **THIRDS),
        ),
        UNEXPLAINED,
    ),
    # With few SMs even while it works, and nothing on the host that adds up: small batches.
    "small batches between waits": Row(
        Gpu(busy=0.45, sm=0.1, dram=0.05, memory=0.2, stalls={"asleep": 0.55}),
        "small_batch/info GpuUnderused/warning",
    ),
}


def test_what_is_lost_all_day_is_told(tmp_path: Path) -> None:
    for fleet in fleets_of(ALONE, MINUTES, usual=(50, MINUTES)):
        fleet.check(tmp_path)


def firing(node: str) -> str:
    labels = f'alertstate="firing",instance="{node}",alertname!="GpuCausesBlind"'
    return f"count by (alertname, gpu) (ALERTS{{{labels}}})"


@pytest.mark.parametrize("every", [3, 9])
def test_scrapes_that_fail_now_and_then_delay_no_alert(every: int, tmp_path: Path) -> None:
    fleet = Fleet(40)
    cases = {
        "GpuHostLoopBound": Gpu(busy=0.25, sm=0.2, stalls={"host_code": 0.75}),
        "GpuAllocatedNeverUsed": Gpu(busy=0.0, processes=0, memory=0.0, owner=job(1)),
        "GpuThermalThrottle": changed(HEALTHY, throttle={"sw_thermal": 0.3}, clock=0.8),
    }
    for name, gpu in cases.items():
        add_gpu(fleet, name, gpu)
        for minute in range(every, 40, every):
            fleet.fail_scrapes(name, minute, minute + 1)
        fleet.expect_firing(name, 39, f"{name}/warning")
    fleet.check(tmp_path)


def test_the_rank_that_does_not_spin_is_the_culprit_of_a_hang(tmp_path: Path) -> None:
    """All have one alert, which names it: one ticket, and not that the job is uneven."""
    fleet = Fleet(END)
    sleeps = changed(
        HANGING,
        busy=then(0.98, 0.0),
        sm=then(0.85, 0.0),
        power_watts=then(560.0, 80.0),
        stalls={"peer": then(0.0, 1.0)},
    )
    for index in range(8):
        gpu = sleeps if index == 5 else HANGING
        add_gpu(fleet, "hang", changed(gpu, owner=job(1)), index)
    told = {f'{{alertname="GpuCollectiveHang",gpu="{index}"}}': 1.0 for index in range(8)}
    fleet.expect(END - 2, firing("hang"), told)
    fleet.expect(END - 2, "sum by (gpu) (gpu:hang:culprit)", {'{gpu="5"}': 1.0})
    fleet.check(tmp_path)


HARDWARE: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "brake": ("hw_slowdown", {"throttle": {"hw_power_brake": 0.5}, "clock": 0.4}),
    "heat": ("thermal_throttle", {"throttle": {"sw_thermal": 0.5}, "clock": 0.6}),
    "clocks": ("clock_limited", {"clock": 0.5}),
    "fault": ("gpu_fault", {"row_remap_failed": 1}),
    "silence": ("telemetry_lost", {"up": [(20, 1), (50, 0)]}),
}


def test_ranks_wait_for_one_with_bad_hardware(tmp_path: Path) -> None:
    """They spin with little to do; their time is lost to its cause, not to small batches."""
    fleet = Fleet(50)
    for node, (cause, broken) in HARDWARE.items():
        for index in range(8):
            gpu = changed(HEALTHY, **broken) if index == 3 else changed(SPINS, memory=0.2, dram=0.1)
            add_gpu(fleet, node, changed(gpu, owner=job(1)), index)
        fleet.expect(
            48,
            f'sum by (gpu, cause) (gpu:bottleneck:primary{{instance="{node}"}})',
            {f'{{cause="{cause}",gpu="3"}}': 1.0},
        )
    fleet.check(tmp_path)


# --- How many tickets ------------------------------------------------------------------------

DAY = 480


def openings(node: str) -> str:
    """How often warnings of `node` began within the day, by name."""
    firing = f'ALERTS{{alertstate="firing",severity!="info",instance="{node}"}}'
    began = f"{firing} unless {firing} offset 2m"
    return f"sum by (alertname) (count_over_time(({began})[{DAY}m:2m]))"


def phases(first: float, second: float, minutes: int) -> Phases:
    return [(minutes, first), (minutes, second)] * (DAY // (2 * minutes))


def test_what_comes_and_goes_all_day_opens_hardly_more_than_once(tmp_path: Path) -> None:
    fleet = Fleet(DAY, evaluation_interval="2m")
    loop = {"sm": 0.2, "dram": 0.1}
    for minutes in (20, 30, 40):
        busy, idle = phases(0.98, 0.2, minutes), phases(0.02, 0.8, minutes)
        add_gpu(fleet, f"phases-{minutes}", Gpu(busy=busy, stalls={"host_code": idle}))
        fleet.expect(DAY, openings(f"phases-{minutes}"), {'{alertname="GpuHostLoopBound"}': 1.0})
    hovering = {"host_code": phases(0.36, 0.28, 15), "worker_cpu": phases(0.28, 0.36, 15)}
    add_gpu(fleet, "hovering", Gpu(busy=0.2, **loop, stalls=hovering))
    add_gpu(
        fleet,
        "disk",
        Gpu(busy=0.2, **loop, stalls={"storage": 0.8}, disk_busy=phases(0.6, 0.43, 20)),
    )
    fleet.expect(DAY, openings("disk"), {'{alertname="GpuLocalStorageBound"}': 1.0})
    twice = ("GpuCpuPreprocessingBound", "GpuHostLoopBound")
    fleet.expect(DAY, openings("hovering"), {f'{{alertname="{one}"}}': 1.0 for one in twice})
    fleet.check(tmp_path)


def test_several_jobs_that_share_what_is_slow_are_the_nodes_incident(tmp_path: Path) -> None:
    fleet = Fleet(40)
    slow = {
        "disk": ("local_storage_bound", {"stalls": {"storage": 0.75}, "disk_busy": 0.9}),
        "crowd": ("cpu_oversubscribed", {"stalls": {"cpu_queue": 0.75}, "host_busy_cores": 32.0}),
    }
    for node, (cause, fields) in slow.items():
        for index in range(8):
            gpu = changed(Gpu(busy=0.25, sm=0.2, dram=0.1), **fields)
            add_gpu(fleet, node, changed(gpu, owner=job(index)), index)
        told = f'{{alertname="GpuNodeBottleneck",cause="{cause}"}}'
        every = f'ALERTS{{alertstate="firing",instance="{node}"}}'
        # Before the jobs' own, which it mutes.
        fleet.expect(11, f"count by (alertname, cause) ({every})", {told: 1.0})
    for index in range(8):
        gpu = changed(Gpu(busy=0.25, sm=0.2, dram=0.1), **slow["disk"][1])
        add_gpu(fleet, "one-job", changed(gpu, owner=job(index % 2)), index)
    fleet.expect(39, 'ALERTS{alertname="GpuNodeBottleneck",instance="one-job"}', {})
    fleet.check(tmp_path)


def test_a_board_that_was_replaced_is_not_lost(tmp_path: Path) -> None:
    fleet = Fleet(120)
    for node in ("replaced", "lost"):
        add_gpu(fleet, node, Gpu(uuid=f"GPU-old-{node}"), 0)
        add_gpu(fleet, node, Gpu(), 1)
        fleet.remove(f"GPU-old-{node}", 60)
    first = len(fleet._series)
    add_gpu(fleet, "replaced", Gpu(uuid="GPU-new"), 0)
    fleet.silence(first, (0, 62))
    lost = 'count by (instance, uuid) (gpu:bottleneck:primary{cause="telemetry_lost"})'
    fleet.expect(110, lost, {'{instance="lost",uuid="GPU-old-lost"}': 1.0})
    fleet.check(tmp_path)


def test_a_notebook_in_bursts_is_interactive(tmp_path: Path) -> None:
    fleet = Fleet(150)
    bursts = [(4, 0.0), (4, 0.0), (4, 0.6)] * 12
    add_gpu(fleet, "bursts", Gpu(busy=bursts, sm=0.1, dram=0.1, interactive=1))
    fleet.expect_firing("bursts", 149, "GpuInteractiveSession/info")
    fleet.check(tmp_path)


def test_a_start_up_that_never_ends_has_a_name_at_any_time(tmp_path: Path) -> None:
    fleet = Fleet(100)
    asleep = Gpu(busy=0.0, sm=0.0, stalls={"asleep": 1.0}, age_seconds=ages(0))
    add_gpu(fleet, "starting", asleep)
    named = 'count by (instance) (ALERTS{alertstate="firing",severity="warning"}) > bool 0'
    for minute in range(24, 100, 2):
        fleet.expect(minute, named, {'{instance="starting"}': 1.0})
    fleet.check(tmp_path)
