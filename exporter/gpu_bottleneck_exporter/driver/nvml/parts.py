"""Readings asked for part by part, and those that GPUs and MIG instances share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.protocol import CONCERNS_ALL, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import Memory, Process, Processes
from gpu_bottleneck_exporter.driver.refusals import Refusals

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
        self.trouble: DriverError | None = None
        """Of the calls that failed, one that concerns all if there is one, else the last."""
        self.refusals = Refusals()

    def ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The answer, or None.

        A call that the GPU does not support is hardly ever made again; one that failed, or
        that worked before, is told in `trouble`.
        """
        key = (function.__name__, *arguments[1:])
        return self.attempt(key, lambda: self.calls.ask(function, *arguments))

    def attempt(self, key: tuple[object, ...], read: Callable[[], T]) -> T | None:
        """Like `ask`, for a read that is more than one call; `key` names it."""
        if self.refusals.stands(key):
            return None
        try:
            answer = read()
        except Unsupported as error:
            if self.refusals.refused(key):
                self.note(error)
            return None
        except DriverError as error:
            self.note(error)
            return None
        self.refusals.given(key)
        return answer

    def note(self, error: DriverError) -> None:
        """Remember that something failed."""
        if not isinstance(self.trouble, CONCERNS_ALL):
            self.trouble = error

    def require(self, *parts: object) -> None:
        """Raises when not one of `parts` was read: what failed, or Unsupported if none exists."""
        if any(part is not None and part != {} for part in parts):
            return
        trouble = self.trouble
        if isinstance(trouble, Unsupported):  # given before
            raise DriverError(str(trouble)) from trouble
        raise trouble or Unsupported("not given by this GPU")


_BASICS: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
    (pynvml.nvmlDeviceGetMemoryInfo, ()),
    (pynvml.nvmlDeviceGetTemperature, (pynvml.NVML_TEMPERATURE_GPU,)),
    (pynvml.nvmlDeviceGetPowerUsage, ()),
    (pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,)),
    (pynvml.nvmlDeviceGetUtilizationRates, ()),
)
"""What nearly every GPU gives, and the library does not know by itself."""


def check_basics(calls: Calls, handle: object) -> None:
    """Raises what all of `_BASICS` answer, if that concerns the whole GPU behind `handle`."""
    found = [_failure(calls, handle, *basic) for basic in _BASICS]
    told = [error for error in found if not isinstance(error, Unsupported)]
    worst = [error for error in told if isinstance(error, CONCERNS_ALL)]
    if worst and len(worst) == len(told):
        raise worst[0]


def _failure(
    calls: Calls, handle: object, function: Callable[..., object], arguments: tuple[object, ...]
) -> DriverError | None:
    try:
        calls.ask(function, handle, *arguments)
    except DriverError as error:
        return error
    return None


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
