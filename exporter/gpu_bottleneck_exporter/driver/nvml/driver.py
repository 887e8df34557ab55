"""NVML, its GPUs and its events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pynvml

from gpu_bottleneck_exporter.driver.nvml.device import NvmlDevice
from gpu_bottleneck_exporter.driver.nvml.events import XidEvents
from gpu_bottleneck_exporter.driver.nvml.instance import NvmlComputeInstance, NvmlInstance
from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.nvml.library import Calls, load
from gpu_bottleneck_exporter.driver.nvml.queries import Queries
from gpu_bottleneck_exporter.driver.nvml.remedies import NVIDIA, remedy
from gpu_bottleneck_exporter.driver.protocol import (
    Device,
    Driver,
    DriverError,
    DriverMissing,
    NothingFound,
    Unsupported,
)
from gpu_bottleneck_exporter.driver.readings import ErrorEvent, Identity, System
from gpu_bottleneck_exporter.generics import T

_ARCHITECTURES = {
    value: name.removeprefix("NVML_DEVICE_ARCH_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and not name.endswith("_UNKNOWN")
}


class NvmlDriver(Driver):
    """NVML, opened once and never shut down.

    A shutdown during a call is a use-after-free; reopening may be a cold start of GPUs.
    """

    name = "nvml"
    about = NVIDIA
    gpus_of_device = staticmethod(gpus_of_device)

    def __init__(self) -> None:
        """Load and initialise the library.

        Raises DriverMissing (also without a GPU), DriverUnusable, DriverError.
        """
        self._metered: dict[int | None, Calls] = {}
        self._handles: dict[int, object] = {}
        calls = self._meter(None)
        load()
        calls.ask(pynvml.nvmlInit)
        cuda = _optional(calls.ask, pynvml.nvmlSystemGetCudaDriverVersion_v2)  # 13000 means 13.0
        self.system = System(
            driver_version=_optional(calls.text, "nvmlSystemGetDriverVersion"),
            cuda_version=cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
        )
        self._count = int(calls.ask(pynvml.nvmlDeviceGetCount))
        if not self._count:
            # Safe before any thread is inside; GPUs are counted at initialisation.
            with contextlib.suppress(DriverError):
                calls.ask(pynvml.nvmlShutdown)
            raise DriverMissing("the driver lists no GPU", remedy("no_gpu"))
        self._events = XidEvents(calls)

    @property
    def calls(self) -> int:
        """Number of driver calls."""
        return sum(calls.count for calls in list(self._metered.values()))

    @property
    def seconds(self) -> float:
        """Time in driver calls."""
        return sum(calls.nanoseconds for calls in list(self._metered.values())) / 1e9

    def count(self) -> int:
        """Number of physical GPUs."""
        return self._count

    def open(self, index: int) -> list[Device]:
        """GPU `index`, then its MIG instances."""
        calls = self._meter(index)
        whole = calls.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        identity = _identify(calls, index, whole)
        # NCCL reads it too (8 on a GB10).
        coherent = bool(Queries(calls, whole).field(pynvml.NVML_FI_DEV_C2C_LINK_COUNT))
        identity = replace(identity, coherent=coherent)
        self._handles[index] = whole
        self._events.forget(index)
        version = self.system.driver_version
        devices: list[Device] = [NvmlDevice(calls, whole, identity, version, coherent=coherent)]
        with contextlib.suppress(DriverError):  # `instances` may list them later
            first: dict[int | None, NvmlInstance] = {}
            for handle in _instance_handles(calls, whole):
                part = _identify_instance(calls, handle, identity)
                if shared := first.get(part.gpu_instance):
                    shared.add_compute_instance(handle)
                    part = replace(part, counted_with=shared.identity.uuid)
                    devices.append(NvmlComputeInstance(part))
                    continue
                device = NvmlInstance(calls, handle, part, whole, coherent=coherent)
                devices.append(first.setdefault(part.gpu_instance, device))
        return devices

    def watch_errors(self, index: int) -> None:
        """Register with nvmlDeviceRegisterEvents, once per event set."""
        self._events.register(index, self._meter(index), self._handles[index])

    def instances(self, index: int) -> tuple[str, ...]:
        """UUIDs of the current MIG instances of GPU `index`."""
        calls = self._meter(index)
        whole = calls.ask(pynvml.nvmlDeviceGetHandleByIndex, index)
        handles = _instance_handles(calls, whole)
        return tuple(calls.text("nvmlDeviceGetUUID", handle) for handle in handles)

    def wait_error(self, timeout_seconds: float) -> ErrorEvent | None:
        """The next XID (nvmlEventSetWait_v2); None after `timeout_seconds`."""
        return self._events.wait(timeout_seconds)

    def _meter(self, index: int | None) -> Calls:
        # One per GPU, so per thread: no lock for counts.
        return self._metered.setdefault(index, Calls())


def _identify(calls: Calls, index: int, handle: object) -> Identity:
    queries = Queries(calls, handle)
    pci = queries.ask(pynvml.nvmlDeviceGetPciInfo)
    return Identity(
        index=index,
        uuid=calls.text("nvmlDeviceGetUUID", handle),
        name=_optional(calls.text, "nvmlDeviceGetName", handle),
        architecture=_ARCHITECTURES.get(queries.ask(pynvml.nvmlDeviceGetArchitecture)),
        pci_bus_id=pci and pci.busId,
        minor=queries.ask(pynvml.nvmlDeviceGetMinorNumber),
    )


def _identify_instance(calls: Calls, handle: object, whole: Identity) -> Identity:
    name = _optional(calls.text, "nvmlDeviceGetName", handle)
    return replace(
        whole,
        uuid=calls.text("nvmlDeviceGetUUID", handle),
        name=name,
        mig_profile=name.rpartition("MIG ")[2] if name and "MIG " in name else None,
        parent_uuid=whole.uuid,
        gpu_instance=int(calls.ask(pynvml.nvmlDeviceGetGpuInstanceId, handle)),
    )


def _instance_handles(calls: Calls, whole: object) -> list[object]:
    """Handles of MIG instances, in the driver's order."""
    try:
        if not calls.ask(pynvml.nvmlDeviceGetMigMode, whole)[0]:
            return []
    except Unsupported:
        return []
    handles: list[object] = []
    for position in range(int(calls.ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, whole))):
        with contextlib.suppress(NothingFound, Unsupported):  # no instance at this position
            handles.append(calls.ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, whole, position))
    return handles


def _optional(ask: Callable[..., T], *arguments: object) -> T | None:
    with contextlib.suppress(DriverError):
        return ask(*arguments)
    return None
