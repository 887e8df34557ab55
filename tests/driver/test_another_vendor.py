"""A driver of another vendor, which knows utilization and processes only, under all the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.commands.check import WITH_GAPS, check
from gpu_bottleneck_exporter.driver.about import NO_GPU as REMEDY
from gpu_bottleneck_exporter.driver.about import About
from gpu_bottleneck_exporter.driver.protocol import Device, DeviceLost, Driver, DriverMissing
from gpu_bottleneck_exporter.driver.readings import Identity, Process, Processes, Utilization
from gpu_bottleneck_exporter.driver.readings import System as Versions
from gpu_bottleneck_exporter.settings import Settings
from support.kubelet import Kubelet, with_gpus
from support.metrics import Metrics, shown
from support.programs import program
from support.samplers import sampling
from support.waiting import until

BUSY_PERCENT = 75


class AcmeDevice(Device):
    """One GPU."""

    def __init__(self, index: int, holders: Sequence[int]) -> None:
        self.identity = Identity(index, f"acme-{index}", name="Acme One")
        self._holders = holders

    def check(self) -> None:
        pass

    def utilization(self) -> Utilization:
        return Utilization(gpu_percent=BUSY_PERCENT if self._holders else 0)

    def processes(self) -> Processes:
        return Processes(tuple(Process(pid) for pid in self._holders))


class AcmeDriver(Driver):
    """GPUs, the first of which is held by `holders`; the last does not open, if `broken`."""

    name = "acme"
    about = About("Acme")
    system = Versions("1.2", None)
    calls = 0
    seconds = 0.0

    def __init__(self, *holders: int, broken: bool = False) -> None:
        self._holders = holders
        self._broken = broken

    def count(self) -> int:
        return 2

    def open(self, index: int) -> list[Device]:
        if index and self._broken:
            raise DeviceLost("it smokes", "replace it")
        return [AcmeDevice(index, () if index else self._holders)]

    def gpus_of_device(self, source: str, device: str, gpus: Sequence[Identity]) -> list[Identity]:
        return [gpu for gpu in gpus if source == "acme.example/gpu" and gpu.uuid == device]


@pytest.fixture
def holder() -> Iterator[int]:
    with program("ready(); told()") as process:
        yield process.pid


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        interval_seconds=0.2,
        deadline_seconds=2.0,
        kubelet_socket=tmp_path / "kubelet.sock",
        container_logs=tmp_path,
    )


def test_known_readings_are_exported_and_the_others_are_absent(
    settings: Settings, holder: int
) -> None:
    free = {"gpu": "1", "waiting_on": "unallocated"}
    with sampling(lambda: AcmeDriver(holder), settings) as sampler:

        def whole() -> Metrics | None:
            result = shown(sampler)
            fed = result.total("gpu_feeder_processes", gpu="0") == 1
            return result if fed and result.total("gpu_stall_seconds_total", **free) else None

        result = until(whole, "the feeder and idle time")
    observed, busy, stalled = (
        result.total(f"gpu_{name}_seconds_total", gpu="0") or 0
        for name in ("observed", "busy", "stall")
    )
    assert busy == pytest.approx(observed * BUSY_PERCENT / 100)
    assert busy + stalled == pytest.approx(observed)
    assert [result.total("gpu_processes", gpu=gpu) for gpu in "01"] == [1, 0]
    absent = ("gpu_power_watts", "gpu_clock_hertz", "gpu_sm_active_seconds_total")
    assert [result.total(name) for name in absent] == [None, None, None]
    assert result.total("gpu_exporter_simulated") == 0
    success = result.samples_of("gpu_exporter_collector_success")
    assert {item.value for item in success} == {1}
    assert not [
        sample for sample in result.samples if re.search("nvidia|nvml", f"{sample}", re.IGNORECASE)
    ]


def test_check_names_its_vendor_and_none_other(settings: Settings, holder: int) -> None:
    report = check(settings, lambda: AcmeDriver(holder, broken=True), full=True)
    assert report.status == WITH_GAPS
    text = "\n".join(report.lines)
    assert "\ndriver          Acme 1.2\n" in text
    assert re.search(r"gap +gpu 1: down: it smokes\n  remedy +replace it\n", text)
    assert re.search(r"gap +gpm: .*\n  remedy +the driver does not report it\n", text)
    assert not re.search("NVIDIA|nvidia|NVML|CUDA|XID|Hopper", text)


def test_without_it_the_remedy_is_its_own(settings: Settings) -> None:
    def no_driver(*remedy: str) -> Driver:
        raise DriverMissing("no Acme here", *remedy)

    report = check(settings, lambda: no_driver("modprobe acme"))
    assert report.status == WITH_GAPS
    assert report.lines == ("GPU metrics     none: no Acme here", "  remedy        modprobe acme")
    assert check(settings, no_driver).lines[1] == f"  remedy        {REMEDY}"


def test_the_kubelet_names_its_gpus_by_the_vendors_resource(settings: Settings) -> None:
    pods = (
        with_gpus("train-0", "acme-0", resource="acme.example/gpu"),
        with_gpus("other-0", "acme-1"),
    )
    with Kubelet(settings.kubelet_socket, *pods), sampling(AcmeDriver, settings) as sampler:
        result = until(lambda: shown(sampler).samples_of("gpu_workload_info"), "the pod's name")
    names = [(item.labels["gpu"], item.labels["workload_pod"]) for item in result]
    assert names == [("0", "train-0")]
