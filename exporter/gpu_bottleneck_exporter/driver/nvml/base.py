"""Readings that GPUs and MIG instances share: GPM, memory and processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pynvml

from gpu_bottleneck_exporter.driver.nvml.coherence import C2cLinks, machine_memory
from gpu_bottleneck_exporter.driver.nvml.gpm import GpmReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.queries import Queries, check_basics
from gpu_bottleneck_exporter.driver.protocol import DriverError
from gpu_bottleneck_exporter.driver.readings import Activity, Identity, Memory, Process, Processes

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


class BaseDevice:
    """A GPU or MIG instance, with the readings that both have."""

    def __init__(
        self, calls: Calls, handle: object, identity: Identity, parent: object = None
    ) -> None:
        """`handle`: of the GPU or instance; `parent`: of an instance's whole GPU, else None."""
        self.identity = identity
        self._calls = calls
        self._handle = handle
        self._whole = handle if parent is None else parent
        self._queries = Queries(calls)
        self._gpm: GpmReader | None = None
        self._c2c = C2cLinks(calls, self._whole)
        self._coherent = False

    @property
    def last_error(self) -> DriverError | None:
        """The reason why the last reading is incomplete; None if it is complete."""
        return self._queries.last_error

    def check(self) -> None:
        """Check the whole GPU: see `check_basics`."""
        check_basics(self._calls, self._whole)

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            self._gpm.close()
        self._gpm = None

    def activity(self) -> Activity | None:
        """GPM means since the last reading, 0-1; for an instance, those of its GPU instance."""
        self._begin()
        if self._gpm is None:
            self._gpm = GpmReader(self._calls, self._whole, self.identity.gpu_instance)
        return self._gpm.read(coherent=self._is_coherent())

    def memory(self) -> Memory:
        """Memory in bytes (nvmlDeviceGetMemoryInfo); the machine's if the GPU has none."""
        queries = self._begin()
        info = queries.ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle, pynvml.nvmlMemory_v2)
        if info is not None:
            return Memory(int(info.total), int(info.used), int(info.reserved))
        info = queries.ask(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        if info is None and queries.last_error is None and self._is_coherent():
            return machine_memory()
        queries.require(info)
        assert info is not None  # noqa: S101 - `require` has just said so
        return Memory(int(info.total), int(info.used))

    def processes(self) -> Processes:
        """Compute, graphics and MPS processes, each once. Raises Unsupported without permission."""
        queries = self._begin()
        lists = [_process_list(queries, self._handle, *versions) for versions in _PROCESS_LISTS]
        queries.require(*lists)
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
        refusals = self._queries.refusals
        if not self._coherent and not refusals.stands(_C2C):
            with contextlib.suppress(DriverError):
                self._coherent = self._c2c.read() > 0
            refusals.refused(_C2C)  # few GPUs do: retry now and then
        return self._coherent

    def _begin(self) -> Queries:
        self._queries.last_error = None
        return self._queries


def _process_list(
    queries: Queries, handle: object, *versions: Callable[..., list[Any]]
) -> list[Any] | None:
    answers = (queries.ask(getter, handle) for getter in versions)
    return next((answer for answer in answers if answer is not None), None)
