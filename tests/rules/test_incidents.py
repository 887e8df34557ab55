"""One incident, one ticket, and none lost: not silently, and not under the wrong name.

What is lost all day, and what comes and goes for hours, is in test_hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rules.fleet import Fleet, Gpu, add_gpu, changed, job
from rules.test_fleets import SPINS

END = 50
HEALTHY = Gpu()


def test_incidents(tmp_path: Path) -> None:
    fleet = Fleet(END, evaluation_interval="2m")
    for add in (failing_scrapes, bad_hardware, two_jobs):
        add(fleet)
    fleet.check(tmp_path)


def failing_scrapes(fleet: Fleet) -> None:
    """Now and then: they delay no alert."""
    cases = {
        "GpuHostLoopBound": Gpu(busy=0.25, sm=0.2, stalls={"host_code": 0.75}),
        "GpuAllocatedNeverUsed": Gpu(busy=0.0, processes=0, memory=0.0, owner=job(1)),
        "GpuThermalThrottle": changed(HEALTHY, throttle={"sw_thermal": 0.3}, clock=0.8),
    }
    for every in (3, 9):
        for name, gpu in cases.items():
            node = f"{name}-{every}"
            add_gpu(fleet, node, gpu)
            for minute in range(every, 40, every):
                fleet.fail_scrapes(node, minute, minute + 1)
            fleet.expect_firing(node, 39, f"{name}/warning")
            fleet.end(node, 39)


HARDWARE: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "brake": ("hw_slowdown", {"throttle": {"hw_power_brake": 0.5}, "clock": 0.4}),
    "heat": ("thermal_throttle", {"throttle": {"sw_thermal": 0.5}, "clock": 0.6}),
    "clocks": ("clock_limited", {"clock": 0.5}),
    "fault": ("gpu_fault", {"row_remap_failed": 1}),
    "silence": ("telemetry_lost", {"up": [(20, 1), (50, 0)]}),
}


def bad_hardware(fleet: Fleet) -> None:
    """Ranks wait for one with bad hardware.

    They spin with little to do; their time is lost to its cause, not to small batches.
    """
    for node, (cause, broken) in HARDWARE.items():
        for index in range(8):
            gpu = changed(HEALTHY, **broken) if index == 3 else changed(SPINS, memory=0.2, dram=0.1)
            add_gpu(fleet, node, changed(gpu, owner=job(node)), index)
        primary = f'sum by (gpu, cause) (gpu:bottleneck:primary{{instance="{node}"}})'
        fleet.expect(48, primary, {f'{{cause="{cause}",gpu="3"}}': 1.0})


DISK = Gpu(busy=0.25, sm=0.2, dram=0.1, stalls={"storage": 0.75}, disk_busy=0.9)
CROWD = changed(DISK, stalls={"cpu_queue": 0.75}, disk_busy=0.05, host_busy_cores=32.0)


def test_what_is_slow_for_several_jobs_of_a_node_is_the_nodes_incident(tmp_path: Path) -> None:
    """Before the jobs' own alerts, which it mutes."""
    fleet = Fleet(11)
    for node, cause, gpu in (
        ("disk", "local_storage_bound", DISK),
        ("crowd", "cpu_oversubscribed", CROWD),
    ):
        for index in range(8):
            add_gpu(fleet, node, changed(gpu, owner=job(f"{node}-{index}")), index)
        told = f'{{alertname="GpuNodeBottleneck",cause="{cause}"}}'
        every = f'ALERTS{{alertstate="firing",instance="{node}"}}'
        fleet.expect(11, f"count by (alertname, cause) ({every})", {told: 1.0})
    fleet.check(tmp_path)


def two_jobs(fleet: Fleet) -> None:
    """Too few for an incident of their node."""
    for index in range(8):
        add_gpu(fleet, "two-jobs", changed(DISK, owner=job(f"two-{index % 2}")), index)
    fleet.expect(39, 'ALERTS{alertname="GpuNodeBottleneck",instance="two-jobs"}', {})
    fleet.end("two-jobs", 39)
