"""Behaviour of NVML alone: branches, missing symbols, error codes, odd clocks, hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pynvml
import pytest

from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.driver import protocol
from gpu_bottleneck_exporter.driver.nvml.device import NvmlDevice
from gpu_bottleneck_exporter.driver.nvml.throttle import active_reasons, field_ids
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, System
from gpu_bottleneck_exporter.driver.refusals import RECHECK_INTERVAL_NS, SETTLE_NS, Refusals
from support.board import CALLS
from support.children import Parent
from support.models import A100
from support.rows import rows
from support.waiting import PATIENCE_SECONDS, until

from .conftest import Machine, Make

NOT_SUPPORTED, TIMEOUT = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_TIMEOUT
UNKNOWN, LOST = pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_GPU_IS_LOST
MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH

# --- Throttling -----------------------------------------------------------------------------------
FINER = {"sw_thermal", "hw_thermal", "hw_power_brake"}
VERSIONS: dict[frozenset[int], tuple[str | None, ...]] = {
    frozenset({251, 252, 253}): ("575.51.02", "580.65.06", "NVIDIA 580.65.06", "575"),
    frozenset({269, 270, 271}): (
        *("580.82.07", "580.95.05", "580.105.08", "580.126.09", "590.44.01", "1000.1"),
        *(" 580.126.09\n", "580.95.05-open", "590"),
    ),
    frozenset({75}): (
        *("470.256.02", "570.172.08"),
        *("580.66", "580.76.05", "580.81.99"),  # in between the version is not published
        *("580", "580.", "580.x"),  # what may be on either side of the move
        *(None, "", "N/A", "12.9", "x86_64"),
    ),
}
"""The fields of the finer causes, and the versions of the driver that have them."""


def test_finer_throttle_causes_are_asked_for_by_full_version() -> None:
    for ids, versions in VERSIONS.items():
        for version in versions:
            finer = {field for field, reason in field_ids(version).items() if reason in FINER}
            assert finer == ids, version


def spent_after(machine: Machine, seconds: float) -> dict[str, int]:
    """Throttle time once a GPU has been open for this time."""
    device = machine.device
    time.sleep(seconds)
    spent = device.throttle().spent_ns
    assert device.throttle().spent_ns.keys() == spent.keys()
    assert device.last_error is None
    return dict(spent)


@pytest.mark.parametrize("version", [b"580.76.05", b"mystery", b"", b"\xff\xfe580.95"])
def test_where_the_version_is_ambiguous_only_certain_fields_are_read(
    nvml: Make, version: bytes
) -> None:
    machine = nvml()
    machine.board.header.driver_version = version
    machine.gpu.throttle("hw_thermal", 1.0)
    spent = spent_after(machine, 0.2)
    assert spent["sw_thermal"] >= 200_000_000
    assert {"hw_thermal", "hw_power_brake"}.isdisjoint(spent)


def test_a_gpu_without_the_finer_counters_keeps_the_coarse_one(nvml: Make) -> None:
    # As if this GPU alone lacked them: its driver has the fields, and says so by its version.
    machine = nvml(driver_version="560.35.03")
    machine.gpu.throttle("sw_thermal", 1.0)
    machine.driver.system = System("580.126.09", "13.0")
    assert spent_after(machine, 0.2)["sw_thermal"] >= 200_000_000


def test_a_throttle_counter_that_keeps_running_backwards_is_dropped(nvml: Make) -> None:
    # Power-smoothing settings answer where throttle time is expected: as with the
    # constants of a newer binding on driver 580.65.
    machine = nvml(driver_version="580.65.06")
    machine.driver.system = System("595.45.04", "13.2")
    for _ in range(10):
        spent = machine.device.throttle().spent_ns
    assert "hw_thermal" not in spent
    assert "power_cap" in spent


def test_without_field_values_throttle_time_comes_from_violation_status(nvml: Make) -> None:
    machine = nvml()
    machine.gpu.throttle("power_cap", 1.0)
    machine.gpu.fail("DeviceGetFieldValues", NOT_SUPPORTED)
    spent = spent_after(machine, 0.05)
    assert spent["power_cap"] >= 50_000_000
    assert spent["reliability"] == 0


def test_hardware_slowdown_without_a_cause_is_a_reason_and_leaves_the_causes_open() -> None:
    assert active_reasons(0x8)["hw_slowdown"] is True
    assert {"hw_thermal", "hw_power_brake"}.isdisjoint(active_reasons(0x8))
    both = active_reasons(0x8 | 0x80)
    assert (both["hw_power_brake"], both["hw_slowdown"]) == (True, False)
    none = active_reasons(0)
    assert (none["hw_thermal"], none["hw_slowdown"]) == (False, False)


def test_a_counter_that_grows_names_the_cause_of_a_hardware_slowdown(nvml: Make) -> None:
    machine = nvml()
    machine.record.event_reasons = 0x8
    machine.gpu.throttle("sw_thermal", 1.0)
    alone = [machine.device.throttle().active for _ in range(2)][1]
    assert {name for name, active in alone.items() if active} == {"hw_slowdown"}
    machine.gpu.throttle("hw_power_brake", 1.0)
    result = [machine.device.throttle().active for _ in range(2)][1]
    assert {name for name, active in result.items() if active} == {"hw_power_brake"}
    assert result["hw_thermal"] is False


@pytest.mark.parametrize("version", ["580.95.05", "615.71.01"])
@pytest.mark.parametrize(
    ("bits", "on"),
    [
        (0x4 | 0x8 | 0x40 | 0x200, {"power_cap", "hw_thermal", "board_limit"}),
        (0x200, {"board_limit"}),
        (0x400, {"reliability"}),
    ],
)
def test_current_throttle_reasons(nvml: Make, version: str, bits: int, on: set[str]) -> None:
    machine = nvml(driver_version=version)
    device = machine.device
    # A driver that does not know the bit has never said that the reason is not active.
    before = {device.throttle().active.get(name) for name in ("board_limit", "reliability")}
    assert before == {False if version > "615" else None}
    machine.record.event_reasons = bits
    assert {name for name, active in device.throttle().active.items() if active} == on
    assert device.last_error is None


def share_a_gpu_instance(machine: Machine) -> None:
    """Make the second MIG device a compute instance of the first one's GPU instance."""
    first, second = (gpu.record for gpu in machine.board.gpus[1:3])
    second.gpu_instance, second.compute_instance = first.gpu_instance, 1


