"""What every driver must answer; each test runs on both, but those of faults and MIG."""

from __future__ import annotations

import subprocess
import time
from itertools import pairwise

import pytest
from pynvml import NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_SUPPORTED

from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.driver.protocol import Device, DeviceLost, Unsupported
from gpu_bottleneck_exporter.driver.readings import Activity, ErrorEvent, RingSample
from support.board import GRAPHICS
from support.drivers import first
from support.models import A100
from support.waiting import PATIENCE_SECONDS

from .conftest import Make

WINDOW_US = 170_000
LONG_SECONDS = 15.0
"""Work that lasts longer than any test, on a busy machine too."""
ATTEMPTS = 50


def samples_after(device: Device, seconds: float) -> list[RingSample]:
    """Samples of the GPU ring for `seconds` from now, to the last window's end."""
    device.utilization()
    time.sleep(seconds)
    return list(device.utilization().gpu or ())


def activity_over(device: Device, seconds: float) -> Activity:
    device.activity()
    time.sleep(seconds)
    activity = device.activity()
    assert activity is not None
    return activity


def test_gives_versions_and_count(both: Make) -> None:
    driver = both(gpus=[H100] * 3, driver_version="595.45.04").driver
    assert driver.count() == 3
    assert driver.system.driver_version == "595.45.04"
    assert driver.system.cuda_version == "13.0"


def test_identifies_a_gpu(both: Make) -> None:
    machine = both(gpus=[A100, H100])
    (device,) = machine.driver.open(1)
    who = device.identity
    assert who.index == 1
    assert who.uuid == machine.board.gpus[1].record.uuid.decode()
    assert who.name == "NVIDIA H100 80GB HBM3"
    assert who.architecture == "hopper"
    assert who.pci_bus_id == "00000000:11:00.0"
    assert who.mig_profile is None
    assert who.parent_uuid is None


def test_ring_gives_each_window_once_in_order(both: Make) -> None:
    device = both().device
    seen: list[RingSample] = []
    for _ in range(6):
        time.sleep(0.1)
        seen += device.utilization().gpu or ()
    stamps = [sample.timestamp_us for sample in seen]
    assert stamps == sorted(set(stamps))
    assert {new - old for old, new in pairwise(stamps)} == {WINDOW_US}


def test_ring_holds_the_busy_time(both: Make) -> None:
    machine = both()
    device = machine.device
    device.utilization()
    machine.gpu.run(0.5, Work(memory=0.5))
    time.sleep(0.4)
    reading = device.utilization()
    busy_us = sum(s.percent or 0 for s in reading.gpu or ()) / 100 * WINDOW_US
    memory_us = sum(s.percent or 0 for s in reading.memory or ()) / 100 * WINDOW_US
    assert busy_us == pytest.approx(500_000, rel=0.05)
    assert memory_us == pytest.approx(250_000, rel=0.05)


def test_ring_remembers_ten_seconds_and_no_more(both: Make) -> None:
    machine = both()
    machine.record.ring_samples = 3
    device = machine.device
    assert len(samples_after(device, 1.2)) == 3


def test_without_a_new_window_the_ring_says_so_and_the_single_reading_helps(both: Make) -> None:
    machine = both()
    machine.record.period_slots = 100
    device = machine.device
    machine.gpu.launch(LONG_SECONDS)
    time.sleep(2.2)
    device.utilization()
    # A window may have ended just now.
    readings = (device.utilization() for _ in range(ATTEMPTS))
    reading = next(one for one in readings if one.gpu == ())
    assert reading.gpu_percent == 100


def test_without_a_ring_the_single_reading_stays(nvml: Make) -> None:
    machine = nvml()
    machine.gpu.fail("DeviceGetSamples", NVML_ERROR_NOT_SUPPORTED)
    reading = machine.device.utilization()
    assert reading.gpu is None
    assert reading.gpu_percent is not None


def test_without_ring_and_reading_utilization_is_unsupported(nvml: Make) -> None:
    machine = nvml()
    machine.gpu.fail("DeviceGetSamples", NVML_ERROR_NOT_SUPPORTED)
    machine.gpu.fail("DeviceGetUtilizationRates", NVML_ERROR_NOT_SUPPORTED)
    device = machine.device
    with pytest.raises(Unsupported):
        device.utilization()


