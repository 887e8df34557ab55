"""NVML's utilization by process."""

from __future__ import annotations

import ctypes
import struct
import time
from functools import partial

import pynvml

from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.nvml.rings import SILENCE_BEFORE_PROBE_NS
from gpu_bottleneck_exporter.driver.protocol import DriverError, NothingFound
from gpu_bottleneck_exporter.driver.readings import ProcessSample

PROCESS_USE = {
    "nvmlDeviceGetProcessUtilization": struct.Struct("=I4xQ4I"),
    "nvmlDeviceGetProcessesUtilizationInfo": struct.Struct("=QI6I4x"),
}
"""Entry layout by version (Blackwell refuses the first): pid and µs, or µs and pid; percents."""
MAX_ROWS = 8192
"""Entries at most; drivers report 100 to 4096."""
_ROW_BYTES = 40
"""Size of the longer entry."""
_REQUEST = struct.Struct("=IIQQ")
"""nvmlProcessesUtilizationInfo_v1_t: version, entries, mark in µs, array."""


class ProcessUseRequest:
    """The arguments of a call."""

    def __init__(self, rows: int) -> None:
        """`rows`: maximum of entries."""
        self.rows = rows
        self._buffer = ctypes.create_string_buffer(rows * _ROW_BYTES)
        self._request = ctypes.create_string_buffer(_REQUEST.size)

    def arguments(self, name: str, mark: int) -> tuple[object, ...]:
        """Arguments after the device; `mark`: µs."""
        version, array = pynvml.ProcessesUtilizationInfo_v1, ctypes.addressof(self._buffer)
        _REQUEST.pack_into(self._request, 0, version, self.rows, mark, array)
        if PROCESS_USE[name].size == _ROW_BYTES:
            return (self._request,)
        return self._buffer, ctypes.byref(self._request, 4), ctypes.c_ulonglong(mark)

    @property
    def count(self) -> int:
        """Number of the driver's entries."""
        return int(_REQUEST.unpack_from(self._request)[1])

    def entries(self, name: str) -> list[tuple[int, ...]]:
        """µs, pid and percents of each entry."""
        layout = PROCESS_USE[name]
        filled = memoryview(self._buffer)[: min(self.count, self.rows) * layout.size]
        entries = layout.iter_unpack(filled)
        if layout.size == _ROW_BYTES:
            return [*entries]
        return [(at, pid, *percents) for pid, at, *percents in entries]


class ProcessUseReader:
    """One GPU's use by process, with its mark."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._mark = 0
        self._stale: set[tuple[int, int]] | None = None
        """Entries at the last probe, which persist."""
        self._last_answer_ns = 0
        self._request = ProcessUseRequest(128)

    def drain(self) -> tuple[ProcessSample, ...] | None:
        """New entries, initially none; None if that failed."""
        now, stale = time.monotonic_ns(), self._stale
        rows = () if stale is None else self._newer_than(self._mark)
        if rows is None:
            return None
        samples = tuple(row for row in rows if row[:2] not in (stale or ()))
        if samples:
            self._last_answer_ns, self._mark = now, samples[-1].timestamp_us
        elif stale is None or now - self._last_answer_ns >= SILENCE_BEFORE_PROBE_NS:
            self._last_answer_ns = now
            return self._probe()
        return samples

    def _probe(self) -> tuple[ProcessSample, ...] | None:
        """Set the mark, also back with the clock."""
        rows = self._newer_than(0)
        if rows is None:
            return None
        present, stale = {row[:2] for row in rows}, self._stale
        newest = max((at for at, _ in present - (stale or set())), default=self._mark)
        if stale is None or newest < self._mark:
            self._mark = newest
        self._stale = present
        return ()

    def _newer_than(self, mark: int) -> tuple[ProcessSample, ...] | None:
        for name in PROCESS_USE:
            rows = self._queries.attempt((name,), partial(self._read, name, mark))
            if rows is not None or not self._queries.refusals.is_unknown((name,)):
                return rows
        return None

    def _read(self, name: str, mark: int, tries: int = 3) -> tuple[ProcessSample, ...]:
        arguments = self._request.arguments(name, mark)
        try:
            self._queries.calls.call(name, self._queries.handle, *arguments)
        except NothingFound:
            return ()
        except DriverError:
            needed = self._request.count
            if needed <= self._request.rows or tries == 1:  # not INSUFFICIENT_SIZE
                raise
            self._request = ProcessUseRequest(min(2 * needed, MAX_ROWS))
            return self._read(name, mark, tries - 1)
        entries = self._request.entries(name)
        return tuple(sorted(ProcessSample(*entry[:3]) for entry in entries if entry[0] > mark))
