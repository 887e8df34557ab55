"""One MIG instance through NVML, also the base of a whole GPU."""

from __future__ import annotations

import os
from collections.abc import Callable

import pynvml

from gpu_bottleneck_exporter.driver.nvml.gpm import GpmReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.processes import VERSIONED_LISTS
from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.protocol import (
    GPU_WIDE_ERRORS,
    AccessLost,
    Device,
    DeviceLost,
    DriverError,
    DriverMissing,
    Forbidden,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import (
    Identity,
    Memory,
    Process,
    Processes,
    UnitActivity,
)

_BASICS = (
    (pynvml.nvmlDeviceGetMemoryInfo,),
    (pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    (pynvml.nvmlDeviceGetPowerUsage,),
    (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
    (pynvml.nvmlDeviceGetUtilizationRates,),
)
"""Calls of nearly every GPU that take its response."""

PLACEHOLDER = (1, 1)
"""Generation and width of a GPU that is not on PCIe."""


class NvmlInstance(Device):
    """A MIG instance: memory, processes and GPM."""

    def __init__(
        self, calls: Calls, handle: object, identity: Identity, whole: object, *, coherent: bool
    ) -> None:
        """`whole`: handle of its GPU; `coherent`: whether it has NVLink-C2C.

        NVML describes GPUs that share memory with the CPU (GB10, GH200, GB200) as on PCIe.
        """
        self.identity = identity
        self._calls = calls
        self._queries = Queries(calls, handle)
        self._further: list[Queries] = []
        """Queries of compute instances with the same memory and SMs."""
        self._whole = whole
        self._coherent = coherent
        self._integrated = False
        self._gpm: GpmReader | None = None

    def add_compute_instance(self, handle: object) -> None:
        """Include processes of another MIG device of its GPU instance."""
        self._further.append(Queries(self._calls, handle))

    @property
    def last_error(self) -> DriverError | None:
        """The reason why the last reading is incomplete, if it is."""
        return self._queries.last_error

    def check(self) -> None:
        """Raise the GPU's error if all `_BASICS` fail, Unsupported without any."""
        failures: list[DriverError] = []
        for basic in _BASICS:
            failure = self._failure(*basic)
            if failure is None:
                return
            failures.append(failure)
        worst = min(failures, key=_rank)
        if isinstance(worst, GPU_WIDE_ERRORS) or type(worst) is Unsupported:
            raise worst
        # A library initialised under another driver stays unusable.
        kind = AccessLost if isinstance(worst, DriverMissing) else DeviceLost
        raise kind(str(worst), worst.remedy) from worst

    def _failure(self, function: Callable[..., object], *arguments: object) -> DriverError | None:
        """Error of a call about the whole GPU."""
        try:
            self._calls.ask(function, self._whole, *arguments)
        except DriverError as error:
            return error
        return None

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            self._gpm.close()
        self._gpm = None

    def activity(self) -> UnitActivity | None:
        """GPM means since the last reading, 0-1."""
        self._queries.begin()
        if self._gpm is None:
            self._gpm = GpmReader(self._calls, self._whole, self.identity.gpu_instance)
        return self._gpm.read(coherent=self._coherent)

    def memory(self) -> Memory:
        """Memory in bytes (nvmlDeviceGetMemoryInfo); the machine's if the GPU has none."""
        queries = self._queries.begin()
        for version in ((pynvml.nvmlMemory_v2,), ()):  # the latter has no `reserved`
            info = queries.ask(pynvml.nvmlDeviceGetMemoryInfo, *version)
            if info is not None:
                return Memory(int(info.total), int(info.used), getattr(info, "reserved", None))
        if queries.last_error or not (self._coherent or self._is_integrated()):
            queries.fail()
        # `MemTotal` of /proc/meminfo, through sysinfo(2).
        return Memory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), of_machine=True)

    def _is_integrated(self) -> bool:
        """Whether the GPU uses the machine's memory and is not on PCIe (Thor, Orin, GB10).

        Not every driver counts C2C links. A refused link may come back, so memory must be refused
        for longer.
        """
        if not self._integrated and self._lacks_memory():
            link = self._pcie_link()
            refused = self._queries.refusals.stands((pynvml.nvmlDeviceGetMemoryInfo.__name__,))
            self._integrated = link == PLACEHOLDER or (link == (None, None) and refused)
        return self._integrated

    def _pcie_link(self) -> tuple[int | None, int | None]:
        queries = Queries(self._calls, self._whole)
        generation = queries.ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration)
        return generation, queries.ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth)

    def _lacks_memory(self) -> bool:
        try:
            self._calls.ask(pynvml.nvmlDeviceGetMemoryInfo, self._whole)
        except DriverError as error:
            return isinstance(error, Unsupported) and not isinstance(error, Forbidden)
        return False

    def processes(self) -> Processes:
        """Compute, graphics and MPS processes, each once. Raises Unsupported."""
        queries = self._queries.begin()
        lists = [queries.ask_version(versions) for versions in VERSIONED_LISTS]
        queries.require(*lists)
        hidden = False
        for further in self._further:
            more = [further.begin().ask_version(versions) for versions in VERSIONED_LISTS]
            hidden |= all(entries is None for entries in more)
            lists = [[*(a or ()), *(b or ())] for a, b in zip(lists, more, strict=True)]
        compute, graphics, shared = (entries or () for entries in lists)
        computing = {process.pid for process in (*compute, *shared)}
        found: dict[int, int | None] = {}
        for process in (*compute, *graphics, *shared):
            if process.used_bytes is not None or process.pid not in found:
                found[process.pid] = process.used_bytes
        listed = (Process(pid, used, pid not in computing) for pid, used in found.items())
        return Processes(tuple(listed), others_hidden=hidden)


class NvmlComputeInstance(Device):
    """A further MIG device of a GPU instance, without readings."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity


def _rank(error: DriverError) -> int:
    """Severity of `error` among those of `_BASICS`, lowest first."""
    if isinstance(error, GPU_WIDE_ERRORS):
        return 0
    return 2 if type(error) is Unsupported else 1
