"""One MIG instance through NVML."""

from __future__ import annotations

from gpu_bottleneck_exporter.driver.nvml.gpm import GpmReader
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.nvml.parts import (
    Parts,
    check_basics,
    read_memory,
    read_processes,
)
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Clocks,
    Health,
    Identity,
    Link,
    Memory,
    Power,
    Processes,
    Thermal,
    Throttle,
    Utilization,
)


class NvmlInstance:
    """A MIG instance: NVML gives it memory, processes and GPM; the rest is its parent's."""

    def __init__(
        self, calls: Calls, handle: object, parent: object, instance: int, identity: Identity
    ) -> None:
        self._calls = calls
        self._handle = handle
        self._parent = parent
        self._instance = instance
        self._identity = identity
        self._parts = Parts(calls)
        self._gpm: GpmReader | None = None

    @property
    def identity(self) -> Identity:
        """Who it is."""
        return self._identity

    @property
    def trouble(self) -> DriverError | None:
        """Why the last reading is incomplete though the GPU should have given all of it."""
        return self._parts.trouble

    def check(self) -> None:
        """See `check_basics`; of the whole GPU."""
        check_basics(self._calls, self._parent)

    def close(self) -> None:
        """Free the GPM samples."""
        if self._gpm:
            self._gpm.close()
        self._gpm = None

    def activity(self) -> Activity | None:
        """GPM means since the last reading, of the whole GPU instance."""
        self._parts.trouble = None
        if self._gpm is None:
            self._gpm = GpmReader(self._calls, self._parent, self._instance)
        return self._gpm.read()

    def memory(self) -> Memory:
        """nvmlDeviceGetMemoryInfo_v2 of the instance."""
        self._parts.trouble = None
        return read_memory(self._parts, self._handle)

    def processes(self) -> Processes:
        """Processes of the instance."""
        self._parts.trouble = None
        return read_processes(self._parts, self._handle)

    def utilization(self) -> Utilization:
        """Raises Unsupported: the driver samples no utilization under MIG."""
        raise Unsupported("the driver samples no utilization under MIG")

    def power(self) -> Power:
        """Raises Unsupported: the parent's."""
        raise Unsupported("power is the whole GPU's")

    def thermal(self) -> Thermal:
        """Raises Unsupported: the parent's."""
        raise Unsupported("temperature is the whole GPU's")

    def clocks(self) -> Clocks:
        """Raises Unsupported: the parent's."""
        raise Unsupported("clocks are the whole GPU's")

    def throttle(self) -> Throttle:
        """Raises Unsupported: the parent's."""
        raise Unsupported("throttling is the whole GPU's")

    def health(self) -> Health:
        """Raises Unsupported: the parent's."""
        raise Unsupported("memory errors are the whole GPU's")

    def link(self) -> Link:
        """Raises Unsupported: the parent's."""
        raise Unsupported("the PCIe link is the whole GPU's")
