"""Opening NVML, its GPUs and its events."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml import kubernetes
from gpu_bottleneck_exporter.driver.nvml.device import NvmlDevice
from gpu_bottleneck_exporter.driver.nvml.events import XidEvents
from gpu_bottleneck_exporter.driver.nvml.instance import NvmlInstance
from gpu_bottleneck_exporter.driver.nvml.library import Calls, load
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA, OF_OTHER_ERRORS, remedy
from gpu_bottleneck_exporter.driver.protocol import (
    Device,
    DriverError,
    DriverMissing,
    NothingFound,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, Identity, System

_ARCHITECTURES = {
    value: name.removeprefix("NVML_DEVICE_ARCH_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and not name.endswith("_UNKNOWN")
}
T = TypeVar("T")


class NvmlDriver:
    """NVML, opened once and never shut down.

    A shutdown while a thread is inside a call is a use-after-free in the library, and reopening it
    costs a cold start of every GPU without persistence mode.
    """

    name = "nvml"
    about = NVIDIA

    def __init__(self) -> None:
        """Load and initialise the library.

        Raises DriverMissing (also if the driver has no GPU yet), DriverUnusable, or another
        DriverError.
        """
        self._metered: dict[int | None, Calls] = {}
        self._lock = threading.Lock()
        calls = self._meter(None)
        load()
        _ask_required(calls, pynvml.nvmlInit)
        self._system = System(
            driver_version=_optional(lambda: calls.text("nvmlSystemGetDriverVersion")),
            cuda_version=_cuda_version(calls),
        )
        self._count = int(_ask_required(calls, pynvml.nvmlDeviceGetCount))
        if not self._count:
            # Safe, as no thread is inside yet; and the driver counts GPUs at initialisation only.
            with contextlib.suppress(DriverError):
                calls.ask(pynvml.nvmlShutdown)
            raise DriverMissing("the driver lists no GPU", remedy("no_gpu"))
        self._events = XidEvents(calls)
        self._handles: dict[int, object] = {}
        self._mig_modes: dict[int, bool] = {}

    @property
    def system(self) -> System:
        """Versions of driver and CUDA."""
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
        self._handles[index] = handle
        self._events.forget(index)
        devices: list[Device] = [NvmlDevice(calls, handle, identity, self._system.driver_version)]
        if self._in_mig_mode(calls, index, handle):
            devices += _instances(calls, handle, identity)
        return devices

    def watch_errors(self, index: int) -> None:
        """Register with nvmlDeviceRegisterEvents, once for each new event set."""
        self._events.register(index, self._meter(index), self._handles[index])

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the MIG instances that GPU `index` has now."""
        calls = self._meter(index)
        handle = calls.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        if not self._in_mig_mode(calls, index, handle):
            return ()
        return tuple(
            calls.text("nvmlDeviceGetUUID", instance)
            for instance in _instance_handles(calls, handle)
        )

    def wait_error(self, timeout_seconds: float) -> ErrorEvent | None:
        """The next XID (nvmlEventSetWait_v2); None after `timeout_seconds`."""
        return self._events.wait(timeout_seconds)

    def gpus_of_device(self, source: str, device: str, gpus: Sequence[Identity]) -> list[Identity]:
        """Those of `gpus` that the kubelet may mean by `device`."""
        return kubernetes.gpus_of_device(source, device, gpus)

    @staticmethod
    def _identify(calls: Calls, index: int, handle: object) -> Identity:
        return Identity(
            index=index,
            uuid=calls.text("nvmlDeviceGetUUID", handle),
            name=_optional(lambda: calls.text("nvmlDeviceGetName", handle)),
            architecture=_optional(lambda: _architecture(calls, handle)),
            pci_bus_id=_optional(lambda: _pci_bus_id(calls, handle)),
            minor=_optional(lambda: int(calls.ask(pynvml.nvmlDeviceGetMinorNumber, handle))),
        )

    def _in_mig_mode(self, calls: Calls, index: int, handle: object) -> bool:
        """Whether GPU `index` is in MIG mode; the last known answer if the call fails."""
        try:
            self._mig_modes[index] = bool(calls.ask(pynvml.nvmlDeviceGetMigMode, handle)[0])
        except Unsupported:
            self._mig_modes[index] = False
        except DriverError:
            return self._mig_modes.get(index, False)
        return self._mig_modes[index]

    def _meter(self, index: int | None) -> Calls:
        # One per GPU, hence per thread: counting then needs no lock.
        with self._lock:
            return self._metered.setdefault(index, Calls())


def _ask_required(calls: Calls, function: Callable[[], T]) -> T:
    """The answer to a call without which there is no GPU at all; all its errors have a remedy."""
    try:
        return calls.ask(function)
    except DriverError as error:
        error.remedy = error.remedy or OF_OTHER_ERRORS
        raise


def _instances(calls: Calls, parent: object, above: Identity) -> list[Device]:
    """The MIG instances of the GPU behind `parent`, in the driver's order."""
    found: list[Device] = []
    for handle in _instance_handles(calls, parent):
        name = _optional(partial(calls.text, "nvmlDeviceGetName", handle))
        identity = replace(
            above,
            uuid=calls.text("nvmlDeviceGetUUID", handle),
            name=name,
            mig_profile=name.rpartition("MIG ")[2] if name and "MIG " in name else None,
            parent_uuid=above.uuid,
            gpu_instance=int(calls.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)),
        )
        found.append(NvmlInstance(calls, handle, identity, parent))
    return found


def _instance_handles(calls: Calls, parent: object) -> list[object]:
    handles: list[object] = []
    for position in range(int(calls.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, parent))):
        with contextlib.suppress(NothingFound, Unsupported):  # no instance at this position
            handles.append(calls.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, position))
    return handles


def _optional(ask: Callable[[], T]) -> T | None:
    """The result of `ask`, tried twice, as it is never read again later; None if both fail."""
    with contextlib.suppress(DriverError):
        return ask()
    with contextlib.suppress(DriverError):
        return ask()
    return None


def _architecture(calls: Calls, handle: object) -> str | None:
    return _ARCHITECTURES.get(int(calls.ask(pynvml.nvmlDeviceGetArchitecture, handle)))


def _pci_bus_id(calls: Calls, handle: object) -> str:
    bus_id = calls.ask(pynvml.nvmlDeviceGetPciInfo, handle).busId
    return bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else str(bus_id)


def _cuda_version(calls: Calls) -> str | None:
    """The highest CUDA version that the driver supports; 13000 means 13.0."""
    version = _optional(lambda: int(calls.ask(pynvml.nvmlSystemGetCudaDriverVersion_v2)))
    return f"{version // 1000}.{version % 1000 // 10}" if version else None