def test_compute_instances_of_a_gpu_instance_are_named_and_counted_once(nvml: Make) -> None:
    machine = nvml(mig=[(0, 3), (0, 3), (0, 1)])
    share_a_gpu_instance(machine)
    machine.board.gpus[1].hold(os.getpid(), 2**30)
    machine.board.gpus[2].hold(os.getppid(), 2**20)
    _, first, second, other = machine.driver.open(0)
    uuids = machine.driver.instances(0)
    assert [item.identity.uuid for item in (first, second, other)] == [*uuids]
    assert [item.identity.counted_with for item in (first, second, other)] == [None, uuids[0], None]
    assert {process.pid for process in first.processes().processes} == {os.getpid(), os.getppid()}
    assert other.processes().count == 0
    for reading in (second.processes, second.memory, second.activity, second.utilization):
        with pytest.raises(Unsupported):
            reading()


def test_holders_are_unknown_where_one_compute_instance_hides_them(nvml: Make) -> None:
    machine = nvml(mig=[(0, 3), (0, 3)])
    share_a_gpu_instance(machine)
    first = machine.driver.open(0)[1]
    for call in ("Compute", "Graphics", "MPSCompute"):
        machine.board.gpus[2].fail(f"DeviceGet{call}RunningProcesses", NOT_SUPPORTED)
    assert first.processes().count is None


# --- Old drivers and odd clocks -------------------------------------------------------------------
@pytest.mark.parametrize("branch", [418, 450, 470, 515, 530, 535, 550, 595])
def test_an_old_library_gives_all_it_supports(nvml: Make, branch: int) -> None:
    machine = nvml(gpus=[A100], driver_version=f"{branch}.10")
    machine.gpu.hold(os.getpid(), 2**20)
    machine.gpu.run(0.2)
    device = machine.device
    assert device.utilization().gpu
    assert [process.pid for process in device.processes().processes] == [os.getpid()]
    assert device.thermal().sensors["gpu"] == 41
    assert device.throttle().active["power_cap"] is False
    memory = device.memory()
    assert memory.total_bytes == A100.memory_total
    assert (memory.reserved_bytes is None) == (branch < 510)
    assert device.last_error is None
    with pytest.raises(Unsupported):
        device.activity()


def test_a_gpu_that_has_no_mean_of_its_power_gives_that_of_the_moment(nvml: Make) -> None:
    machine = nvml(gpus=[A100])
    device = machine.device
    machine.gpu.launch(15.0, Work(watts=400))
    time.sleep(0.1)
    assert device.power().watts == 455


def test_timestamps_since_boot_are_as_good_as_since_the_epoch(nvml: Make) -> None:
    machine = nvml()
    machine.board.header.timestamp_offset_ns = 0
    machine.device.utilization()
    time.sleep(0.5)
    samples = machine.device.utilization().gpu or ()
    assert len(samples) >= 2
    assert samples[-1].timestamp_us <= time.monotonic_ns() // 1000


