"""Virtual GPUs that are no whole H100s: other models, and MIG instances."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from gpu_bottleneck_exporter.demo.board.board import Board
from gpu_bottleneck_exporter.demo.board.create import H100, Model, create
from gpu_bottleneck_exporter.demo.board.layout import KIND_MIG, GpuRecord

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
