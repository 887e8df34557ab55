"""XIDs through NVML's event sets.

One thread waits for all GPUs. Each GPU is registered by the thread that reads it, as any call may
hang with its GPU. If a set fails (as after a GPU reset), a new one replaces it, and every GPU
registers again.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, address, driver_error
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import ErrorEvent

_XID = pynvml.nvmlEventTypeXidCriticalError


@dataclass(slots=True)
class _Set:
    handle: object
    registered: set[int] = field(default_factory=set)
    users: int = 0
    """Threads that are registering a GPU with it: it must not be freed meanwhile."""


class XidEvents:
    """The XIDs of all registered GPUs."""

    def __init__(self, calls: Calls) -> None:
        """`calls`: those of the waiting thread."""
        self._calls = calls
        self._lock = threading.Lock()
        self._gpus: dict[int, int] = {}
        """Index by the address of its handle."""
        # Created now if possible: events are lost until a GPU is registered, when it is opened.
        self._set: _Set | None = None
        with contextlib.suppress(DriverError):
            self._set = self._new_set()

    def register(self, index: int, calls: Calls, handle: object) -> None:
        """Register GPU `index` behind `handle`, unless it is; called by the GPU's own thread.

        Raises DriverError if a GPU that has XIDs cannot be registered; its readings go on.
        """
        with self._lock:
            chosen = self._set
            if chosen is None or index in chosen.registered:
                return
            self._gpus[address(handle)] = index
            chosen.users += 1
        try:
            if _has_xids(calls, handle):
                calls.ask(pynvml.nvmlDeviceRegisterEvents, handle, _XID, chosen.handle)
            chosen.registered.add(index)
        finally:
            with self._lock:
                chosen.users -= 1

    def forget(self, index: int) -> None:
        """Forget that GPU `index` is registered: reopening it may have undone that."""
        with self._lock:
            if self._set:
                self._set.registered.discard(index)

    def wait(self, timeout_seconds: float) -> ErrorEvent | None:
        """The next XID (nvmlEventSetWait_v2); None after `timeout_seconds` without one.

        Raises Unsupported if the driver has no events, or another DriverError.
        """
        chosen = self._set = self._set or self._new_set()
        try:
            # Not metered: the time spent here is waiting, not work.
            data = pynvml.nvmlEventSetWait_v2(chosen.handle, int(timeout_seconds * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            self._give_up(chosen)
            raise driver_error(error.value, "nvmlEventSetWait_v2") from error
        index = self._gpus.get(address(data.device))
        if index is None or data.eventType != _XID:
            return None
        return ErrorEvent(index, int(data.eventData))

    def _new_set(self) -> _Set:
        return _Set(self._calls.ask(pynvml.nvmlEventSetCreate))

    def _give_up(self, failed: _Set) -> None:
        with self._lock:
            self._set = None
            in_use = failed.users > 0
        if not in_use:  # else it is never freed, as the call that uses it may hang for ever
            with contextlib.suppress(DriverError):
                self._calls.ask(pynvml.nvmlEventSetFree, failed.handle)


def _has_xids(calls: Calls, handle: object) -> bool:
    with contextlib.suppress(Unsupported):
        return bool(calls.ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle) & _XID)
    return False
