"""Creates a board."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.layout import MAGIC, GpuRecord, Header


@dataclass(frozen=True, slots=True)
class Model:
    """The fields of `GpuRecord` that depend on the model; by default an H100's."""

    name: bytes = b"NVIDIA H100 80GB HBM3"
    slices: int = 7
    architecture: int = 9
    gpm_supported: bool = True
    no_power_average: bool = False
    period_slots: int = 17
    """Slots per utilization window of 1/6 s."""
    ring_samples: int = 60
    """Windows in the ring, about 10 s."""
    idle_mw: int = 72_000
    power_limit_mw: int = 700_000
    power_default_limit_mw: int = 700_000
    temperature: int = 41
    memory_temperature: int = 47
    max_operating_temperature: int = 85
    slowdown_temperature: int = 87
    shutdown_temperature: int = 92
    clock_mhz: Sequence[int] = (1980, 1980, 2619, 1545)
    clock_max_mhz: Sequence[int] = clock_mhz
    pcie_generation: int = 5
    pcie_generation_max: int = 5
    pcie_width: int = 16
    pcie_width_max: int = 16
    c2c_links: int = 0
    engines: int = 0b1110
    """Bits of video engines in the order of `ENGINES`."""
    no_engine_rings: bool = False
    """Whether video engines have readings, but no samples."""
    module_limit_mw: int = 0
    """Power limit of a superchip's module; 0 without a CPU."""
    module_cpu_mw: int = 0
    """Power draw of the module's CPU."""
    process_list_version: int = 0
    """The only supported version of process lists; 0 for all."""
    memory_total: int = 85_520_809_984
    memory_reserved: int = 564_133_888


H100 = Model()


def create(
    path: Path, gpus: Sequence[Model] = (H100,), *, driver_version: str = "580.95.05"
) -> Board:
    """Create and open a board file with GPUs of these models."""
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
