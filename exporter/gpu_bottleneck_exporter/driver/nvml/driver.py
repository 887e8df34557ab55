"""Opening NVML, its GPUs and its events."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import Any

import pynvml

from gpu_bottleneck_exporter.driver.nvml.device import NvmlDevice
from gpu_bottleneck_exporter.driver.nvml.instance import NvmlInstance
from gpu_bottleneck_exporter.driver.nvml.library import Calls, load
from gpu_bottleneck_exporter.driver.protocol import Device, DriverError, NothingFound, Unsupported
from gpu_bottleneck_exporter.driver.readings import Identity, System, Xid

_ARCHITECTURES = {
    value: name.removeprefix("NVML_DEVICE_ARCH_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and not name.endswith("_UNKNOWN")
}
_XID = pynvml.nvmlEventTypeXidCriticalError


class NvmlDriver:
    """NVML, opened once and never shut down.

    Shutting down while a thread is still inside a call is a use after free in the
    library, and reopening it costs a cold start of every GPU without persistence.
    """

    name = "nvml"

    def __init__(self) -> None:
        """Load and initialise the library.

        Raises DriverMissing, DriverUnusable, or another DriverError.
        """
        self._metered: dict[int | None, Calls] = {}
        self._lock = threading.Lock()
        calls = self._meter(None)
        load()
        calls.ask(pynvml.nvmlInit)
        self._system = System(
            driver_version=_text(calls, pynvml.nvmlSystemGetDriverVersion),
            cuda_version=_cuda_version(calls),
        )
        self._count = int(calls.ask(pynvml.nvmlDeviceGetCount))
        self._events = self._open_events(calls)
        self._handles: dict[int, int] = {}

    @property
    def system(self) -> System:
        """Versions."""
        return self._system

    @property
    def calls(self) -> int:
        """Calls made into the driver so far."""
        return sum(calls.count for calls in list(self._metered.values()))

    @property
    def seconds(self) -> float:
        """Seconds spent inside driver calls so far."""
        return sum(calls.nanoseconds for calls in list(self._metered.values())) / 1e9

    def count(self) -> int:
        """Number of physical GPUs."""
        return self._count

    def open(self, index: int) -> list[Device]:
        """GPU `index` and, after it, its MIG instances."""
        calls = self._meter(index)
        handle = calls.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        identity = self._identify(calls, index, handle)
        self._watch(calls, index, handle)
        devices: list[Device] = [NvmlDevice(calls, handle, identity, self._system.driver_version)]
        if _mig_enabled(calls, handle):
            devices += _instances(calls, handle, identity)
        return devices

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the MIG instances that GPU `index` has now."""
        calls = self._meter(index)
        handle = calls.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if not _mig_enabled(calls, handle):
            return ()
        return tuple(
            str(calls.ask(pynvml.nvmlDeviceGetUUID, instance))
            for instance in _instance_handles(calls, handle)
        )

    def wait_xid(self, timeout_seconds: float) -> Xid | None:
        """nvmlEventSetWait_v2."""
        if self._events is None:
            raise Unsupported("this driver has no events")
        try:
            # Not metered: the time spent here is waiting, not work.
            data = pynvml.nvmlEventSetWait_v2(self._events, int(timeout_seconds * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise DriverError(f"nvmlEventSetWait_v2: {error}") from error
        with self._lock:
            index = self._handles.get(_address(data.device))
        if index is None or data.eventType != _XID:
            return None
        return Xid(index, int(data.eventData))

    def _identify(self, calls: Calls, index: int, handle: object) -> Identity:
        uuid = str(calls.ask(pynvml.nvmlDeviceGetUUID, handle))
        return Identity(
            index=index,
            uuid=uuid,
            name=_text(calls, pynvml.nvmlDeviceGetName, handle),
            architecture=_architecture(calls, handle),
            pci_bus_id=_pci_bus_id(calls, handle),
        )

    def _watch(self, calls: Calls, index: int, handle: object) -> None:
        with self._lock:
            self._handles[_address(handle)] = index
        if self._events is None:
            return
        try:
            supported = calls.ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
            if supported & _XID:
                calls.ask(pynvml.nvmlDeviceRegisterEvents, handle, _XID, self._events)
        except Unsupported:
            return

    def _meter(self, index: int | None) -> Calls:
        with self._lock:
            return self._metered.setdefault(index, Calls())

    @staticmethod
    def _open_events(calls: Calls) -> object | None:
        try:
            events: object = calls.ask(pynvml.nvmlEventSetCreate)
        except DriverError:
            return None
        return events


def _instances(calls: Calls, parent: object, above: Identity) -> list[Device]:
    """The MIG instances of the GPU behind `parent`, in the driver's order."""
    found: list[Device] = []
    for handle in _instance_handles(calls, parent):
        name = _text(calls, pynvml.nvmlDeviceGetName, handle)
        instance = int(calls.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle))
        identity = Identity(
            index=above.index,
            uuid=str(calls.ask(pynvml.nvmlDeviceGetUUID, handle)),
            name=name,
            architecture=above.architecture,
            pci_bus_id=above.pci_bus_id,
            mig_profile=name.rpartition("MIG ")[2] if name and "MIG " in name else None,
            parent_uuid=above.uuid,
            gpu_instance=instance,
        )
        found.append(NvmlInstance(calls, handle, parent, instance, identity))
    return found


def _instance_handles(calls: Calls, parent: object) -> list[object]:
    handles: list[object] = []
    for position in range(int(calls.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent))):
        with contextlib.suppress(NothingFound, Unsupported):  # no instance in this place
            handles.append(calls.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, position))
    return handles


def _mig_enabled(calls: Calls, handle: object) -> bool:
    try:
        current, _ = calls.ask(pynvml.nvmlDeviceGetMigMode, handle)
    except Unsupported:
        return False
    return bool(current)


def _text(calls: Calls, getter: Callable[..., Any], *arguments: object) -> str | None:
    try:
        return str(calls.ask(getter, *arguments))
    except Unsupported:
        return None


def _architecture(calls: Calls, handle: object) -> str | None:
    try:
        return _ARCHITECTURES.get(int(calls.ask(pynvml.nvmlDeviceGetArchitecture, handle)))
    except Unsupported:
        return None


def _pci_bus_id(calls: Calls, handle: object) -> str | None:
    try:
        bus_id = calls.ask(pynvml.nvmlDeviceGetPciInfo, handle).busId
    except Unsupported:
        return None
    return bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)


def _cuda_version(calls: Calls) -> str | None:
    """Highest CUDA version of the driver: 13000 means 13.0."""
    try:
        version = int(calls.ask(pynvml.nvmlSystemGetCudaDriverVersion_v2))
    except DriverError:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
