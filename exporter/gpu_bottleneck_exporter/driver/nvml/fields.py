"""Reading NVML field values (nvmlDeviceGetFieldValues).

Only ids 199, 200 and 251-273 ever changed their meaning between driver branches (nvml.h from CUDA
11.5 to 13.3); choose those by driver version.
"""

from __future__ import annotations

import ctypes
import struct
from functools import cache

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, driver_error
from gpu_bottleneck_exporter.driver.protocol import Unsupported

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


def read_fields(calls: Calls, handle: object, ids: tuple[int, ...]) -> dict[int, float]:
    """Value by field id, without fields that this GPU does not have.

    Raises Unsupported if it has none of them, DeviceLost or DriverError.
    """
    buffer = ctypes.create_string_buffer(_unanswered(ids))
    calls.call("nvmlDeviceGetFieldValues", handle, ctypes.c_int32(len(ids)), buffer)
    values: dict[int, float] = {}
    rows = memoryview(buffer)[: len(ids) * _LAYOUT.size]
    for field, _, _, _, kind, result, raw in _LAYOUT.iter_unpack(rows):
        if result == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise driver_error(result, "nvmlDeviceGetFieldValues")
        if result == pynvml.NVML_SUCCESS and kind in _FORMATS:
            values[field] = _FORMATS[kind].unpack(raw)[0]
    if not values:
        raise Unsupported("no such field values")
    return values


@cache
def _unanswered(ids: tuple[int, ...]) -> bytes:
    # NVML may touch one entry past the requested count.
    return b"".join(_LAYOUT.pack(i, 0, 0, 0, 0, _UNTOUCHED, bytes(8)) for i in (*ids, 0))
