"""Creating a board."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
import uuid as uuid_module
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.board import Board, BoardError
from gpu_bottleneck_exporter.demo.board.layout import (
    KIND_GPU,
    KIND_MIG,
    LAYOUT_VERSION,
    MAGIC,
    MAX_GPUS,
    GpuRecord,
    Header,
)

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the board is shared on purpose


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
A100 = Model(
    name="NVIDIA A100-SXM4-80GB",
    architecture=7,
    gpm=False,
    power_average=False,
    memory_bytes=85_899_345_920,
    reserved_bytes=560_000_000,
    power_limit_watts=400,
    idle_watts=55,
    sm_clock_max_mhz=1410,
    memory_clock_mhz=1593,
)
"""GA100: no GPM, and instantaneous power only."""
GB10 = Model(
    name="NVIDIA GB10",
    architecture=10,
    gpm=False,
    memory_bytes=0,
    reserved_bytes=0,
    power_limit_watts=140,
    idle_watts=4,
    sm_clock_max_mhz=3003,
    pcie=(1, 1),
    c2c_links=8,
)
"""NVLink-C2C and the machine's memory; its PCIe link is a placeholder."""


def create(
    path: Path | None = None,
    gpus: Sequence[Model] = (H100,),
    *,
    mig: Sequence[tuple[int, int]] = (),
    driver_version: str = "580.95.05",
) -> Board:
    """A new board file (in /dev/shm unless `path` is given), opened.

    `mig` lists (parent index, slices of 7) for each MIG instance, and puts its parent into MIG
    mode. Raises BoardError.
    """
    count = len(gpus) + len(mig)
    if count > MAX_GPUS:
        raise BoardError(f"a virtual board holds at most {MAX_GPUS} GPUs and MIG instances")
    size = ctypes.sizeof(Header) + count * ctypes.sizeof(GpuRecord)
    path = path or _fresh_path()
    with open(path, "wb") as file:
        file.truncate(size)
        file.write(bytes(_header(count, driver_version)))
    board = Board(path)
    for gpu, model in zip(board.gpus, gpus, strict=False):
        _describe(gpu.record, gpu.index, model)
    for position, (parent, slices) in enumerate(mig):
        instance = 1 + sum(above == parent for above, _ in mig[:position])
        _describe_mig(board, len(gpus) + position, parent, instance, slices)
    return board


def _fresh_path() -> Path:
    folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    descriptor, name = tempfile.mkstemp(prefix="gpu-board-", dir=folder)
    os.close(descriptor)
    return Path(name)


def _header(count: int, driver_version: str) -> Header:
    now = time.monotonic_ns()
    return Header(
        magic=MAGIC,
        layout_version=LAYOUT_VERSION,
        gpu_count=count,
        created_ns=now,
        timestamp_offset_ns=time.time_ns() - now,  # samples since the epoch, as on most GPUs
        cuda_version=13000,
        driver_branch=int(driver_version.split(".", maxsplit=1)[0]),
        driver_version=driver_version.encode(),
    )


def _describe(record: GpuRecord, index: int, model: Model) -> None:
    record.uuid = f"GPU-{uuid_module.uuid4()}".encode()
    record.name = model.name.encode()
    record.pci_bus_id = f"00000000:{0x10 + index:02X}:00.0".encode()
    record.kind = KIND_GPU
    record.parent = index
    record.slices = 7
    record.architecture = model.architecture
    record.gpm_supported = model.gpm
    # As on real GPUs: utilization windows of 1/6 s, of which the ring holds about 10 s.
    record.period_slots = 17
    record.ring_samples = 60
    record.power_limit_mw = record.power_default_limit_mw = model.power_limit_watts * 1000
    record.no_power_average = not model.power_average
    record.idle_mw = model.idle_watts * 1000
    record.temperature, record.memory_temperature = 41, 47
    record.slowdown_temperature, record.shutdown_temperature = 87, 92
    record.max_operating_temperature = 85
    clocks = (model.sm_clock_max_mhz, model.sm_clock_max_mhz, model.memory_clock_mhz, 1545)
    for clock, mhz in enumerate(clocks):
        record.clock_mhz[clock] = record.clock_max_mhz[clock] = mhz
    record.pcie_generation = record.pcie_generation_max = model.pcie[0]
    record.pcie_width = record.pcie_width_max = model.pcie[1]
    record.c2c_links = model.c2c_links
    record.memory_total = model.memory_bytes
    record.memory_reserved = model.reserved_bytes
    record.throttle_since_ns = time.monotonic_ns()


def _describe_mig(board: Board, index: int, parent: int, instance: int, slices: int) -> None:
    above = board.gpus[parent].record
    above.mig_enabled = 1
    record = board.gpus[index].record
    ctypes.memmove(ctypes.byref(record), ctypes.byref(above), GpuRecord.sequence.offset)
    record.uuid = f"MIG-{uuid_module.uuid4()}".encode()
    record.kind = KIND_MIG
    record.parent = parent
    record.gpu_instance = instance
    record.slices = slices
    record.mig_enabled = 0
    # A GPU has seven slices of compute, but eight of memory.
    record.memory_total = above.memory_total * slices // 8
    gigabytes = round(record.memory_total / 1e9)
    record.name = f"{above.name.decode()} MIG {slices}g.{gigabytes}gb".encode()
