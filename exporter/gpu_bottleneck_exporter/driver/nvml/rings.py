"""Draining NVML's sample rings (nvmlDeviceGetSamples).

The driver keeps about 10 s of utilization samples. Only those newer than a mark are
returned, and the mark must be a timestamp that the driver itself gave.
"""

from __future__ import annotations

import ctypes
import struct
import time

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import driver_error
from gpu_bottleneck_exporter.driver.nvml.parts import Parts
from gpu_bottleneck_exporter.driver.protocol import DriverError
from gpu_bottleneck_exporter.driver.readings import (
    EMPTY_RING,
    UNSUPPORTED_RING,
    Ring,
    RingSample,
    RingState,
)

CAPACITY = 512
"""Samples read at once; drivers were seen to keep 72 to 120."""

_FORMATS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: struct.Struct("=Qd"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: struct.Struct("=QI4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: struct.Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: struct.Struct("=QQ"),
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: struct.Struct("=Qq"),
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: struct.Struct("=Qi4x"),
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: struct.Struct("=QH6x"),
}
_SAMPLE_BYTES = 16
_SILENCE_BEFORE_PROBE_NS = 3_000_000_000
_MARGIN_NS = 2_000_000_000
_FULL_PERCENT = 100


class RingReader:
    """One ring of one GPU, with its own mark."""

    def __init__(self, parts: Parts, handle: object, kind: int) -> None:
        """Read ring `kind` (an NVML sampling type) of the GPU behind `handle`."""
        self._parts = parts
        self._handle = handle
        self._kind = kind
        self._key = ("samples", kind)
        self._mark = 0
        self._last_answer_ns = time.monotonic_ns()
        self._type = ctypes.c_uint()
        self._count = ctypes.c_uint()
        self._buffer = ctypes.create_string_buffer(CAPACITY * _SAMPLE_BYTES)

    def drain(self) -> Ring:
        """The samples newer than the last drain; one that fails is told in the parts' trouble."""
        samples = self._ask(self._mark)
        if samples is None:
            return EMPTY_RING if self._parts.refusals.gave(self._key) else UNSUPPORTED_RING
        if not samples:
            samples = self._after_clock_step()
        if not samples:
            return EMPTY_RING
        possible = self._possible(samples)
        self._last_answer_ns = time.monotonic_ns()
        self._mark = possible[-1].timestamp_us
        return Ring(RingState.SAMPLES, possible, len(samples) - len(possible))

    def _possible(self, samples: tuple[RingSample, ...]) -> tuple[RingSample, ...]:
        """Without those of a time that has not come, unless the clock was set forward for all."""
        if not self._mark:
            return samples
        passed_us = (time.monotonic_ns() - self._last_answer_ns + _MARGIN_NS) // 1000
        latest = self._mark + passed_us
        return tuple(one for one in samples if one.timestamp_us <= latest) or samples

    def _after_clock_step(self) -> tuple[RingSample, ...]:
        """Samples of a clock that was set back: all of them look older than the mark."""
        if not self._mark or time.monotonic_ns() - self._last_answer_ns < _SILENCE_BEFORE_PROBE_NS:
            return ()
        self._last_answer_ns = time.monotonic_ns()
        samples = self._ask(0)
        if not samples or samples[-1].timestamp_us >= self._mark:
            return ()
        return samples[-1:]

    def _ask(self, mark: int) -> tuple[RingSample, ...] | None:
        """Those newer than `mark`, None where the driver does not say."""
        return self._parts.attempt(self._key, lambda: self._read(mark))

    def _read(self, mark: int) -> tuple[RingSample, ...]:
        self._count.value = CAPACITY
        code = self._parts.calls.code(
            "nvmlDeviceGetSamples",
            self._handle,
            ctypes.c_uint(self._kind),
            ctypes.c_ulonglong(mark),
            ctypes.byref(self._type),
            ctypes.byref(self._count),
            self._buffer,
        )
        if code == pynvml.NVML_ERROR_NOT_FOUND:
            return ()
        if code != pynvml.NVML_SUCCESS:
            raise driver_error(code, "nvmlDeviceGetSamples")
        layout = _FORMATS.get(self._type.value)
        if layout is None:
            raise DriverError(f"nvmlDeviceGetSamples: values of unknown type {self._type.value}")
        filled = memoryview(self._buffer)[: self._count.value * _SAMPLE_BYTES]
        rows = sorted(row for row in layout.iter_unpack(filled) if row[0] > mark)
        # Entries above 100 % are seen in the field, such as 808334905.
        return tuple(
            [
                RingSample(at, round(value) if 0 <= value <= _FULL_PERCENT else None)
                for at, value in rows
            ]
        )