def test_a_clock_that_was_set_back_is_noticed(nvml: Make) -> None:
    machine = nvml()
    device = machine.device
    time.sleep(0.2)
    device.utilization()
    machine.board.header.timestamp_offset_ns -= 3600 * 10**9
    assert device.utilization().gpu == ()
    for seconds in (3.2, 0.4):
        time.sleep(seconds)
        assert device.utilization().gpu


# --- Error codes ----------------------------------------------------------------------------------
def started(machine: Machine, code: int) -> Callable[[], object]:
    machine.board.header.init_result = code
    return machine.driver.count


def asked(machine: Machine, code: int) -> Callable[[], object]:
    device = machine.device
    machine.record.device_result = code
    return device.utilization


@rows(
    "ask, code, expected",
    {
        "no driver": (started, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, protocol.DriverMissing),
        "another driver": (started, MISMATCH, protocol.DriverUnusable),
        "no access": (started, UNKNOWN, protocol.AccessLost),
        "no memory": (started, pynvml.NVML_ERROR_MEMORY, DriverError),
        "a lost GPU": (asked, LOST, protocol.DeviceLost),
        "one to be reset": (asked, pynvml.NVML_ERROR_RESET_REQUIRED, protocol.DeviceLost),
        "no access any more": (asked, UNKNOWN, protocol.AccessLost),
        "another driver now": (asked, MISMATCH, protocol.DriverUnusable),
    },
)
def test_meaning_of_an_error_code(
    nvml: Make, ask: Callable[..., Callable[[], object]], code: int, expected: type[DriverError]
) -> None:
    with pytest.raises(expected, match=f"{code}") as caught:
        ask(nvml(), code)()
    assert type(caught.value) is expected


def test_a_driver_without_gpus_is_asked_again(nvml: Make) -> None:
    machine = nvml()
    machine.board.header.gpu_count = 0
    with pytest.raises(protocol.DriverMissing, match="lists no GPU"):
        machine.driver.count()
    machine.board.header.gpu_count = 1
    assert machine.driver.count() == 1


PARTS = {
    "DeviceGetEnforcedPowerLimit": ("power", "limit_watts"),
    "DeviceGetPowerManagementDefaultLimit": ("power", "default_limit_watts"),
    "DeviceGetTotalEnergyConsumption": ("power", "energy_joules"),
    "DeviceGetPcieReplayCounter": ("link", "replays"),
}


@pytest.mark.parametrize("call", PARTS)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, TIMEOUT])
def test_one_broken_call_costs_its_own_part(nvml: Make, call: str, code: int) -> None:
    machine, (reading, part) = nvml(), PARTS[call]
    read = getattr(machine.device, reading)
    machine.gpu.fail(call, code)
    answer = read()
    unread = [name for name in answer.__slots__ if getattr(answer, name) is None]
    assert [name for name in unread if not name.startswith("module_")] == [part]
    assert (machine.device.last_error is not None) == (code == TIMEOUT)
    machine.gpu.fail(call, 0)
    assert code == NOT_SUPPORTED or getattr(read(), part) is not None
    assert machine.device.last_error is None or code == NOT_SUPPORTED


