"""Reading a virtual board: sums and windows from its records.

The tests' C library computes the same figures from the same memory.
"""

from __future__ import annotations

import os
import struct
import time

from gpu_bottleneck_exporter.demo.board.board import Board, VirtualGpu
from gpu_bottleneck_exporter.demo.board.layout import (
    KIND_MIG,
    LANE,
    LANES,
    SLOT_NS,
    SLOTS,
    GpuRecord,
)

ROW = struct.Struct(f"={len(LANES)}Q")
_TRIES = 2000
_ADDED_UP = frozenset(lane for lane in LANES if lane.endswith(("_bytes", "_uj")))


def done(gpu: VirtualGpu, at_ns: int) -> list[int]:
    """Sums of GPU `gpu` up to the last slot that ended before `at_ns`, one per lane."""
    record = gpu.record
    # A sequence lock: odd while a writer is inside, and different after each write.
    for _ in range(_TRIES):
        before = record.sequence
        sums = _done_now(record, at_ns // SLOT_NS)
        if before % 2 == 0 and record.sequence == before:
            break
        # A writer is inside. The tries are limited, as it may have died there.
        time.sleep(50e-6)
    return sums


def done_with_instances(board: Board, gpu: VirtualGpu, at_ns: int) -> list[int]:
    """Sums like `done`; in MIG mode with the instances, weighted by their slices of seven."""
    sums = done(gpu, at_ns)
    if not gpu.record.mig_enabled:
        return sums
    for child in instances(board, gpu.index):
        for lane, amount in enumerate(done(child, at_ns)):
            share = 7 if LANES[lane] in _ADDED_UP else child.record.slices
            sums[lane] += amount * share // 7
    return sums


def instances(board: Board, parent: int) -> list[VirtualGpu]:
    """The MIG instances of GPU `parent`."""
    return [g for g in board.gpus if g.record.kind == KIND_MIG and g.record.parent == parent]


def window(record: GpuRecord, lane: str, first_slot: int, slots: int) -> int:
    """Sum of lane `lane` over `slots` slots from `first_slot` on."""
    total = 0
    at = LANE[lane]
    for index in range(first_slot, first_slot + slots):
        row = ROW.unpack_from(record, GpuRecord.slots.offset + (index % SLOTS) * ROW.size)
        if row[0] == index:
            total += row[at]
    return total


def percent(record: GpuRecord, lane: str, window_index: int) -> int:
    """Share of utilization window `window_index` in lane `lane`, in whole percent."""
    if lane == "busy_ns" and record.stuck_utilization:
        return int(record.stuck_utilization)
    if lane == "memory_ns" and record.memory_always_zero:
        return 0
    slots = record.period_slots
    busy = window(record, lane, window_index * slots, slots)
    return round(100 * busy / int(slots * SLOT_NS))


def alive(pid: int) -> bool:
    """Whether process `pid` exists: the driver forgets the contexts of dead ones."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _done_now(record: GpuRecord, slot: int) -> list[int]:
    # A launch adds all of its work to `submitted`: take off what lies in slots still to come.
    sums = list(record.submitted)
    last = record.free_at_ns // SLOT_NS
    for index in range(slot, last + 1):
        row = ROW.unpack_from(record, GpuRecord.slots.offset + (index % SLOTS) * ROW.size)
        if row[0] == index:
            for lane in range(1, len(LANES)):
                sums[lane] -= row[lane]
    return sums
