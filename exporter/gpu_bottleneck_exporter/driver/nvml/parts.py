"""Readings asked for part by part, and those that GPUs and MIG instances share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.protocol import (
    AccessLost,
    DeviceLost,
    DriverError,
    DriverUnusable,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import Memory, Process, Processes

T = TypeVar("T")

# Version 2 first: between drivers 530 and 535.98 version 3 filled a longer structure
# than the binding's, and both answer the same.
_PROCESS_LISTS = (
    (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v2,
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
    ),
    (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    ),
    (
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    ),
)


class Parts:
    """Asks for the parts of a reading one by one, so that one broken call costs only its part."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.trouble: str | None = None
        self._refused: set[tuple[object, ...]] = set()

    def ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The answer, or None.

        A call that the GPU does not support is not made again; one that failed is told
        in `trouble`. Raises DeviceLost, AccessLost and DriverUnusable, which concern
        every call.
        """
        key = (function.__name__, *arguments[1:])
        if key in self._refused:
            return None
        return self.attempt(key, lambda: self.calls.ask(function, *arguments))

    def attempt(self, key: tuple[object, ...], read: Callable[[], T]) -> T | None:
        """Like `ask`, for a read that is more than one call; `key` names it."""
        if key in self._refused:
            return None
        try:
            return read()
        except Unsupported:
            self._refused.add(key)
        except (DeviceLost, AccessLost, DriverUnusable):
            raise
        except DriverError as error:
            self.trouble = str(error)
        return None

    def require(self, *parts: object) -> None:
        """Raises when not one of `parts` was read: DriverError, or Unsupported if none exists."""
        if any(part is not None and part != {} for part in parts):
            return
        if self.trouble:
            raise DriverError(self.trouble)
        raise Unsupported("not given by this GPU")


def read_memory(parts: Parts, handle: object) -> Memory:
    """Device memory behind `handle`; raises Unsupported on unified-memory parts."""
    info = parts.ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    if info is not None:
        return Memory(int(info.total), int(info.used), int(info.reserved))
    info = parts.ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    parts.require(info)
    assert info is not None  # noqa: S101 - `require` has just said so
    return Memory(int(info.total), int(info.used))


def read_processes(parts: Parts, handle: object) -> Processes:
    """Processes behind `handle`, each once; raises Unsupported without the permission."""
    lists = [_process_list(parts, handle, *versions) for versions in _PROCESS_LISTS]
    parts.require(*lists)
    compute, graphics, shared = (entries or () for entries in lists)
    computing = {process.pid for process in (*compute, *shared)}
    found: dict[int, int | None] = {}
    for process in (*compute, *graphics, *shared):
        known = found.get(process.pid)
        found[process.pid] = known if process.usedGpuMemory is None else process.usedGpuMemory
    return Processes(tuple(Process(pid, used, pid not in computing) for pid, used in found.items()))


def _process_list(
    parts: Parts, handle: object, *versions: Callable[..., list[Any]]
) -> list[Any] | None:
    answers = (parts.ask(getter, handle) for getter in versions)
    return next((answer for answer in answers if answer is not None), None)
