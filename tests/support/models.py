"""Virtual GPUs that are no whole H100s: other models, and MIG instances."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from gpu_bottleneck_exporter.demo.board.create import H100, Model
from gpu_bottleneck_exporter.demo.board.layout import GpuRecord
from support.board import Board, create

_A100_CLOCKS_MHZ = (1410, 1410, 1593, 1545)
A100 = replace(
    H100,
    name=b"NVIDIA A100-SXM4-80GB",
    architecture=7,
    gpm_supported=False,
    no_power_average=True,
    memory_total=85_899_345_920,
    memory_reserved=560_000_000,
    power_limit_mw=400_000,
    power_default_limit_mw=400_000,
    idle_mw=55_000,
    clock_mhz=_A100_CLOCKS_MHZ,
    clock_max_mhz=_A100_CLOCKS_MHZ,
)
"""GA100: no GPM, and instantaneous power only."""
GB10 = replace(
    H100,
    name=b"NVIDIA GB10",
    architecture=10,
    gpm_supported=False,
    memory_total=0,
    memory_reserved=0,
    pcie_generation=1,
    pcie_generation_max=1,
    pcie_width=1,
    pcie_width_max=1,
    c2c_links=8,
)
"""NVLink-C2C and the machine's memory; its PCIe link is a placeholder."""
KIND_MIG = 1
Mig = Sequence[tuple[int, int]]
"""Parent and slices of seven of each instance."""


def create_with_mig(path: Path, gpus: Sequence[Model], mig: Mig, **driver_version: str) -> Board:
    """A board with `gpus` and, after them, MIG instances, which the stand-in for NVML knows."""
    board = create(path, [*gpus, *[H100] * len(mig)], **driver_version)
    for position, (parent, slices) in enumerate(mig):
        instance = 1 + sum(above == parent for above, _ in mig[:position])
        _describe(board, len(gpus) + position, parent, instance, slices)
    return board


def _describe(board: Board, index: int, parent: int, instance: int, slices: int) -> None:
    above, record = board.gpus[parent].record, board.gpus[index].record
    above.mig_enabled = 1
    ctypes.memmove(ctypes.byref(record), ctypes.byref(above), GpuRecord.sequence.offset)
    record.uuid = f"MIG-{uuid4()}".encode()
    record.kind, record.parent, record.gpu_instance = KIND_MIG, parent, instance
    record.slices, record.mig_enabled = slices, 0
    # A GPU has seven slices of compute, but eight of memory.
    record.memory_total = above.memory_total * slices // 8
    gigabytes = round(record.memory_total / 1e9)
    record.name = f"{above.name.decode()} MIG {slices}g.{gigabytes}gb".encode()
