"""Opening a board, and running work on its GPUs."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.demo.board.layout import (
    CALL,
    LANES,
    MAGIC,
    MAX_EVENTS,
    MAX_PROCESSES,
    MAX_QUEUED_NS,
    PROCESS_COMPUTE,
    SLOT_NS,
    SLOTS,
    THROTTLE_REASONS,
    Event,
    GpuRecord,
    Header,
    throttled_ns,
)
from gpu_bottleneck_exporter.demo.board.work import TRAINING, Work


class BoardError(Exception):
    """A board file that is missing, of another layout, or full."""


class Board:
    """An open board file. Close it, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Map the board at `path`. Raises BoardError if it is not a board of this layout."""
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self.memory = mmap.mmap(self.descriptor, 0)
            self.header = Header.from_buffer(self.memory)
        except (OSError, ValueError) as error:
            raise BoardError(f"cannot open the virtual board {path}: {error}") from error
        if self.header.magic != MAGIC:
            raise BoardError(f"{path} is not a virtual board of this layout")
        self.gpus = tuple(VirtualGpu(self, index) for index in range(self.header.gpu_count))

    def __enter__(self) -> Board:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the memory stays mapped as long as a record of it is in use."""
        os.close(self.descriptor)

    def raise_xid(self, gpu: int, xid: int) -> None:
        """Report an XID of GPU `gpu` to all processes that wait for events."""
        position = self.header.event_count
        self.header.events[position % MAX_EVENTS] = Event(gpu=gpu, xid=xid)
        self.header.event_count = position + 1


class VirtualGpu:
    """One GPU of a board: run work on it, hold it, break it."""

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

    def hold(self, pid: int, used_bytes: int, kind: int = PROCESS_COMPUTE) -> None:
        """Give process `pid` a context with `used_bytes` of memory. Raises BoardError if full."""
        with self._locked():
            for entry in self.record.processes:
                if entry.pid in (0, pid):
                    entry.pid, entry.kind, entry.used_bytes = pid, kind, used_bytes
                    return
        raise BoardError(f"virtual GPU {self.index} holds {MAX_PROCESSES} processes already")

    def release(self, pid: int) -> None:
        """Drop the context of process `pid`."""
        with self._locked():
            for entry in self.record.processes:
                if entry.pid == pid:
                    entry.pid, entry.used_bytes = 0, 0

    def throttle(self, reason: str, ratio: float) -> None:
        """Throttle by `reason` for `ratio` of the time from now on."""
        now = time.monotonic_ns()
        position = THROTTLE_REASONS.index(reason)
        with self._locked():
            for other in range(len(THROTTLE_REASONS)):
                self.record.throttle_base_ns[other] = throttled_ns(self.record, other, now)
            self.record.throttle_since_ns = now
            self.record.throttle_ppm[position] = round(ratio * 1e6)

    def fail(self, call: str, result: int) -> None:
        """Make NVML call `call` (a name of `CALLS`) return `result` from now on."""
        self.record.call_result[CALL[call]] = result

    def _book(self, start: int, end: int, work: Work) -> None:
        rates = work.per_nanosecond()
        for index in range(start // SLOT_NS, (end - 1) // SLOT_NS + 1):
            overlap = min(end, (index + 1) * SLOT_NS) - max(start, index * SLOT_NS)
            base = (index % SLOTS) * len(LANES)
            slots = self.record.slots
            row = slots[base : base + len(LANES)]
            if row[0] != index:  # the row still holds the slot of 20 s ago
                row = [index] + [0] * (len(LANES) - 1)
            for lane, rate in enumerate(rates, start=1):
                amount = int(overlap * rate)
                row[lane] += amount
                self.record.submitted[lane] += amount
            for lane, value in enumerate(row):
                slots[base + lane] = value

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the process on one byte: it is not inherited by those that it forks.
        fcntl.lockf(self._board.descriptor, fcntl.LOCK_EX, 1, self.index)
        # Odd while a writer is inside; `|=` also mends what a writer that died inside left behind.
        self.record.sequence |= 1
        try:
            yield
        finally:
            self.record.sequence += 1
            fcntl.lockf(self._board.descriptor, fcntl.LOCK_UN, 1, self.index)
