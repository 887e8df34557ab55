"""Reading part by part, and the readings that GPUs and MIG instances share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml.coherence import C2cLinks, machine_memory
from gpu_bottleneck_exporter.driver.nvml.gpm import GpmReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.protocol import CONCERNS_ALL, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import Activity, Identity, Memory, Process, Processes
from gpu_bottleneck_exporter.driver.refusals import Refusals

T = TypeVar("T")
_C2C = "NVLink-C2C"

# Version 2 first: both return the same, but from driver 530 to 535.98 version 3 wrote a longer
# structure than the binding's.
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
    """Reads the parts of a reading one by one, so that a failing call costs only its own part."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.trouble: DriverError | None = None
        """Of the failures, the first that concerns the whole GPU, else the last one."""
        self.refusals = Refusals()

    def ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The answer, or None.

        A call that the GPU does not support is retried only rarely. A failure, or a refusal of
        what worked before, is kept in `trouble`.
        """
        key = (function.__name__, *arguments[1:])
        return self.attempt(key, lambda: self.calls.ask(function, *arguments))

    def attempt(self, key: tuple[object, ...], read: Callable[[], T]) -> T | None:
        """Like `ask`, for a read of several calls, which `key` identifies."""
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
        """Keep a failure, unless a more serious one is kept."""
        if not isinstance(self.trouble, CONCERNS_ALL):
            self.trouble = error

    def require(self, *parts: object) -> None:
        """Raise if none of `parts` was read: the failure, or Unsupported if there was none."""
        if any(part is not None and part != {} for part in parts):
            return
        trouble = self.trouble
        if isinstance(trouble, Unsupported):  # kept only if it was answered before: a failure
            raise DriverError(str(trouble)) from trouble
        raise trouble or Unsupported("not provided by this GPU")


_BASICS: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
    (pynvml.nvmlDeviceGetMemoryInfo, ()),
    (pynvml.nvmlDeviceGetTemperature, (pynvml.NVML_TEMPERATURE_GPU,)),
    (pynvml.nvmlDeviceGetPowerUsage, ()),
    (pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,)),
    (pynvml.nvmlDeviceGetUtilizationRates, ()),
)
"""Calls that nearly every GPU answers, and that the library cannot answer without the GPU."""


def check_basics(calls: Calls, handle: object) -> None:
    """Raise the error of the GPU behind `handle` if all of `_BASICS` fail with `CONCERNS_ALL`."""
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


class Common:
    """What a GPU and a MIG instance have in common."""

    def __init__(
        self, calls: Calls, handle: object, identity: Identity, parent: object = None
    ) -> None:
        """`handle`: of the GPU or instance; `parent`: of an instance's whole GPU, else None."""
        self.identity = identity
        self._calls = calls
        self._handle = handle
        self._whole = handle if parent is None else parent
        self._parts = Parts(calls)
        self._gpm: GpmReader | None = None
        self._c2c = C2cLinks(calls, self._whole)
        self._coherent = False

    @property
    def trouble(self) -> DriverError | None:
        """Why the last reading is incomplete, if the GPU should have returned all of it."""
        return self._parts.trouble

    def check(self) -> None:
        """See `check_basics`; checks the whole GPU."""
        check_basics(self._calls, self._whole)

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            self._gpm.close()
        self._gpm = None

    def activity(self) -> Activity | None:
        """GPM means since the last reading; for an instance, those of its GPU instance."""
        self._begin()
        if self._gpm is None:
            self._gpm = GpmReader(self._calls, self._whole, self.identity.gpu_instance)
        return self._gpm.read(coherent=self._is_coherent())

    def memory(self) -> Memory:
        """Memory from nvmlDeviceGetMemoryInfo, or the machine's if the GPU has none of its own."""
        parts = self._begin()
        info = parts.ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle, pynvml.nvmlMemory_v2)
        if info is not None:
            return Memory(int(info.total), int(info.used), int(info.reserved))
        info = parts.ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        if info is None and parts.trouble is None and self._is_coherent():
            return machine_memory()
        parts.require(info)
        assert info is not None  # noqa: S101 - `require` has just said so
        return Memory(int(info.total), int(info.used))

    def processes(self) -> Processes:
        """Compute, graphics and MPS processes, each once. Raises Unsupported without permission."""
        parts = self._begin()
        lists = [_process_list(parts, self._handle, *versions) for versions in _PROCESS_LISTS]
        parts.require(*lists)
        compute, graphics, shared = (entries or () for entries in lists)
        computing = {process.pid for process in (*compute, *shared)}
        found: dict[int, int | None] = {}
        for process in (*compute, *graphics, *shared):
            known = found.get(process.pid)
            found[process.pid] = known if process.usedGpuMemory is None else process.usedGpuMemory
        return Processes(
            tuple(Process(pid, used, pid not in computing) for pid, used in found.items())
        )

    def _is_coherent(self) -> bool:
        """Whether it hangs on NVLink-C2C. No reading fails because this is not known."""
        refusals = self._parts.refusals
        if not self._coherent and not refusals.stands(_C2C):
            with contextlib.suppress(DriverError):
                self._coherent = self._c2c.read() > 0
            refusals.refused(_C2C)  # few GPUs do: retry now and then
        return self._coherent

    def _begin(self) -> Parts:
        self._parts.trouble = None
        return self._parts


def _process_list(
    parts: Parts, handle: object, *versions: Callable[..., list[Any]]
) -> list[Any] | None:
    answers = (parts.ask(getter, handle) for getter in versions)
    return next((answer for answer in answers if answer is not None), None)
