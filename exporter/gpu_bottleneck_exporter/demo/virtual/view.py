"""Reading a virtual board: sums and windows from its records.

The tests' C library computes the same figures from the same memory.
"""

from __future__ import annotations

import os
import struct
import time

from gpu_bottleneck_exporter.demo.board.board import VirtualGpu
from gpu_bottleneck_exporter.demo.board.layout import LANE, LANES, SLOT_NS, SLOTS, GpuRecord

_ROW = struct.Struct(f"={len(LANES)}Q")
_TRIES = 2000


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


def window(record: GpuRecord, lane: str, first_slot: int, slots: int) -> int:
    """Sum of lane `lane` over `slots` slots from `first_slot` on."""
    rows = [_row(record, index) for index in range(first_slot, first_slot + slots)]
    return sum(row[LANE[lane]] for row in rows if row)


def percent(record: GpuRecord, lane: str, window_index: int) -> int:
    """Share of utilization window `window_index` in lane `lane`, in whole percent."""
    slots = record.period_slots
    return round(100 * window(record, lane, window_index * slots, slots) / int(slots * SLOT_NS))


def alive(pid: int) -> bool:
    """Whether process `pid` exists: the driver forgets the contexts of dead ones."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _row(record: GpuRecord, slot: int) -> tuple[int, ...] | None:
    """The sums of slot `slot`; None if its row holds another one."""
    row = _ROW.unpack_from(record, GpuRecord.slots.offset + (slot % SLOTS) * _ROW.size)
    return row if row[0] == slot else None


def _done_now(record: GpuRecord, slot: int) -> list[int]:
    # A launch adds all of its work to `submitted`: take off what lies in slots still to come.
    sums = list(record.submitted)
    for index in range(slot, record.free_at_ns // SLOT_NS + 1):
        if row := _row(record, index):
            for lane in range(1, len(LANES)):
                sums[lane] -= row[lane]
    return sums
