"""Answers of every driver: on both drivers, but for faults, MIG and NVLink-C2C."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from pynvml import (
    NVML_ERROR_GPU_IS_LOST,
    NVML_ERROR_NO_PERMISSION,
    NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED,
)

from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.driver import readings, refusals
from gpu_bottleneck_exporter.driver.protocol import Device, DeviceLost, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import Link, Memory, Process, UnitActivity
from support.board import GRAPHICS
from support.children import Parent
from support.drivers import first
from support.models import A100, GB10
from support.rows import rows
from support.waiting import PATIENCE_SECONDS

from .conftest import Machine, Make

Start = Callable[[], Parent]
WINDOW_US = 170_000
LONG_SECONDS = 15.0
"""Work that lasts longer than any test, on a busy machine too."""
ATTEMPTS = 50
GH200 = replace(H100, name=b"NVIDIA GH200 480GB", c2c_links=10)
NO_C2C = replace(H100, c2c_links=0)
THOR = replace(GB10, name=b"NVIDIA Thor", c2c_links=0)
"""A GPU like a GB10, with a driver that does not count its C2C links."""


def mem_total() -> int:
    (line,) = (x for x in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x)
    return int(line.split()[1]) * 1024


# --- What stands on the board ---------------------------------------------------------------------
def test_gives_versions_and_identifies_its_gpus(both: Make) -> None:
    machine = both(gpus=[A100, H100, H100], driver_version="595.45.04")
    assert machine.driver.count() == 3
    assert machine.driver.system == readings.System("595.45.04", "13.0")
    (device,) = machine.driver.open(1)
    who = device.identity
    assert (who.index, who.uuid) == (1, machine.board.gpus[1].record.uuid.decode())
    assert (who.name, who.architecture) == ("NVIDIA H100 80GB HBM3", "hopper")
    assert who.pci_bus_id == "00000000:11:00.0"
    assert who.mig_profile is who.parent_uuid is None


Situation = tuple[Model, Mapping[str, int], readings.Reading]
"""A GPU, fields of its record that are changed, and a reading then."""
SENSORS = {"gpu": 41, "memory": 47}
LIMITS = {"slowdown": 87, "shutdown": 92, "max_operating": 85, "memory_max_operating": 85}
WITH_ERRORS = {"ecc_corrected": 7, "ecc_uncorrected": 2, "remap_pending": 1}
WITH_ERRORS |= {"remapped_corrected": 1, "remapped_uncorrected": 3}
ERRORS = readings.Health(
    {"corrected": 7, "uncorrected": 2},
    {"corrected": 1, "uncorrected": 3},
    remap_pending=True,
    remap_failed=False,
)
NARROW = {"pcie_generation": 1, "pcie_width": 1}
OF_BOTH: Mapping[str, Situation] = {
    "temperatures and a margin": (H100, {}, readings.Thermal(SENSORS, margin=44)),
    "temperatures and limits": (A100, {}, readings.Thermal(SENSORS, LIMITS)),
    "too hot": (H100, {"temperature": 88}, readings.Thermal({**SENSORS, "gpu": 88}, margin=-3)),
    "a link": (H100, {"pcie_replays": 9, "pcie_width": 8}, Link(9, 5, 5, 8, 16)),
}
OF_NVML: Mapping[str, Situation] = {
    "a link not known": (H100, {"pcie_generation": 0, "pcie_width": 0}, Link(0, None, 5, None, 16)),
    "health": (H100, WITH_ERRORS, ERRORS),
    "a placeholder of a link": (GB10, {"pcie_width_max": 16}, Link(replays=0)),
    "a wide link beside C2C": (GB10, {"pcie_width": 16}, Link(0, 1, 1, 16, 1)),
    "a narrow link beside C2C": (GH200, {"pcie_width": 1}, Link(0, 5, 5, 1, 16)),
    "such a link without C2C": (NO_C2C, NARROW, Link(0, 1, 5, 1, 16)),
    "a placeholder of a link, links not counted": (THOR, {"pcie_width_max": 16}, Link(replays=0)),
    "the machine's memory, links not counted": (THOR, {}, Memory(mem_total(), of_machine=True)),
    "the machine's memory": (GB10, {}, Memory(mem_total(), of_machine=True)),
    "memory beside C2C": (GH200, {}, Memory(H100.memory_total, 0, H100.memory_reserved)),
}


def check(machine: Machine, fields: Mapping[str, int], expected: readings.Reading) -> None:
    for name, value in fields.items():
        setattr(machine.record, name, value)
    assert getattr(machine.device, type(expected).__name__.lower())() == expected


@rows("model, fields, expected", OF_BOTH)
def test_a_reading_equals_the_value_of_the_board(
    both: Make, model: Model, fields: Mapping[str, int], expected: readings.Reading
) -> None:
    check(both(gpus=[model]), fields, expected)


@rows("model, fields, expected", OF_NVML)
def test_so_is_one_that_only_nvml_gives(
    nvml: Make, model: Model, fields: Mapping[str, int], expected: readings.Reading
) -> None:
    check(nvml(gpus=[model]), fields, expected)


def test_memory_of_a_gpu_without_pcie_is_the_machines_once_its_own_stays_refused(
    nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvml(gpus=[THOR])
    for call in ("DeviceGetCurrPcieLinkGeneration", "DeviceGetCurrPcieLinkWidth"):
        machine.gpu.fail(call, NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(Unsupported):
        machine.device.memory()
    monkeypatch.setattr(refusals, "SETTLE_NS", 0)
    assert machine.device.memory() == Memory(mem_total(), of_machine=True)


def test_memory_that_may_not_be_read_is_not_the_machines(
    nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvml(gpus=[THOR])
    monkeypatch.setattr(refusals, "SETTLE_NS", 0)
    machine.gpu.fail("DeviceGetMemoryInfo", NVML_ERROR_NO_PERMISSION)
    with pytest.raises(Unsupported):
        machine.device.memory()
    assert machine.device.link().width == 1


@rows("model, coherent", {"GH200": (GH200, True), "H100": (H100, False)})
def test_a_gpu_reports_whether_the_kernel_uses_its_memory(
    nvml: Make, model: Model, *, coherent: bool
) -> None:
    assert nvml(gpus=[model]).device.identity.coherent is coherent


def test_clocks_are_in_hertz(both: Make) -> None:
    machine = both()
    machine.record.clock_mhz[:] = (230, 345, 1593, 765)
    clocks = machine.device.clocks()
    assert clocks.now == {"graphics": 230e6, "sm": 345e6, "memory": 1593e6, "video": 765e6}
    assert clocks.maximum == {"graphics": 1980e6, "sm": 1980e6, "memory": 2619e6, "video": 1545e6}


def test_used_and_reserved_memory_are_separate(both: Make, start: Start) -> None:
    machine = both()
    machine.gpu.hold(start().pid, 5 * 2**30)
    assert machine.device.memory() == Memory(H100.memory_total, 5 * 2**30, H100.memory_reserved)


def test_processes_are_listed_once_and_only_while_they_live(nvml: Make, start: Start) -> None:
    machine = nvml()
    assert machine.device.processes().processes == ()
    child, other = start(), start()
    machine.gpu.hold(child.pid, 2**30)
    machine.gpu.hold(other.pid, 2**20)
    machine.record.processes[1].kind = GRAPHICS
    both_live = {Process(child.pid, 2**30), Process(other.pid, 2**20, draws_only=True)}
    assert {*machine.device.processes().processes} == both_live
    child.end()
    assert [process.pid for process in machine.device.processes().processes] == [other.pid]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_processes_are_listed_whichever_version_the_driver_has(
    nvml: Make, start: Start, version: int
) -> None:
    machine = nvml(gpus=[replace(H100, process_list_version=version)])
    pids = [start().pid for _ in range(3)]
    for pid in pids:
        machine.gpu.hold(pid, 2**20)
    machine.record.processes[2].kind = GRAPHICS
    held = machine.device.processes()
    assert {*held.processes} == {
        *(Process(pid, 2**20) for pid in pids[:2]),
        Process(pids[2], 2**20, draws_only=True),
    }
    assert machine.device.last_error is None


def test_a_version_that_was_answered_is_the_only_one(nvml: Make, start: Start) -> None:
    machine = nvml()
    machine.gpu.hold(start().pid, 2**20)
    assert machine.device.processes().count == 1
    machine.record.process_list_version = 3
    with pytest.raises(DriverError, match="RunningProcesses_v2"):
        machine.device.processes()


# --- Power ----------------------------------------------------------------------------------------
@rows(
    "model, refused",
    {
        "field 185": (H100, "DeviceGetPowerUsage"),
        "field 186": (A100, "DeviceGetPowerUsage"),
        "the call": (H100, "DeviceGetFieldValues"),
    },
)
def test_power_is_read_from_the_available_source(nvml: Make, model: Model, refused: str) -> None:
    machine = nvml(gpus=[model])
    machine.gpu.fail(refused, NVML_ERROR_NOT_SUPPORTED)
    assert machine.device.power().watts == model.idle_mw / 1000


def test_power_of_a_superchip_is_also_that_of_its_module(nvml: Make) -> None:
    superchip = replace(GH200, module_limit_mw=1_000_000, module_cpu_mw=90_000)
    power = nvml(gpus=[superchip]).device.power()
    assert (power.watts, power.limit_watts) == (72, 700)
    assert (power.module_watts, power.module_limit_watts) == (162, 1000)


@rows("model", {"no module": GH200, "no superchip": replace(H100, module_limit_mw=1)})
def test_there_is_no_module_but_of_a_superchip(nvml: Make, model: Model) -> None:
    device = nvml(gpus=[model]).device
    power = device.power()
    assert power.module_watts is power.module_limit_watts is None
    assert device.last_error is None


# --- The ring of utilization ----------------------------------------------------------------------
def test_ring_gives_each_window_once_in_order(both: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # As after a long silence: whether the clock was set back is asked at once.
    monkeypatch.setattr("gpu_bottleneck_exporter.driver.nvml.rings.SILENCE_BEFORE_PROBE_NS", 0)
    device = both().device
    values: list[readings.RingSample] = []
    for _ in range(6):
        time.sleep(0.1)
        values += device.utilization().gpu or ()
    stamps = [sample.timestamp_us for sample in values]
    assert stamps == sorted(set(stamps))
    assert {new - old for old, new in pairwise(stamps)} == {WINDOW_US}


def test_ring_holds_the_busy_time(both: Make) -> None:
    machine = both()
    machine.device.utilization()
    machine.gpu.run(0.5, Work(memory=0.5))
    time.sleep(0.4)
    reading = machine.device.utilization()
    for ring, busy_us in ((reading.gpu, 500_000), (reading.memory, 250_000)):
        found_us = sum(sample.percent or 0 for sample in ring or ()) / 100 * WINDOW_US
        assert found_us == pytest.approx(busy_us, rel=0.05)


def test_without_a_new_window_the_ring_is_empty_and_the_single_reading_counts(both: Make) -> None:
    machine = both()
    machine.record.period_slots = 100
    device = machine.device
    machine.gpu.launch(LONG_SECONDS)
    time.sleep(2.2)
    device.utilization()
    # A window may have ended just now.
    readings = (device.utilization() for _ in range(ATTEMPTS))
    assert next(item for item in readings if item.gpu == ()).gpu_percent == 100


def test_without_a_ring_the_single_reading_stays(nvml: Make) -> None:
    machine = nvml()
    machine.gpu.fail("DeviceGetSamples", NVML_ERROR_NOT_SUPPORTED)
    reading = machine.device.utilization()
    assert reading.gpu is None
    assert reading.gpu_percent is not None


# --- Video engines --------------------------------------------------------------------------------
@rows("no_rings", {"rings": False, "readings only": True})
def test_video_engines_are_those_that_the_gpu_has(nvml: Make, *, no_rings: bool) -> None:
    machine = nvml(gpus=[replace(H100, no_engine_rings=no_rings)])
    machine.gpu.launch(LONG_SECONDS, Work(kernel=0.1, decoder=0.6))
    time.sleep(0.4)
    video = machine.device.video()
    if no_rings:
        assert video == readings.Video({}, {"decoder": 60, "jpeg": 0, "ofa": 0})
    else:
        assert video.rings.keys() == {"decoder", "jpeg", "ofa"}
        assert video.rings["decoder"][-1].percent == 60
        assert [sample.percent for sample in video.rings["ofa"]] == [0], "the newest stands for all"
    assert machine.device.last_error is None


def test_an_empty_answer_makes_no_video_engine_of_a_ring_that_is_refused(nvml: Make) -> None:
    machine = nvml()
    machine.gpu.fail("DeviceGetSamples", NVML_ERROR_NOT_FOUND)
    has = {"decoder", "jpeg", "ofa"}
    assert machine.device.video().rings.keys() == has
    machine.gpu.fail("DeviceGetSamples", 0)
    video = machine.device.video()
    assert video.rings.keys() | video.percents.keys() == has
    assert machine.device.last_error is None


def test_a_gpu_without_video_engines_reports_so(nvml: Make) -> None:
    device = nvml(gpus=[replace(H100, engines=0)]).device
    with pytest.raises(Unsupported):
        device.video()


def test_an_old_library_has_two_kinds_of_video_engines(nvml: Make) -> None:
    machine = nvml(gpus=[replace(A100, engines=15, no_engine_rings=True)], driver_version="470.10")
    assert machine.device.video().percents == {"encoder": 0, "decoder": 0}


# --- The GPU as a whole ---------------------------------------------------------------------------
WITH_FABRIC = {"recovery_action": 4, "fabric_state": 3, "nvlinks": 18, "nvlinks_active": 17}
WITH_FABRIC |= {"nvlink_replays": 2, "nvlink_recoveries": 1, "repairs_pending": 2}
CONDITIONS: Mapping[str, tuple[str, Mapping[str, int], readings.Condition]] = {
    "all of it": (
        "615.71",
        WITH_FABRIC | {"unrepairable_memory": 1},
        readings.Condition(
            *("drain_and_reset", "completed", 17, {"replay": 36, "recovery": 18}, True, True)
        ),
    ),
    "nothing wrong, no fabric": (
        "615.71",
        {},
        readings.Condition("none", repair_pending=False, memory_unrepairable=False),
    ),
    "an unknown action": ("570.10", {"recovery_action": 9}, readings.Condition("action_9")),
    "a fabric, older": ("550.10", {"fabric_state": 2}, readings.Condition(None, "in_progress")),
    "a fabric that failed": (
        "575.10",
        {"fabric_state": 3, "fabric_status": 999},
        readings.Condition("none", "failed"),
    ),
    "links, old": (
        "470.10",
        {"nvlinks": 2, "nvlinks_active": 2},
        readings.Condition(nvlinks_active=2, nvlink_errors={"replay": 0, "recovery": 0}),
    ),
}


@rows("version, fields, condition", CONDITIONS)
def test_conditions_of_the_whole_gpu(
    nvml: Make, version: str, fields: Mapping[str, int], condition: readings.Condition
) -> None:
    machine = nvml(driver_version=version)
    check(machine, fields, condition)
    assert machine.device.last_error is None


def test_a_condition_that_the_driver_omits_is_absent(nvml: Make) -> None:
    device = nvml(driver_version="470.10").device
    with pytest.raises(Unsupported):
        device.condition()


@pytest.mark.parametrize(("version", "hottest"), [("615.71", 49), ("580.95", None)])
def test_the_hottest_sensor_is_read_where_the_driver_has_it(
    nvml: Make, version: str, hottest: int | None
) -> None:
    machine = nvml(driver_version=version)
    machine.record.hottest_above = 8
    assert machine.device.thermal().sensors.get("hottest") == hottest
    assert machine.device.last_error is None


# --- Means and sums -------------------------------------------------------------------------------
MEANS = {"sm_active": 0.8, "sm_occupancy": 0.4, "dram": 0.6}
PIPES = {"tensor": 0.2, "fp64": 0.1, "fp32": 0.3, "fp16": 0.05}
PCIE_AND_NVLINK = {"pcie_receive": 4e9, "pcie_transmit": 1e9}
PCIE_AND_NVLINK |= {"nvlink_receive": 2e9, "nvlink_transmit": 3e9}


def busy(rates: Mapping[str, float], **means: float) -> Work:
    return Work(**means, **{f"{name}_bytes_per_second": rate for name, rate in rates.items()})


def activity_over(device: Device, seconds: float) -> UnitActivity:
    device.activity()
    time.sleep(seconds)
    activity = device.activity()
    assert activity is not None
    return activity


def rates(activity: UnitActivity) -> dict[str, float]:
    seconds = activity.interval_ns / 1e9
    return {name: amount / seconds for name, amount in activity.traffic_bytes.items()}


def test_activity_is_the_mean_since_the_last_reading(both: Make) -> None:
    machine = both()
    device = machine.device
    machine.gpu.launch(LONG_SECONDS, busy(PCIE_AND_NVLINK, **MEANS, **PIPES, integer=0.15))
    time.sleep(0.1)
    activity = activity_over(device, 0.6)
    assert activity.graphics == pytest.approx(1.0, abs=0.05)
    means = (activity.sm_active, activity.sm_occupancy, activity.dram_active)
    assert means == pytest.approx(tuple(MEANS.values()), abs=0.05)
    assert activity.pipes == pytest.approx({**PIPES, "int": 0.15}, abs=0.05)
    assert rates(activity) == pytest.approx(PCIE_AND_NVLINK, rel=0.05)


C2C = {"c2c_receive": 8e9, "c2c_data_receive": 8e9, "c2c_transmit": 3e9, "c2c_data_transmit": 3e9}


@pytest.mark.parametrize(
    ("model", "version", "counted"),
    [(GH200, "580.95.05", C2C), (GH200, "570.124.06", {}), (H100, "580.95.05", {})],
    ids=["C2C", "an older driver", "no C2C"],
)
def test_traffic_over_c2c_is_counted_where_there_is_any_and_the_rest_all_the_same(
    nvml: Make, model: Model, version: str, counted: dict[str, float]
) -> None:
    machine = nvml(gpus=[model], driver_version=version)
    device = machine.device  # whose library is compiled first, for however long
    machine.gpu.launch(
        LONG_SECONDS, busy({**PCIE_AND_NVLINK, "c2c_receive": 8e9, "c2c_transmit": 3e9})
    )
    time.sleep(0.1)
    result = rates(activity_over(device, 0.6))
    assert result == pytest.approx({**PCIE_AND_NVLINK, **counted}, rel=0.05)


def test_activity_needs_two_readings_far_enough_apart(both: Make) -> None:
    driver = both().driver
    # Between the two, others may have the CPU for longer than that.
    devices = (first(driver) for _ in range(ATTEMPTS))
    device = next(item for item in devices if item.activity() is None and item.activity() is None)
    time.sleep(0.3)
    assert device.activity() is not None


def test_power_and_energy_follow_the_work(both: Make) -> None:
    machine = both()
    idle = machine.device.power()
    assert idle.watts == pytest.approx(72, abs=1)
    assert idle.limit_watts == 700
    machine.gpu.launch(LONG_SECONDS, Work(watts=500))
    time.sleep(1.2)
    busy = machine.device.power()
    assert busy.watts == pytest.approx(572, abs=15)
    assert (busy.energy_joules or 0) - (idle.energy_joules or 0) > 400


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


# --- What is not there ----------------------------------------------------------------------------
OF_GPUS = ("power", "thermal", "clocks", "throttle", "health", "link")
READINGS = ("utilization", "activity", "memory", "processes", *OF_GPUS)
MIG: dict[str, object] = {"mig": [(0, 3), (0, 4)]}
REFUSED: list[tuple[dict[str, object], str, int, str]] = [
    ({}, "DeviceGetSamples DeviceGetUtilizationRates", 0, "utilization"),
    ({}, "DeviceGetMemoryInfo", 0, "memory"),
    ({"gpus": [A100]}, "", 0, "activity"),
    *((MIG, "", device, "utilization") for device in (0, 1, 2)),
    *((MIG, "", 1, reading) for reading in OF_GPUS),
]
"""A board, calls that it refuses, and by index a GPU or instance that has no such reading."""


@pytest.mark.parametrize(("board", "calls", "index", "reading"), REFUSED)
def test_an_absent_reading_is_unsupported(
    nvml: Make, board: dict[str, object], calls: str, index: int, reading: str
) -> None:
    machine = nvml(**board)
    for call in calls.split():
        machine.gpu.fail(call, NVML_ERROR_NOT_SUPPORTED)
    device = machine.driver.open(0)[index]
    with pytest.raises(Unsupported):
        getattr(device, reading)()


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


def test_xids_reach_the_waiting_thread(nvml: Make) -> None:
    machine = nvml(gpus=[H100, H100])
    driver = machine.driver
    for index in (0, 1):
        driver.open(index)
        driver.watch_errors(index)
    assert driver.wait_error(0.05) is None
    machine.board.raise_xid(1, 79)
    machine.board.raise_xid(0, 31)
    values = [driver.wait_error(PATIENCE_SECONDS) for _ in range(2)]
    assert values == [readings.ErrorEvent(1, 79), readings.ErrorEvent(0, 31)]
