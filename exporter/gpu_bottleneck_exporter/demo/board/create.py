"""Creating a board."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import MAGIC, GpuRecord, Header

_CLOCKS_MHZ = (1980, 1980, 2619, 1545)


@dataclass(frozen=True, slots=True)
class Model:
    """The fields of `GpuRecord` in which all GPUs of a model are alike; by default an H100's.

    From its data sheet or the driver.
    """

    name: bytes = b"NVIDIA H100 80GB HBM3"
    slices: int = 7
    architecture: int = 9
    gpm_supported: bool = True
    no_power_average: bool = False
    period_slots: int = 17
    """As on real GPUs: utilization windows of 1/6 s."""
    ring_samples: int = 60
    """About 10 s."""
    idle_mw: int = 72_000
    power_limit_mw: int = 700_000
    power_default_limit_mw: int = 700_000
    temperature: int = 41
    memory_temperature: int = 47
    max_operating_temperature: int = 85
    slowdown_temperature: int = 87
    shutdown_temperature: int = 92
    clock_mhz: Sequence[int] = _CLOCKS_MHZ
    clock_max_mhz: Sequence[int] = _CLOCKS_MHZ
    pcie_generation: int = 5
    pcie_generation_max: int = 5
    pcie_width: int = 16
    pcie_width_max: int = 16
    c2c_links: int = 0
    engines: int = 0b1110
    """Bits of the video engines that it has, in the order of `ENGINES`: an H100 has no encoder."""
    no_engine_rings: bool = False
    """Whether the driver gives readings of its video engines, but no samples."""
    module_limit_mw: int = 0
    """Power limit of a superchip's module; 0: a GPU without a CPU beside it."""
    module_cpu_mw: int = 0
    """Power that the CPU of the module draws."""
    process_list_version: int = 0
    """The only version of process lists that the driver answers; 0: all that the library has."""
    memory_total: int = 85_520_809_984
    memory_reserved: int = 564_133_888


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
    records = [
        GpuRecord(
            uuid=f"GPU-{uuid4()}".encode(),
            pci_bus_id=f"00000000:{0x10 + index:02X}:00.0".encode(),
            parent=index,
            throttle_since_ns=now,
            **asdict(model),
        )
        for index, model in enumerate(gpus)
    ]
    path.write_bytes(b"".join(map(bytes, (header, *records))))
    return Board(path)
