"""Reading a virtual board: the sums and windows that its records stand for.

The C stand-in driver of the tests computes the same figures from the same memory.
"""

from __future__ import annotations

import os
import struct
import time

from gpu_bottleneck_exporter.driver.board import (
    KIND_MIG,
    LANE,
    LANES,
    SLOT_NS,
    SLOTS,
    Board,
    Gpu,
    VirtualGpu,
)

ROW = struct.Struct(f"={len(LANES)}Q")
_TRIES = 2000
_ADDED_UP = frozenset(lane for lane in LANES if lane.endswith(("_bytes", "_uj")))


def done(gpu: VirtualGpu, at_ns: int) -> list[int]:
    """What GPU `gpu` has done up to the last slot that ended before `at_ns`, one sum a lane."""
    record = gpu.record
    for _ in range(_TRIES):
        before = record.sequence
        sums = _done_now(record, at_ns // SLOT_NS)
        if before % 2 == 0 and record.sequence == before:
            break
        time.sleep(50e-6)  # a writer is inside; one that died inside must not stop us for ever
    return sums


def done_with_instances(board: Board, gpu: VirtualGpu, at_ns: int) -> list[int]:
    """Like `done`; a GPU in MIG mode adds its instances, weighted by their slices of seven."""
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


def window(record: Gpu, lane: str, first_slot: int, slots: int) -> int:
    """Sum of lane `lane` over `slots` slots from `first_slot` on."""
    total = 0
    at = LANE[lane]
    for index in range(first_slot, first_slot + slots):
        row = ROW.unpack_from(record, Gpu.slots.offset + (index % SLOTS) * ROW.size)
        if row[0] == index:
            total += row[at]
    return total


def percent(record: Gpu, lane: str, window_index: int) -> int:
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
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _done_now(record: Gpu, slot: int) -> list[int]:
    sums = list(record.submitted)
    last = record.free_at_ns // SLOT_NS
    for index in range(slot, last + 1):
        row = ROW.unpack_from(record, Gpu.slots.offset + (index % SLOTS) * ROW.size)
        if row[0] == index:
            for lane in range(1, len(LANES)):
                sums[lane] -= row[lane]
    return sums