def test_an_unsupported_reading_is_rarely_repeated(nvml: Make) -> None:
    now = 0
    machine = nvml()
    machine.gpu.fail("DeviceGetPcieReplayCounter", NOT_SUPPORTED)
    driver, device = machine.driver, machine.device
    assert isinstance(device, NvmlDevice)
    device._queries.refusals = Refusals(lambda: now)
    values = []
    for now in range(0, SETTLE_NS + 2 * RECHECK_INTERVAL_NS, SETTLE_NS // 2):
        before = driver.calls
        device.link()
        if driver.calls - before == 5:
            values.append(now)
    assert values == [0, SETTLE_NS // 2, SETTLE_NS, SETTLE_NS + RECHECK_INTERVAL_NS]
    assert device.last_error is None


@pytest.mark.parametrize("refusal", [2, 3, 4, 13, 25, 26])
def test_one_refusal_is_one_refusal(nvml: Make, refusal: int) -> None:
    machine = nvml()
    machine.gpu.fail("DeviceGetPcieReplayCounter", refusal)
    device = machine.device
    assert device.link().replays is None
    assert device.last_error is None, "never given: this GPU may not have it"
    for _ in range(2):
        machine.gpu.fail("DeviceGetPcieReplayCounter", 0)
        assert device.link().replays == 0
        machine.gpu.fail("DeviceGetPcieReplayCounter", refusal)
        assert device.link().replays is None
        assert f"({refusal})" in str(device.last_error), "it was given before"


def test_all_calls_broken_is_an_error_not_an_empty_reading(nvml: Make) -> None:
    machine = nvml()
    for call in CALLS:
        if "Pcie" in call:
            machine.gpu.fail(call, TIMEOUT)
    with pytest.raises(DriverError, match="TIMEOUT"):
        machine.device.link()


def test_the_blocking_pcie_call_is_never_made(nvml: Make) -> None:
    device = nvml().device
    for reading in ("utilization", "activity", "power", "link", "processes", "health"):
        getattr(device, reading)()
    made = pynvml.nvmlLib.fake_nvml_pcie_throughput_calls
    assert made() == 0
    pynvml.nvmlDeviceGetPcieThroughput(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
    assert made() == 1, "it would be seen"


@pytest.mark.parametrize(
    "call", ["DeviceGetName", "DeviceGetArchitecture", "DeviceGetPciInfo", "DeviceGetMigMode"]
)
def test_a_gpu_is_opened_without_unreadable_facts(nvml: Make, call: str) -> None:
    machine = nvml()
    machine.record.name = b"NVIDIA \xff\xfe H100"
    machine.gpu.fail(call, UNKNOWN)
    identity = machine.device.identity
    assert identity.uuid.startswith("GPU-")
    assert call == "DeviceGetName" or identity.name == "NVIDIA \ufffd\ufffd H100"
    assert machine.device.power().watts is not None


@pytest.mark.parametrize("code", [UNKNOWN, pynvml.NVML_ERROR_UNINITIALIZED, LOST, MISMATCH])
def test_a_fault_of_all_calls_is_believed_once_the_simplest_calls_report_it(
    nvml: Make, code: int
) -> None:
    machine = nvml()
    device = machine.device
    for call in ("DeviceGetMemoryInfo", "DeviceGetTemperature", "DeviceGetTotalEnergyConsumption"):
        machine.gpu.fail(call, code)
    device.check()
    machine.record.device_result = code
    with pytest.raises(protocol.GPU_WIDE_ERRORS):
        device.check()


def test_a_mean_over_a_spell_of_refusals_is_given_up(
    nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_bottleneck_exporter.driver.nvml.gpm.MAXIMUM_INTERVAL_NS", 10**9)
    device = nvml().device
    device.activity()
    time.sleep(1.1)
    assert device.activity() is None
    activity = until(device.activity, "two readings close enough to each other")
    assert activity.interval_ns < 10**9


def test_a_device_may_be_closed_at_any_time_and_then_begins_anew(
    nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[object] = []
    monkeypatch.setattr(pynvml, "nvmlGpmSampleFree", freed.append)
    device = nvml().device
    device.close()
    until(device.activity, "two readings")
    device.close()
    assert len(freed) == 2, "those that were compared"
    assert device.activity() is None


@pytest.mark.parametrize("refusal", [3, 4, 10, 999])
def test_a_ring_that_is_refused_for_a_while_is_replaced_by_single_readings(
    nvml: Make, refusal: int
) -> None:
    machine = nvml()
    device = machine.device
    time.sleep(0.4)
    assert device.utilization().gpu
    machine.gpu.fail("DeviceGetSamples", refusal)
    reading = device.utilization()
    assert (reading.gpu, reading.gpu_percent) == ((), 0)
    assert f"({refusal})" in str(device.last_error)
    time.sleep(0.4)
    machine.gpu.fail("DeviceGetSamples", 0)
    assert len(device.utilization().gpu or ()) >= 2, "nothing is lost"
    machine.record.ring_empty_when_idle = 1
    time.sleep(0.4)
    assert (device.utilization().gpu, device.utilization().gpu_percent) == ((), 0)


def test_calls_into_the_driver_are_counted_and_timed(nvml: Make) -> None:
    machine = nvml()
    driver, device = machine.driver, machine.device
    before, seconds = driver.calls, driver.seconds
    machine.record.call_delay_us[:] = [20_000] * len(machine.record.call_delay_us)
    device.memory()
    assert driver.calls > before
    assert driver.seconds - seconds >= 0.02


# --- XIDs -----------------------------------------------------------------------------------------
def refuse(code: int) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise pynvml.NVMLError(code)

    return call


def assert_told(machine: Machine) -> None:
    """An XID of the first GPU reaches us once it is watched."""
    machine.driver.watch_errors(0)
    machine.board.raise_xid(0, 79)
    assert machine.driver.wait_error(PATIENCE_SECONDS) == ErrorEvent(0, 79)


def test_events_that_cannot_be_had_are_not_fatal(
    nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvml()
    with monkeypatch.context() as broken:
        broken.setattr(pynvml, "nvmlEventSetCreate", refuse(NOT_SUPPORTED))
        with pytest.raises(Unsupported):
            machine.driver.wait_error(0.01)
    assert machine.driver.wait_error(0.01) is None, "asked again"
    machine.gpu.fail("DeviceRegisterEvents", UNKNOWN)
    assert machine.device.power().watts is not None
    with pytest.raises(DriverError, match="RegisterEvents"):
        machine.driver.watch_errors(0)
    machine.gpu.fail("DeviceRegisterEvents", 0)
    assert_told(machine)


@pytest.mark.parametrize("code", [UNKNOWN, LOST])
def test_a_set_of_events_that_fails_is_made_anew(
    nvml: Make, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    machine = nvml()
    machine.driver.open(0)
    machine.driver.watch_errors(0)
    with monkeypatch.context() as broken:
        broken.setattr(pynvml, "nvmlEventSetWait_v2", refuse(code))
        with pytest.raises(DriverError):
            machine.driver.wait_error(0.01)
    assert machine.driver.wait_error(0.01) is None
    assert pynvml.nvmlLib.fake_nvml_open_sets() == 1, "the one that failed is freed"
    assert_told(machine)


def test_a_set_of_events_that_fails_while_a_gpu_registers_with_it_is_not_freed(
    nvml: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = nvml()
    machine.driver.open(0)

    def meanwhile(*_: object) -> None:
        with pytest.raises(DriverError):
            machine.driver.wait_error(0.01)

    with monkeypatch.context() as broken:
        broken.setattr(pynvml, "nvmlEventSetWait_v2", refuse(LOST))
        broken.setattr(pynvml, "nvmlDeviceRegisterEvents", meanwhile)
        machine.driver.watch_errors(0)
    assert pynvml.nvmlLib.fake_nvml_open_sets() == 1, "it may be in use for ever"


# --- MIG ------------------------------------------------------------------------------------------
def test_mig_instances_follow_their_parent(nvml: Make) -> None:
    machine = nvml(gpus=[H100, H100], mig=[(1, 3), (1, 4)])
    driver = machine.driver
    assert (driver.count(), driver.instances(0)) == (2, ())
    parent, *instances = (device.identity for device in driver.open(1))
    assert driver.instances(1) == tuple(instance.uuid for instance in instances)
    assert [instance.mig_profile for instance in instances] == ["3g.32gb", "4g.43gb"]
    assert {(instance.index, instance.minor, instance.parent_uuid) for instance in instances} == {
        (1, 1, parent.uuid)
    }
    numbers = [int(gpu.record.gpu_instance) for gpu in machine.board.gpus[2:]]
    assert [item.gpu_instance for item in (parent, *instances)] == [None, *numbers]
    assert len({*numbers}) == 2


def test_under_mig_only_gpm_shows_which_instance_is_busy(nvml: Make) -> None:
    machine = nvml(mig=[(0, 3), (0, 4)])
    devices = machine.driver.open(0)
    machine.board.gpus[1].launch(15.0, Work(sm_active=0.7))
    for device in devices:
        device.activity()
    time.sleep(0.6)
    busy = [device.activity() for device in devices]
    assert [round(a.graphics or 0, 1) for a in busy if a] == [0.4, 1.0, 0.0]
    assert busy[1] is not None
    assert busy[1].sm_active == pytest.approx(0.7, abs=0.05)


def test_a_mig_instance_has_memory_and_processes_of_its_own_and_its_parent_the_sum(
    nvml: Make, start: Callable[[], Parent]
) -> None:
    machine = nvml(mig=[(0, 3), (0, 4)])
    machine.board.gpus[1].hold(start().pid, 2**20)
    machine.board.gpus[2].hold(start().pid, 2**30)
    devices = machine.driver.open(0)
    assert [len(device.processes().processes) for device in devices] == [2, 1, 1]
    assert [device.memory().used_bytes for device in devices] == [2**30 + 2**20, 2**20, 2**30]


def test_a_lost_parent_takes_its_instances_with_it(nvml: Make) -> None:
    machine = nvml(mig=[(0, 3), (0, 4)])
    parent, small, large = machine.driver.open(0)
    machine.board.gpus[1].record.device_result = LOST
    for lost, others in (([small], [parent, large]), ([parent, small, large], [])):
        for device in others:
            device.memory()
        for device in lost:
            with pytest.raises(protocol.DeviceLost):
                device.memory()
        machine.record.device_result = LOST
