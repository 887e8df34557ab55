"""XIDs through NVML's event sets.

One thread waits for all GPUs; each registers in its own, as any call may hang. A failed set (GPU
reset) is replaced.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, address, driver_error
from gpu_bottleneck_exporter.driver.protocol import DriverError, Unsupported
from gpu_bottleneck_exporter.driver.readings import ErrorEvent


@dataclass(slots=True)
class _Set:
    handle: object
    registered: set[int] = field(default_factory=set)
    users: int = 0
    """Threads that register with it, so that it must not be freed."""


class XidEvents:
    """The XIDs of all registered GPUs."""

    def __init__(self, calls: Calls) -> None:
        """`calls`: those of the waiting thread."""
        self._calls = calls
        self._lock = threading.Lock()
        self._gpus: dict[int, int] = {}
        """Index by handle address."""
        # Created early: events are lost until a GPU is registered.
        self._set: _Set | None = None
        with contextlib.suppress(DriverError):
            self._set = self._new_set()

    def register(self, index: int, calls: Calls, handle: object) -> None:
        """Register GPU `index` behind `handle`, once, in its thread. Raises DriverError."""
        with self._lock:
            chosen = self._set
            if chosen is None or index in chosen.registered:
                return
            self._gpus[address(handle)] = index
            chosen.users += 1
        try:
            if _has_xids(calls, handle):
                xid = pynvml.nvmlEventTypeXidCriticalError
                calls.ask(pynvml.nvmlDeviceRegisterEvents, handle, xid, chosen.handle)
            chosen.registered.add(index)
        finally:
            with self._lock:
                chosen.users -= 1

    def forget(self, index: int) -> None:
        """Register GPU `index` anew next time, as after reopening it."""
        with self._lock:
            if self._set:
                self._set.registered.discard(index)

    def wait(self, timeout_seconds: float) -> ErrorEvent | None:
        """The next XID (nvmlEventSetWait_v2); None after `timeout_seconds`.

        Raises Unsupported, DriverError.
        """
        chosen = self._set = self._set or self._new_set()
        try:
            # Not metered, as it only waits.
            data = pynvml.nvmlEventSetWait_v2(chosen.handle, int(timeout_seconds * 1000))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            self._give_up(chosen)
            raise driver_error(error.value, "nvmlEventSetWait_v2") from error
        index = self._gpus.get(address(data.device))
        if index is None or data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        return ErrorEvent(index, int(data.eventData))

    def _new_set(self) -> _Set:
        return _Set(self._calls.ask(pynvml.nvmlEventSetCreate))

    def _give_up(self, failed: _Set) -> None:
        with self._lock:
            self._set = None
            in_use = failed.users > 0
        if not in_use:  # never freed otherwise: a call may hang with it
            with contextlib.suppress(DriverError):
                self._calls.ask(pynvml.nvmlEventSetFree, failed.handle)


def _has_xids(calls: Calls, handle: object) -> bool:
    with contextlib.suppress(Unsupported):
        kinds = calls.ask(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
        return bool(kinds & pynvml.nvmlEventTypeXidCriticalError)
    return False
