"""Opens a board and runs work on its GPUs."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import add
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.layout import (
    LANE,
    LANES,
    MAX_PROCESSES,
    MAX_QUEUED_NS,
    SLOT_NS,
    SLOTS,
    GpuRecord,
    Header,
)
from gpu_bottleneck_exporter.demo.board.work import TRAINING, Work
from gpu_bottleneck_exporter.driver.readings import Pod

_ROW = struct.Struct(f"={len(LANES)}Q")


class Board(AbstractContextManager["Board"]):
    """An open board file."""

    def __init__(self, path: Path) -> None:
        """Map a file that `create` has made."""
        self.path = path
        self.file = path.open("r+b")
        self.memory = mmap.mmap(self.file.fileno(), 0)
        self.header = Header.from_buffer(self.memory)
        self.gpus = tuple(VirtualGpu(self, index) for index in range(self.header.gpu_count))
        self.pods: dict[int, Pod] = {}
        """Pod by GPU, local to this process."""
        self.follows_load = False
        """Whether load affects temperatures and clocks, local to this process."""

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the memory remains mapped while records are in use."""
        self.file.close()


class VirtualGpu:
    """A GPU of a board. The tests' C library computes the same figures."""

    def __init__(self, board: Board, index: int) -> None:
        self.index = index
        at = ctypes.sizeof(Header) + index * ctypes.sizeof(GpuRecord)
        self.record = GpuRecord.from_buffer(board.memory, at)
        self._board = board

    def run(self, seconds: float, work: Work = TRAINING) -> None:
        """Launch work and synchronize."""
        self.synchronize(self.launch(seconds, work))

    def launch(self, seconds: float, work: Work = TRAINING, pid: int | None = None) -> int:
        """Queue `seconds` of work and return its end, in monotonic nanoseconds.

        Blocks while more than 8 s are queued, as a full launch queue does. `pid`: its process, the
        caller by default, if it holds the GPU.
        """
        duration = round(seconds * 1e9)
        while self.record.free_at_ns + duration > time.monotonic_ns() + MAX_QUEUED_NS:
            time.sleep(0.01)
        with self._locked():
            start = max(time.monotonic_ns(), self.record.free_at_ns)
            self._book(start, start + duration, work, self._column(pid or os.getpid()))
            end = int(start + duration)
            self.record.free_at_ns = end
        return end

    @staticmethod
    def synchronize(end_ns: int) -> None:
        """Sleep until the monotonic time `end_ns`, as a blocking CUDA synchronize does."""
        while (remaining := end_ns - time.monotonic_ns()) > 0:
            time.sleep(remaining / 1e9)

    def hold(self, pid: int, used_bytes: int) -> None:
        """Give process `pid` a context with `used_bytes` of memory."""
        with self._locked():
            rows = enumerate(self.record.processes)
            column, entry = next((at, row) for at, row in rows if row.pid in {0, pid})
            if not entry.pid:
                for slot in range(SLOTS):
                    self.record.process_us[slot * MAX_PROCESSES + column] = 0
            entry.pid, entry.used_bytes = pid, used_bytes

    def done(self, at_ns: int) -> list[int]:
        """Sums by lane, up to the last slot that ended before `at_ns`."""
        # A sequence lock, odd during a write. 0.1 s of retries outlast any living writer.
        for _ in range(2000):
            before = self.record.sequence
            sums = self._done_now(at_ns // SLOT_NS)
            if before % 2 == 0 and self.record.sequence == before:
                break
            time.sleep(50e-6)
        return sums

    def sum_of(self, lane: str, first_slot: int, slots: int) -> int:
        """Sum of a lane over `slots` slots from `first_slot` on."""
        rows = [self._row(index) for index in range(first_slot, first_slot + slots)]
        return sum(row[LANE[lane]] for row in rows if row)

    def percent(self, lane: str, window: int) -> int:
        """Share of a utilization window in a lane, in whole percent."""
        slots = self.record.period_slots
        return round(100 * self.sum_of(lane, window * slots, slots) / int(slots * SLOT_NS))

    def process_percents(self, window: int) -> dict[int, int]:
        """Share of a utilization window by process, in whole percent."""
        slots = self.record.period_slots
        rows = [
            self._of_processes(slot)
            for slot in range(window * slots, (window + 1) * slots)
            if self._row(slot)
        ]
        used = zip(self.record.processes, map(sum, zip(*rows, strict=True)), strict=False)
        percents = {entry.pid: round(100_000 * us / int(slots * SLOT_NS)) for entry, us in used}
        return {pid: percent for pid, percent in percents.items() if pid and percent}

    def _row(self, slot: int) -> tuple[int, ...] | None:
        """Sums of a slot; None if its row is of another one."""
        row = _ROW.unpack_from(self.record, _offset(slot))
        return row if row[0] == slot else None

    def _done_now(self, slot: int) -> list[int]:
        # `submitted` includes future slots, which are subtracted.
        sums = list(self.record.submitted)
        for index in range(slot, self.record.free_at_ns // SLOT_NS + 1):
            if row := self._row(index):
                for lane in range(1, len(LANES)):
                    sums[lane] -= row[lane]
        return sums

    def _column(self, pid: int) -> int | None:
        rows = enumerate(self.record.processes)
        return next((column for column, row in rows if row.pid == pid), None)

    def _of_processes(self, slot: int) -> list[int]:
        first = (slot % SLOTS) * MAX_PROCESSES
        return list(self.record.process_us[first : first + MAX_PROCESSES])

    def _book(self, start: int, end: int, work: Work, column: int | None) -> None:
        rates = work.per_nanosecond()
        for slot in range(start // SLOT_NS, (end - 1) // SLOT_NS + 1):
            overlap = min(end, (slot + 1) * SLOT_NS) - max(start, slot * SLOT_NS)
            amounts = [0, *(int(overlap * rate) for rate in rates)]
            row, first = self._row(slot), (slot % SLOTS) * MAX_PROCESSES
            if row is None:  # a new slot overwrites the rows of 20 s ago
                row = (slot, *[0] * len(rates))
                self.record.process_us[first : first + MAX_PROCESSES] = [0] * MAX_PROCESSES
            _ROW.pack_into(self.record, _offset(slot), *map(add, row, amounts))
            if column is not None:
                self.record.process_us[first + column] += amounts[LANE["busy_ns"]] // 1000
            for lane, amount in enumerate(amounts):
                self.record.submitted[lane] += amount

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A POSIX lock on one byte, which forked processes do not inherit.
        fcntl.lockf(self._board.file, fcntl.LOCK_EX, 1, self.index)
        # `|=` also repairs the sequence after a writer that died.
        self.record.sequence |= 1
        try:
            yield
        finally:
            self.record.sequence += 1
            fcntl.lockf(self._board.file, fcntl.LOCK_UN, 1, self.index)


def _offset(slot: int) -> int:
    return GpuRecord.slots.offset + (slot % SLOTS) * _ROW.size