def test_activity_is_the_mean_since_the_last_reading(both: Make) -> None:
    machine = both()
    device = machine.device
    work = Work(
        sm_active=0.8,
        sm_occupancy=0.4,
        tensor=0.2,
        fp64=0.1,
        fp32=0.3,
        fp16=0.05,
        integer=0.15,
        dram=0.6,
        pcie_receive_bytes_per_second=4e9,
        pcie_transmit_bytes_per_second=1e9,
        nvlink_receive_bytes_per_second=2e9,
        nvlink_transmit_bytes_per_second=3e9,
    )
    machine.gpu.launch(LONG_SECONDS, work)
    time.sleep(0.1)
    activity = activity_over(device, 0.6)
    assert activity.graphics == pytest.approx(1.0, abs=0.05)
    assert activity.sm_active == pytest.approx(0.8, abs=0.05)
    assert activity.sm_occupancy == pytest.approx(0.4, abs=0.05)
    assert activity.dram_active == pytest.approx(0.6, abs=0.05)
    assert activity.pipes == pytest.approx(
        {"tensor": 0.2, "fp64": 0.1, "fp32": 0.3, "fp16": 0.05, "int": 0.15}, abs=0.05
    )
    seconds = activity.interval_ns / 1e9
    rates = {name: amount / seconds for name, amount in activity.traffic_bytes.items()}
    assert rates == pytest.approx(
        {"pcie_receive": 4e9, "pcie_transmit": 1e9, "nvlink_receive": 2e9, "nvlink_transmit": 3e9},
        rel=0.05,
    )


def test_activity_needs_two_readings_far_enough_apart(both: Make) -> None:
    driver = both().driver
    # Between the two, others may have the CPU for longer than that.
    devices = (first(driver) for _ in range(ATTEMPTS))
    device = next(one for one in devices if one.activity() is None and one.activity() is None)
    time.sleep(0.3)
    assert device.activity() is not None


def test_activity_is_unsupported_before_hopper(nvml: Make) -> None:
    device = nvml(gpus=[A100]).device
    with pytest.raises(Unsupported):
        device.activity()


def test_power_and_energy_follow_the_work(both: Make) -> None:
    machine = both()
    device = machine.device
    idle = device.power()
    assert idle.watts == pytest.approx(72, abs=1)
    assert idle.limit_watts == 700
    machine.gpu.launch(LONG_SECONDS, Work(watts=500))
    time.sleep(1.2)
    busy = device.power()
    assert busy.watts is not None
    assert busy.watts == pytest.approx(572, abs=15)
    assert idle.energy_joules is not None
    assert busy.energy_joules is not None
    assert busy.energy_joules - idle.energy_joules > 400


@pytest.mark.parametrize("model", [A100, H100])
def test_temperatures_and_absolute_limits(both: Make, model: object) -> None:
    machine = both(gpus=[model])
    thermal = machine.device.thermal()
    assert thermal.sensors == {"gpu": 41, "memory": 47}
    assert thermal.limits == {"slowdown": 87, "shutdown": 92, "max_operating": 85}


def test_clocks_are_in_hertz(both: Make) -> None:
    machine = both()
    machine.record.clock_mhz[1] = 345
    clocks = machine.device.clocks()
    assert clocks.now["sm"] == 345e6
    assert clocks.maximum == {"graphics": 1980e6, "sm": 1980e6, "memory": 2619e6, "video": 1545e6}


@pytest.mark.parametrize("version", ["575.57.08", "580.65.06", "580.82.07", "595.45.04"])
def test_throttle_time_by_reason_on_each_branch(nvml: Make, version: str) -> None:
    machine = nvml(driver_version=version)
    shares = {"power_cap": 0.25, "sw_thermal": 0.5, "hw_power_brake": 0.75, "hw_thermal": 1.0}
    for reason, share in shares.items():
        machine.gpu.throttle(reason, share)
    device = machine.device
    most = time.monotonic_ns()
    before = device.throttle().spent_ns
    least = time.monotonic_ns()
    time.sleep(0.5)
    least = time.monotonic_ns() - least
    after = device.throttle().spent_ns
    most = time.monotonic_ns() - most
    others = {"sync_boost", "board_limit", "reliability", "app_clocks"}
    assert after.keys() == before.keys() == shares.keys() | others
    for reason, spent in after.items():
        share = shares.get(reason, 0.0)
        # In microseconds, at times.
        assert share * least - 1000 <= spent - before[reason] <= share * most + 1000


