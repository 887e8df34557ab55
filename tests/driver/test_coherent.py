"""GPUs that share memory with the CPU over NVLink-C2C."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pynvml import NVML_ERROR_NOT_SUPPORTED

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.demo.board.create import H100
from gpu_bottleneck_exporter.demo.board.work import Work
from gpu_bottleneck_exporter.driver.protocol import Unsupported
from gpu_bottleneck_exporter.driver.readings import Link, Memory
from gpu_bottleneck_exporter.exposition.render import Exposition
from support.models import GB10
from support.samplers import sampling
from support.waiting import until

from .conftest import Make

GH200 = replace(H100, name=b"NVIDIA GH200 480GB", c2c_links=10)
C2C = {"c2c_receive": 8e9, "c2c_data_receive": 8e9, "c2c_transmit": 3e9, "c2c_data_transmit": 3e9}


def mem_total() -> int:
    (line,) = (x for x in Path("/proc/meminfo").read_text().splitlines() if "MemTotal" in x)
    return int(line.split()[1]) * 1024


def test_a_placeholder_of_a_pcie_link_is_no_link(nvml: Make) -> None:
    machine = nvml(gpus=[GB10])
    machine.record.pcie_width_max = 16
    assert machine.device.link() == Link(replays=0)


@pytest.mark.parametrize(
    ("model", "generation", "width"),
    [(GB10, 1, 16), (GH200, 4, 1), (replace(H100, c2c_links=0), 1, 1)],
    ids=["idle", "narrow", "no C2C"],
)
def test_any_other_link_is_what_it_says(
    nvml: Make, model: object, generation: int, width: int
) -> None:
    machine = nvml(gpus=[model])
    record = machine.record
    record.pcie_generation, record.pcie_width = generation, width
    link = machine.device.link()
    assert (link.generation, link.width) == (generation, width)


def test_memory_that_is_refused_is_the_machine_s(nvml: Make) -> None:
    memory = nvml(gpus=[GB10]).device.memory()
    assert memory == Memory(mem_total(), of_machine=True)


def test_a_coherent_gpu_with_memory_of_its_own_keeps_it(nvml: Make) -> None:
    memory = nvml(gpus=[GH200]).device.memory()
    assert memory == Memory(H100.memory_total, 0, H100.memory_reserved)


def test_memory_that_is_refused_without_c2c_is_unknown(nvml: Make) -> None:
    machine = nvml()
    machine.gpu.fail("DeviceGetMemoryInfo", NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(Unsupported):
        machine.device.memory()


@pytest.mark.parametrize(("model", "counted"), [(GH200, C2C), (H100, {})], ids=["C2C", "no C2C"])
def test_traffic_over_c2c_is_counted_where_there_is_any(
    nvml: Make, model: object, counted: dict[str, float]
) -> None:
    machine = nvml(gpus=[model])
    device = machine.device
    work = Work(c2c_receive_bytes_per_second=8e9, c2c_transmit_bytes_per_second=3e9)
    machine.gpu.launch(8.0, work)
    time.sleep(0.1)
    device.activity()
    time.sleep(0.6)
    activity = device.activity()
    assert activity is not None
    traffic = activity.traffic_bytes.items()
    rates = {k: n * 1e9 / activity.interval_ns for k, n in traffic if k.startswith("c2c")}
    assert rates == pytest.approx(counted, rel=0.05)


def test_a_driver_that_does_not_know_c2c_traffic_keeps_the_rest(nvml: Make) -> None:
    machine = nvml(gpus=[GH200], driver_version="570.124.06")
    device = machine.device
    device.activity()
    time.sleep(0.3)
    activity = device.activity()
    assert activity is not None
    assert activity.traffic_bytes.keys() == {
        f"{link}_{way}" for link in ("pcie", "nvlink") for way in ("receive", "transmit")
    }


def test_the_exposition_has_the_sum_of_the_processes_and_no_link(nvml: Make) -> None:
    machine = nvml(gpus=[GB10])
    machine.gpu.hold(os.getpid(), 5 * 2**30)
    machine.gpu.hold(os.getppid(), 2 * 2**30)
    with sampling(lambda: machine.driver) as sampler:
        until(lambda: "\ngpu_memory_used_bytes{" in shown(sampler), "memory is shown")
        text = shown(sampler)
    assert value(text, "gpu_memory_used_bytes") == 7 * 2**30
    assert value(text, "gpu_memory_total_bytes") == mem_total()
    assert "\ngpu_pcie_link" not in text


def shown(sampler: object) -> str:
    return Exposition(sampler, ALL).render()[0].decode()  # type: ignore[arg-type]


def value(text: str, family: str) -> float:
    (line,) = (line for line in text.splitlines() if line.startswith(f"{family}{{"))
    return float(line.rpartition(" ")[2])
