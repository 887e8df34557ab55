"""`check`: parts that are switched off, remedies by what went wrong, gaps beside other gaps."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpu_bottleneck_exporter.commands.check import COMPLETE, WITH_GAPS, Report, check
from gpu_bottleneck_exporter.commands.watch import sampled
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.virtual.driver import VirtualDriver
from gpu_bottleneck_exporter.driver.about import NO_GPU as NO_GPU_REMEDY
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA, OF_ERRORS
from gpu_bottleneck_exporter.driver.readings import UnitActivity
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.sampling.signals import _HOST_SIGNALS
from gpu_bottleneck_exporter.sampling.worker import GpuWorker
from gpu_bottleneck_exporter.settings import OPTIONAL_SIGNALS, Settings
from support.board import Board
from support.drivers import Libraries
from support.logged import logged
from support.models import A100
from support.samplers import FAST
from support.waiting import until

READERS = frozenset(
    {
        *("utilization", "activity", "power", "throttle", "processes", "xid"),
        *("stall", "feeders", "workload", "host"),
    }
)
"""Collectors that read a signal, of the GPU or of the host."""


def test_a_signal_of_no_collector_is_no_gap(make_board: Callable[..., Board]) -> None:
    board = make_board(gpus=[H100])
    settings = Settings(interval_seconds=0.2, disabled_collectors=READERS)
    report = check(settings, lambda: VirtualDriver(board))
    assert (report.status, report.lines) == (COMPLETE, ("everything is available",))
    verdict, driver, gpu = check(settings, lambda: VirtualDriver(board), full=True).lines
    assert verdict == "everything is available"
    assert driver.startswith("driver ")
    assert gpu.startswith("gpu 0 ")


def test_readings_that_come_late_are_waited_for(
    make_board: Callable[..., Board], monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, ticks = GpuWorker._tick, []

    def late(worker: GpuWorker) -> None:
        ticks.append(worker)
        if len(ticks) == 2:
            time.sleep(1.0)
        tick(worker)

    monkeypatch.setattr(GpuWorker, "_tick", late)
    board = make_board(gpus=[H100])
    fast = Settings(interval_seconds=0.2)
    with sampled(fast, lambda: VirtualDriver(board), ticks=2) as sampler:
        (gpu,) = sampler.state().gpus
    assert gpu.reading(UnitActivity)


class Checked:
    """`check` on a board through pynvml."""

    def __init__(self, board: Board, libraries: Libraries) -> None:
        self.board = board
        self._libraries = libraries

    def report(self, settings: Settings = FAST, *, full: bool = False) -> Report:
        return check(settings, lambda: self._libraries.open(self.board), full=full)

    def fail(self, call: str, result: int, *gpus: int) -> None:
        for gpu in gpus or (0,):
            self.board.gpus[gpu].fail(call, result)


On = Callable[..., Checked]


@pytest.fixture
def on(make_board: Callable[..., Board], libraries: Libraries) -> On:
    return lambda *gpus: Checked(make_board(gpus=gpus), libraries)


def remedy_after(report: Report, start: str) -> str:
    """The remedy of the line that starts with `start`."""
    at = next(at for at, line in enumerate(report.lines) if line.startswith(start))
    return report.lines[at + 1].removeprefix("  remedy").strip()


def assert_link_alone_fails(report: Report) -> None:
    failed = [line for line in report.lines if line.startswith("gap             collector ")]
    assert failed == [
        "gap             collector link: nvmlDeviceGetPcieReplayCounter: TIMEOUT (10)"
    ]


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, "no_permission", ("/dev/nvidiactl", "gpu.access")),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "not_loaded", ("modprobe", "runtimeClassName")),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no_library", ("install NVIDIA's", "gpu.access")),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "library_broken", ("not the driver's",)),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "mismatch", ("different versions",)),
        (pynvml.NVML_ERROR_UNKNOWN, "access_lost", ("restart it",)),
        (pynvml.NVML_ERROR_IRQ_ISSUE, None, ("kernel log",)),
    ],
)
def test_without_gpus_the_remedy_is_the_errors_in_a_pod_the_charts(
    on: On, monkeypatch: pytest.MonkeyPatch, code: int, cause: str | None, words: tuple[str, ...]
) -> None:
    item = on(H100)
    item.board.header.init_result = code
    report = item.report()
    result, remedy = report.lines
    assert f"({code})" in result
    assert words[0] in remedy
    assert remedy.strip() == f"remedy        {OF_ERRORS[cause] if cause else NO_GPU_REMEDY}"
    assert ("install NVIDIA's driver" in remedy) == (cause == "no_library")
    assert report.status == WITH_GAPS
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    remedy = remedy_after(item.report(), "GPU metrics     none: ")
    assert words[-1] in remedy
    assert "install NVIDIA's driver;" not in remedy


def test_a_driver_without_gpus_is_not_to_be_installed_either(on: On) -> None:
    assert remedy_after(on().report(), "GPU metrics     none: ") == OF_ERRORS["no_gpu"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (pynvml.NVML_ERROR_NO_PERMISSION, OF_ERRORS["no_permission"]),
        (pynvml.NVML_ERROR_RESET_REQUIRED, OF_ERRORS["reset_required"]),
        (pynvml.NVML_ERROR_GPU_IS_LOST, NVIDIA.down),
    ],
)
def test_a_gpu_that_is_down_gets_the_remedy_of_its_error_and_hides_no_other_gap(
    on: On, code: int, remedy: str
) -> None:
    item = on(H100, H100, H100)
    item.board.gpus[0].record.device_result = code
    item.fail("DeviceGetPcieReplayCounter", pynvml.NVML_ERROR_TIMEOUT, 1, 2)
    report = item.report()
    assert report.status == WITH_GAPS
    assert report.lines[0] == f"works, with {len(told(report)['gaps'])} gaps"
    assert remedy_after(report, "gap             gpu 0: down: ") == remedy
    assert_link_alone_fails(report)


def test_where_all_gpus_are_down_nothing_works(on: On) -> None:
    item = on(H100)
    item.board.gpus[0].record.device_result = pynvml.NVML_ERROR_GPU_IS_LOST
    report = item.report()
    assert (report.status, report.lines[0]) == (WITH_GAPS, "no GPU is up")


def test_a_gpu_that_hangs_is_no_gap_of_each_collector(on: On) -> None:
    item = on(H100, H100)
    item.fail("DeviceGetPcieReplayCounter", pynvml.NVML_ERROR_TIMEOUT, 1)
    hung = item.board.gpus[0].record

    def found() -> Report | None:
        timer = threading.Timer(0.3, setattr, (hung, "hang", 1))
        timer.start()
        try:
            report = item.report(Settings(interval_seconds=0.9, deadline_seconds=1.8))
        finally:
            timer.join()
            hung.hang = 0
        return report if "gpu 0: down" in "".join(report.lines) else None

    report = until(found, "a hang that was there for long enough of what we had the CPU")
    assert remedy_after(report, "gap             gpu 0: down: ") == OF_ERRORS["hung"]
    assert_link_alone_fails(report)


def test_a_forbidden_signal_has_another_remedy_than_an_absent_one(on: On) -> None:
    item = on(H100, A100)
    item.fail("GpmSampleGet", pynvml.NVML_ERROR_NO_PERMISSION)
    gap = "gap             gpm: not provided by gpu 0, gpu 1"
    refused = f"{gap}: nvmlGpmSampleGet: NO_PERMISSION (4)"
    assert remedy_after(item.report(), refused) == OF_ERRORS["no_permission"]
    item.fail("GpmSampleGet", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert "needs Hopper" in remedy_after(item.report(), gap)


# --- Busy time ------------------------------------------------------------------------------------
NO_BUSY_TIME = "does not work: the driver reports no busy time for any GPU"


def told(report: Report) -> dict[str, Any]:
    """The document of `report` as programs read it."""
    fields: dict[str, Any] = json.loads(dumps(report.document))
    return fields


def remedies_of(report: Report) -> dict[str, str]:
    return {gap["subject"]: gap["remedy"] for gap in told(report)["gaps"]}


def test_without_busy_time_it_does_not_work_and_no_substitute_is_named(
    make_board: Callable[..., Board], libraries: Libraries
) -> None:
    divided = Checked(make_board(gpus=[A100], mig=[(0, 3)]), libraries)
    report = divided.report()
    assert (report.status, report.lines[0]) == (WITH_GAPS, NO_BUSY_TIME)
    assert told(report)["signals"]["busy_time"] is False
    remedies = remedies_of(report)
    assert "turn MIG off" in remedies["busy_time"]
    assert remedies["utilization_samples"] == NVIDIA.signals["utilization_samples"]


@pytest.mark.parametrize(
    ("made", "refused", "instead"),
    [
        ({"mig": [(0, 3)]}, "", "busy time comes from GPM"),
        ({"mig": [(0, 3)]}, "GpmSampleGet", "busy time comes from GPM"),
        ({}, "DeviceGetSamples", "one reading per tick, which is coarser"),
    ],
)
def test_busy_time_of_another_source_is_one(
    make_board: Callable[..., Board],
    libraries: Libraries,
    made: dict[str, object],
    refused: str,
    instead: str,
) -> None:
    checked = Checked(make_board(gpus=[H100], **made), libraries)
    if refused:
        checked.fail(refused, pynvml.NVML_ERROR_NOT_SUPPORTED)
    report = checked.report()
    assert report.lines[0].startswith("works, with ")
    remedies = remedies_of(report)
    assert remedies.keys().isdisjoint({"busy_time", "gpm"})
    assert remedies["utilization_samples"].endswith(f": {instead}")


def test_where_one_gpu_has_busy_time_it_works(on: On) -> None:
    item = on(A100, A100)
    for call in ("DeviceGetSamples", "DeviceGetUtilizationRates"):
        item.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    report = item.report()
    assert report.lines[0].startswith("works, with ")
    assert "gap             busy_time: not provided by gpu 1" in report.lines


@pytest.mark.parametrize("power", [True, False])
def test_power_stands_in_for_energy_only_where_it_can_be_read(on: On, *, power: bool) -> None:
    item = on(A100)
    item.fail("DeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
    for call in () if power else ("DeviceGetFieldValues", "DeviceGetPowerUsage"):
        item.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert ("gpu_power_watts" in remedies_of(item.report())["energy"]) is power


def test_an_optional_signal_switched_off_is_no_gap(
    on: On, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    item = on(H100)
    wanting = replace(FAST, sysfs=tmp_path, kubelet_socket=tmp_path / "kubelet.sock")
    values = {"cgroup_cpu", "cgroup_memory", "psi_cgroup", "kubelet"}

    def told(settings: Settings) -> str:
        caplog.clear()
        report = item.report(settings)
        assert report.document["switched_off"] == sorted(settings.without)
        return "\n".join(report.lines)

    gaps = told(wanting)
    assert all(f"gap             {name}: " in gaps for name in values)
    assert "signal is not available signal=kubelet " in "".join(logged(caplog))
    report = told(replace(wanting, without=frozenset(values)))
    assert not any(f"gap             {name}: " in report for name in values)
    assert f"switched off    {', '.join(sorted(values))} (--without)" in report
    assert not any(f"signal={name}" in line for name in values for line in logged(caplog))


def test_one_can_do_without_each_signal_of_the_host_and_the_kubelet() -> None:
    hosts = set(_HOST_SIGNALS) - {"all_threads", "all_sockets", "all_processes"}
    assert {*OPTIONAL_SIGNALS} == hosts | {"kubelet"}


def test_a_fault_of_a_gpu_found_by_the_driver_is_a_gap(on: On) -> None:
    machine = on(H100)
    machine.board.gpus[0].record.recovery_action = 1
    machine.board.gpus[0].record.fabric_state = 2
    gaps = [gap for gap in told(machine.report())["gaps"] if gap["subject"] == "gpu 0"]
    assert [gap["problem"] for gap in gaps] == [
        "the driver asks for gpu_reset",
        "NVLink fabric in progress: CUDA cannot start",
    ]
    assert all(gap["remedy"] for gap in gaps)


@pytest.mark.parametrize(
    ("names", "version", "unseen"),
    [
        ((b"NVIDIA H100 80GB HBM3", b"Tesla T4"), "580.95.05", []),
        ((b"NVIDIA H100 80GB HBM3", b"NVIDIA Z1", b"NVIDIA Z1"), "580.95.05", ["NVIDIA Z1"]),
        ((b"NVIDIA H100 80GB HBM3",), "999.1", ["NVIDIA H100 80GB HBM3"]),
    ],
)
def test_a_model_or_driver_without_findings_ends_the_report(
    make_board: Callable[..., Board],
    libraries: Libraries,
    names: tuple[bytes, ...],
    version: str,
    unseen: list[str],
) -> None:
    board = make_board(gpus=[replace(H100, name=name) for name in names], driver_version=version)
    report = check(FAST, lambda: libraries.open(board), full=True)
    assert report.document["not_yet_seen"] == unseen
    line = f"untested        {', '.join(unseen)}, driver {version}: no recording of it exists; "
    assert [text for text in report.lines if text.startswith("untested")] == (
        [f"{line}`capture` helps"] if unseen else []
    )
    assert not unseen or report.lines[-1].startswith("untested")
    assert not any("not yet seen" in f"{gap}" for gap in told(report)["gaps"])


# --- Use by process -------------------------------------------------------------------------------
PROCESS_USE = "DeviceGetProcessUtilization", "DeviceGetProcessesUtilizationInfo"
ATTRIBUTES_NOTHING = "time of shared GPUs is not attributed to tenants"


def process_use(report: Report) -> tuple[list[str], Any]:
    """Its lines, and the document's field."""
    lines = [line for line in report.lines if line.startswith("process use ")]
    return lines, told(report)["process_use"]


def test_use_by_process_is_available_with_either_call(on: On) -> None:
    item = on(H100, A100)
    item.fail(PROCESS_USE[0], pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    on_both = {"gpu 0": True, "gpu 1": True}
    assert process_use(item.report()) == ([], on_both)
    assert process_use(item.report(full=True)) == (["process use     available"], on_both)


def test_a_gpu_without_use_by_process_is_named_and_is_no_gap(on: On) -> None:
    item = on(H100, A100)
    before = item.report()
    for call in PROCESS_USE:
        item.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED, 1)
    report = item.report()
    line = f"process use     not available on gpu 1: {ATTRIBUTES_NOTHING}"
    assert process_use(report) == ([line], {"gpu 0": True, "gpu 1": False})
    assert told(report)["gaps"] == told(before)["gaps"]


def test_use_by_process_of_a_divided_gpu_is_not_asked_about(
    make_board: Callable[..., Board], libraries: Libraries
) -> None:
    divided = Checked(make_board(gpus=[A100], mig=[(0, 3)]), libraries)
    assert process_use(divided.report()) == ([], {})
