"""Reading NVML field values (nvmlDeviceGetFieldValues) into a reused array.

Only ids 199, 200 and 251-273 ever changed their meaning between driver branches (nvml.h from CUDA
11.5 to 13.3); choose those by driver version.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, driver_error

MEMORY_TEMPERATURE = 82
C2C_LINKS = 170
"""Number of NVLink-C2C links; NCCL reads it too (8 on a GB10)."""
POWER_AVERAGE = 185
"""Mean power over a second; Turing and GA100 do not have it."""
TEMPERATURE_LIMIT_SHUTDOWN = 193
TEMPERATURE_LIMIT_SLOWDOWN = 194
TEMPERATURE_LIMIT_GPU_MAX = 196

_LAYOUT = struct.Struct("=IIqqII8s")
"""nvmlFieldValue_t: field id, scope id, timestamp, latency, value type, return code, value."""
_UNTOUCHED = 998
"""Not an NVML code: marks entries that the driver did not fill in, as it does with ECC off."""

VALUES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "d",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "I4x",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "Q",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "Q",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "q",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "i4x",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "H6x",
}
"""Format of nvmlValue_t, a union of eight bytes, by value type."""
_FORMATS = {kind: struct.Struct(f"={value}") for kind, value in VALUES.items()}


class FieldReader:
    """A fixed set of field ids of one GPU."""

    def __init__(self, calls: Calls, handle: object, ids: Sequence[int]) -> None:
        self._calls = calls
        self._handle = handle
        self._count = ctypes.c_int32(len(ids))
        # NVML may touch one entry past the requested count.
        entries = [_LAYOUT.pack(i, 0, 0, 0, 0, _UNTOUCHED, bytes(8)) for i in (*ids, 0)]
        self._template = b"".join(entries)
        self._buffer = ctypes.create_string_buffer(len(self._template))

    def read(self) -> dict[int, float]:
        """Value by field id, without fields that this GPU does not have.

        Raises Unsupported if the library has no field values, DeviceLost or DriverError.
        """
        self._buffer.raw = self._template
        code = self._calls.code("nvmlDeviceGetFieldValues", self._handle, self._count, self._buffer)
        if code != pynvml.NVML_SUCCESS:
            raise driver_error(code, "nvmlDeviceGetFieldValues")
        values: dict[int, float] = {}
        rows = memoryview(self._buffer)[: self._count.value * _LAYOUT.size]
        for field, _, _, _, kind, result, raw in _LAYOUT.iter_unpack(rows):
            if result == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise driver_error(result, "nvmlDeviceGetFieldValues")
            if result == pynvml.NVML_SUCCESS and kind in _FORMATS:
                values[field] = _FORMATS[kind].unpack(raw)[0]
        return values
