"""NVML's sample rings (nvmlDeviceGetSamples) of about 10 s.

A call returns samples newer than a timestamp of the driver's own clock.
"""

from __future__ import annotations

import ctypes
import struct
import time

from gpu_bottleneck_exporter.driver.nvml.queries import VALUES, Queries
from gpu_bottleneck_exporter.driver.protocol import DriverError, NothingFound
from gpu_bottleneck_exporter.driver.readings import Ring, RingSample

MAX_RING_SAMPLES = 256
"""Samples read at once; drivers have 72 to 120."""

_SAMPLE_FORMATS = {kind: struct.Struct(f"=Q{value}") for kind, value in VALUES.items()}
"""nvmlSample_t (µs, value) by the answer's value type, contrary to nvml.h."""
_SAMPLE_BYTES = 16
SILENCE_BEFORE_PROBE_NS = 3_000_000_000
"""Time without samples after which the clock may be set back."""
_FULL_PERCENT = 100


class RingReader:
    """One ring of one GPU, with its mark."""

    def __init__(self, queries: Queries, kind: int, *, merge_idle: bool = False) -> None:
        """`kind`: NVML sampling type; `merge_idle`: the newest sample alone if all are 0 %."""
        self._queries = queries
        self._key = ("samples", kind)
        self._mark = 0
        self._last_answer_ns = time.monotonic_ns()
        self._type = ctypes.c_uint()
        self._count = ctypes.c_uint()
        self._since = ctypes.c_ulonglong()
        self._buffer = ctypes.create_string_buffer(MAX_RING_SAMPLES * _SAMPLE_BYTES)
        self._arguments = (
            queries.handle,
            ctypes.c_uint(kind),
            self._since,
            ctypes.byref(self._type),
            ctypes.byref(self._count),
            self._buffer,
        )
        self._merge_idle = merge_idle
        self._words = memoryview(self._buffer).cast("B").cast("Q")

    def drain(self) -> Ring | None:
        """New samples, None without such a ring; failures in `last_error`."""
        samples = self._newer_than(self._mark)
        if samples is None:  # after an answer it is a failure, not unsupported
            return () if self._queries.refusals.was_answered(self._key) else None
        now = time.monotonic_ns()
        if not samples and not self._mark:  # no proof of such a ring
            self._queries.refusals.clear(self._key)
        if not samples and self._mark and now - self._last_answer_ns >= SILENCE_BEFORE_PROBE_NS:
            self._last_answer_ns = now
            samples = self._after_clock_step()
        if samples:
            self._last_answer_ns = now
            self._mark = samples[-1].timestamp_us
        return samples

    def _after_clock_step(self) -> Ring:
        """The newest sample if the clock was set back behind the mark."""
        newest = (self._newer_than(0) or ())[-1:]
        return tuple(sample for sample in newest if sample.timestamp_us < self._mark)

    def _newer_than(self, mark: int) -> Ring | None:
        return self._queries.attempt(self._key, lambda: self._read(mark))

    def _read(self, mark: int) -> Ring:
        self._count.value, self._since.value = MAX_RING_SAMPLES, mark
        try:
            self._queries.calls.call("nvmlDeviceGetSamples", *self._arguments)
        except NothingFound:
            return ()
        layout = _SAMPLE_FORMATS.get(self._type.value)
        if layout is None:
            raise DriverError(f"nvmlDeviceGetSamples: values of unknown type {self._type.value}")
        words = self._words[: 2 * self._count.value]
        if self._merge_idle and not any(words[1::2]):
            newest = max(words[::2], default=0)
            return (RingSample(newest, 0),) if newest > mark else ()
        filled = memoryview(self._buffer)[: self._count.value * _SAMPLE_BYTES]
        rows = sorted(row for row in layout.iter_unpack(filled) if row[0] > mark)
        # Drivers return entries above 100 %, such as 808334905.
        return tuple(
            [
                RingSample(at, round(value) if 0 <= value <= _FULL_PERCENT else None)
                for at, value in rows
            ]
        )