def test_what_throttles_now(nvml: Make) -> None:
    machine = nvml()
    machine.record.event_reasons = 0x4 | 0x8 | 0x40 | 0x200
    active = machine.device.throttle().active
    on = {reason for reason, on in active.items() if on}
    assert on == {"power_cap", "hw_thermal", "board_limit"}


def test_memory_tells_used_and_reserved_apart(both: Make) -> None:
    machine = both()
    with subprocess.Popen(["sleep", "60"]) as process:
        machine.gpu.hold(process.pid, 5 * 2**30)
        memory = machine.device.memory()
        process.kill()
    assert memory.total_bytes == H100.memory_total
    assert memory.used_bytes == 5 * 2**30
    assert memory.reserved_bytes == H100.memory_reserved


def test_health(nvml: Make) -> None:
    machine = nvml()
    record = machine.record
    record.ecc_corrected, record.ecc_uncorrected = 7, 2
    record.remapped_corrected, record.remapped_uncorrected = 1, 3
    record.remap_pending = 1
    health = machine.device.health()
    assert health.ecc_errors == {"corrected": 7, "uncorrected": 2}
    assert health.remapped_rows == {"corrected": 1, "uncorrected": 3}
    assert health.remap_pending is True
    assert health.remap_failed is False


def test_link(both: Make) -> None:
    machine = both()
    record = machine.record
    record.pcie_replays, record.pcie_width = 9, 8
    link = machine.device.link()
    assert (link.replays, link.generation, link.generation_max) == (9, 5, 5)
    assert (link.width, link.width_max) == (8, 16)


def test_processes_are_listed_once_and_only_while_they_live(nvml: Make) -> None:
    machine = nvml()
    device = machine.device
    assert device.processes().processes == ()
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as other:
        machine.gpu.hold(one.pid, 2**30)
        machine.gpu.hold(other.pid, 2**20)
        machine.record.processes[1].kind = GRAPHICS
        found = device.processes().processes
        listed = {process.pid: process.used_bytes for process in found}
        assert [process.pid for process in found if process.draws_only] == [other.pid]
        one.kill()
        one.wait()
        left = [process.pid for process in device.processes().processes]
        other.kill()
    assert listed == {one.pid: 2**30, other.pid: 2**20}
    assert left == [other.pid]


READINGS = (
    "utilization",
    "activity",
    "power",
    "thermal",
    "clocks",
    "throttle",
    "memory",
    "health",
    "link",
    "processes",
)


@pytest.mark.parametrize("reading", READINGS)
def test_a_lost_gpu_is_lost_for_every_reading_and_comes_back(nvml: Make, reading: str) -> None:
    machine = nvml(gpus=[H100, H100])
    driver = machine.driver
    device, neighbour = first(driver), driver.open(1)[0]
    machine.record.device_result = NVML_ERROR_GPU_IS_LOST
    with pytest.raises(DeviceLost):
        getattr(device, reading)()
    with pytest.raises(DeviceLost):
        driver.open(0)
    getattr(neighbour, reading)()
    machine.record.device_result = 0
    getattr(first(driver), reading)()


def test_xids_reach_whoever_waits(nvml: Make) -> None:
    machine = nvml(gpus=[H100, H100])
    driver = machine.driver
    for index in (0, 1):
        driver.open(index)
        driver.watch_errors(index)
    assert driver.wait_error(0.05) is None
    machine.board.raise_xid(1, 79)
    machine.board.raise_xid(0, 31)
    found = [driver.wait_error(PATIENCE_SECONDS) for _ in range(2)]
    assert found == [ErrorEvent(1, 79), ErrorEvent(0, 31)]
