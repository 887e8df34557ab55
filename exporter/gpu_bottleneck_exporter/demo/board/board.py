"""Opening a board, and running work on its GPUs."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import add
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.layout import (
    LANE,
    LANES,
    MAX_QUEUED_NS,
    SLOT_NS,
    SLOTS,
    GpuRecord,
    Header,
)
from gpu_bottleneck_exporter.demo.board.work import TRAINING, Work
from gpu_bottleneck_exporter.driver.readings import Pod

_ROW = struct.Struct(f"={len(LANES)}Q")
_TRIES, _TRY_SECONDS = 2000, 50e-6
"""Readers wait 0.1 s for a writer: longer than any takes, unless it has died inside."""


class Board(AbstractContextManager["Board"]):
    """An open board file. Close it, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Map the board at `path`, which `create` has made."""
        self.path = path
        self.file = path.open("r+b")
        self.memory = mmap.mmap(self.file.fileno(), 0)
        self.header = Header.from_buffer(self.memory)
        self.gpus = tuple(VirtualGpu(self, index) for index in range(self.header.gpu_count))
        self.pods: dict[int, Pod] = {}
        """By GPU; only in the process that sets them."""
        self.follows_load = False
        """Whether its GPUs get warm and slow with their load; only in the process that sets it."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the memory stays mapped as long as a record of it is in use."""
        self.file.close()


class VirtualGpu:
    """One GPU of a board: run work on it, hold it, read what it did.

    The tests' C library computes the same figures from the same memory.
    """

    def __init__(self, board: Board, index: int) -> None:
        self.index = index
        at = ctypes.sizeof(Header) + index * ctypes.sizeof(GpuRecord)
        self.record = GpuRecord.from_buffer(board.memory, at)
        self._board = board

    def run(self, seconds: float, work: Work = TRAINING) -> None:
        """Launch work and wait until it is done."""
        self.synchronize(self.launch(seconds, work))

    def launch(self, seconds: float, work: Work = TRAINING) -> int:
        """Queue `seconds` of work; returns its end, in nanoseconds of monotonic time.

        Blocks while more than 8 s are queued, as a full launch queue does.
        """
        duration = round(seconds * 1e9)
        while self.record.free_at_ns + duration > time.monotonic_ns() + MAX_QUEUED_NS:
            time.sleep(0.01)
        with self._locked():
            start = max(time.monotonic_ns(), self.record.free_at_ns)
            self._book(start, start + duration, work)
            end = int(start + duration)
            self.record.free_at_ns = end
        return end

    @staticmethod
    def synchronize(end_ns: int) -> None:
        """Sleep until the monotonic time `end_ns`, as a blocking CUDA synchronize does."""
        while (left := end_ns - time.monotonic_ns()) > 0:
            time.sleep(left / 1e9)

    def hold(self, pid: int, used_bytes: int) -> None:
        """Give process `pid` a context with `used_bytes` of memory; there is room for 64."""
        with self._locked():
            entry = next(one for one in self.record.processes if one.pid in {0, pid})
            entry.pid, entry.used_bytes = pid, used_bytes

    def done(self, at_ns: int) -> list[int]:
        """Sums up to the last slot that ended before `at_ns`, one for each of `LANES`."""
        # A sequence lock: odd while a writer is inside, and different after each write.
        for _ in range(_TRIES):
            before = self.record.sequence
            sums = self._done_now(at_ns // SLOT_NS)
            if before % 2 == 0 and self.record.sequence == before:
                break
            time.sleep(_TRY_SECONDS)
        return sums

    def sum_of(self, lane: str, first_slot: int, slots: int) -> int:
        """Sum of lane `lane` over `slots` slots from `first_slot` on."""
        rows = [self._row(index) for index in range(first_slot, first_slot + slots)]
        return sum(row[LANE[lane]] for row in rows if row)

    def percent(self, lane: str, window: int) -> int:
        """Share of utilization window number `window` in lane `lane`, in whole percent."""
        slots = self.record.period_slots
        return round(100 * self.sum_of(lane, window * slots, slots) / int(slots * SLOT_NS))

    def _row(self, slot: int) -> tuple[int, ...] | None:
        """The sums of slot `slot`; None if its row holds another one."""
        row = _ROW.unpack_from(self.record, _offset(slot))
        return row if row[0] == slot else None

    def _done_now(self, slot: int) -> list[int]:
        # A launch adds all of its work to `submitted`: take off what lies in slots still to come.
        sums = list(self.record.submitted)
        for index in range(slot, self.record.free_at_ns // SLOT_NS + 1):
            if row := self._row(index):
                for lane in range(1, len(LANES)):
                    sums[lane] -= row[lane]
        return sums

    def _book(self, start: int, end: int, work: Work) -> None:
        rates = work.per_nanosecond()
        for slot in range(start // SLOT_NS, (end - 1) // SLOT_NS + 1):
            overlap = min(end, (slot + 1) * SLOT_NS) - max(start, slot * SLOT_NS)
            amounts = [0, *(int(overlap * rate) for rate in rates)]
            # Without a row of its own, it takes that of the slot of 20 s ago.
            row = self._row(slot) or (slot, *[0] * len(rates))
            _ROW.pack_into(self.record, _offset(slot), *map(add, row, amounts))
            for lane, amount in enumerate(amounts):
                self.record.submitted[lane] += amount

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the process on one byte: it is not inherited by those that it forks.
        fcntl.lockf(self._board.file, fcntl.LOCK_EX, 1, self.index)
        # Odd while a writer is inside; `|=` also mends what a writer that died inside left behind.
        self.record.sequence |= 1
        try:
            yield
        finally:
            self.record.sequence += 1
            fcntl.lockf(self._board.file, fcntl.LOCK_UN, 1, self.index)


def _offset(slot: int) -> int:
    """The place of a slot's row in the record."""
    return GpuRecord.slots.offset + (slot % SLOTS) * _ROW.size
