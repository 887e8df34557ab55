"""Creating a board."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import MAGIC, GpuRecord, Header


@dataclass(frozen=True, slots=True)
class Model:
    """The figures of a GPU model, from its data sheet or the driver."""

    name: str = "NVIDIA H100 80GB HBM3"
    architecture: int = 9
    gpm: bool = True
    power_average: bool = True
    memory_bytes: int = 85_520_809_984
    reserved_bytes: int = 564_133_888
    power_limit_watts: int = 700
    idle_watts: int = 72
    sm_clock_max_mhz: int = 1980
    memory_clock_mhz: int = 2619
    pcie: tuple[int, int] = (5, 16)
    """Generation and width, now and at most."""
    c2c_links: int = 0


H100 = Model()


def create(
    path: Path, gpus: Sequence[Model] = (H100,), *, driver_version: str = "580.95.05"
) -> Board:
    """A new board file with GPUs of these models, opened."""
    now = time.monotonic_ns()
    header = Header(
        magic=MAGIC,
        gpu_count=len(gpus),
        created_ns=now,
        timestamp_offset_ns=time.time_ns() - now,  # samples since the epoch, as on most GPUs
        cuda_version=13000,
        driver_branch=int(driver_version.split(".", maxsplit=1)[0]),
        driver_version=driver_version.encode(),
    )
    records = [_described(index, model) for index, model in enumerate(gpus)]
    path.write_bytes(b"".join(map(bytes, (header, *records))))
    return Board(path)


def _described(index: int, model: Model) -> GpuRecord:
    clocks = (model.sm_clock_max_mhz, model.sm_clock_max_mhz, model.memory_clock_mhz, 1545)
    generation, width = model.pcie
    return GpuRecord(
        uuid=f"GPU-{uuid4()}".encode(),
        name=model.name.encode(),
        pci_bus_id=f"00000000:{0x10 + index:02X}:00.0".encode(),
        parent=index,
        slices=7,
        architecture=model.architecture,
        gpm_supported=model.gpm,
        # As on real GPUs: utilization windows of 1/6 s, of which the ring holds about 10 s.
        period_slots=17,
        ring_samples=60,
        idle_mw=model.idle_watts * 1000,
        power_limit_mw=model.power_limit_watts * 1000,
        power_default_limit_mw=model.power_limit_watts * 1000,
        no_power_average=not model.power_average,
        temperature=41,
        memory_temperature=47,
        max_operating_temperature=85,
        slowdown_temperature=87,
        shutdown_temperature=92,
        clock_mhz=clocks,
        clock_max_mhz=clocks,
        pcie_generation=generation,
        pcie_generation_max=generation,
        pcie_width=width,
        pcie_width_max=width,
        c2c_links=model.c2c_links,
        memory_total=model.memory_bytes,
        memory_reserved=model.reserved_bytes,
        throttle_since_ns=time.monotonic_ns(),
    )
