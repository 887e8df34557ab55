"""NVML's lists of processes, in up to three versions."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pynvml

_LAYOUTS = {
    "_v2": struct.Struct("=I4xQII"),
    "_v3": struct.Struct("=I4xQII"),
    "": struct.Struct("=I4xQ"),
}
"""Entry layout by preferred version: pid, bytes, instance ids.

Drivers 530 to 535.98 write longer entries for version 3; version 1 is for drivers before 450.
"""


class Holder(NamedTuple):
    """A process and its bytes on the GPU, if known."""

    pid: int
    used_bytes: int | None


def _read(name: str, layout: struct.Struct, handle: object) -> list[Holder]:
    """The list of C function `name`. Raises pynvml.NVMLError."""
    # pynvml's lookup has handle and cache, but no public name.
    function = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001
    count, entries = ctypes.c_uint(0), ctypes.create_string_buffer(0)
    code = function(handle, ctypes.byref(count), None)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        count.value = 2 * count.value + 5  # for processes that start meanwhile
        entries = ctypes.create_string_buffer(count.value * layout.size)
        code = function(handle, ctypes.byref(count), entries)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    rows = layout.iter_unpack(memoryview(entries)[: count.value * layout.size])
    unknown = pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
    return [Holder(pid, None if used == unknown else used) for pid, used, *_ in rows]


def _versions(name: str) -> Sequence[Callable[[object], list[Holder]]]:
    versions = [partial(_read, name + suffix, layout) for suffix, layout in _LAYOUTS.items()]
    for version in versions:
        version.__name__ = version.args[0]  # type: ignore[attr-defined]
    return versions


VERSIONED_LISTS = tuple(
    _versions(f"nvmlDeviceGet{kind}RunningProcesses")
    for kind in ("Compute", "Graphics", "MPSCompute")
)
"""Versions of the list of each kind, in this order."""
