"""Calling libnvidia-ml.so.1: error codes become exceptions, every call is counted and timed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml import loader
from gpu_bottleneck_exporter.driver.nvml.remedies import remedy
from gpu_bottleneck_exporter.driver.protocol import (
    AccessLost,
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverUnusable,
    Forbidden,
    NothingFound,
    Unsupported,
)

T = TypeVar("T")

# Not final: `Device.check` confirms a code that concerns the whole GPU before it is believed.
_ERRORS: dict[int, type[DriverError]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: AccessLost,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Unsupported,
    pynvml.NVML_ERROR_NOT_SUPPORTED: Unsupported,
    pynvml.NVML_ERROR_NO_PERMISSION: Forbidden,
    pynvml.NVML_ERROR_NOT_FOUND: NothingFound,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverMissing,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverMissing,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Unsupported,
    pynvml.NVML_ERROR_GPU_IS_LOST: DeviceLost,
    pynvml.NVML_ERROR_RESET_REQUIRED: DeviceLost,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverUnusable,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Unsupported,
    pynvml.NVML_ERROR_DEPRECATED: Unsupported,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: DeviceLost,
    # What a container gets that lost its device cgroup, as after `systemctl daemon-reload`.
    pynvml.NVML_ERROR_UNKNOWN: AccessLost,
}


_TEXT_BYTES = 96
"""Buffer size of names and UUIDs (NVML_DEVICE_{NAME,UUID}_V2_BUFFER_SIZE)."""
_CAUSES = {
    pynvml.NVML_ERROR_UNINITIALIZED: "access_lost",
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "not_loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "library_broken",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
    pynvml.NVML_ERROR_UNKNOWN: "access_lost",
}


def load() -> None:
    """Check that the library can be loaded safely, before pynvml loads it at its first call.

    Raises DriverMissing if there is a library that cannot.
    """
    if pynvml.nvmlLib is not None:
        return
    reason = loader.failure()
    if reason is not None:
        cause = "library_forbidden" if "permission" in reason.lower() else "library_broken"
        sentence = f"nvmlInit: {_describe(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)}: {reason}"
        raise DriverMissing(sentence, remedy(cause))


def driver_error(code: int, what: str) -> DriverError:
    """The exception for NVML return code `code` of call `what`."""
    kind, cause = _ERRORS.get(code, DriverError), _CAUSES.get(code)
    return kind(f"{what}: {_describe(code)}", remedy(cause) if cause else None)


def _describe(code: int) -> str:
    # Not nvmlErrorString: the library may be missing, or of another version.
    return next(
        (
            f"{name.removeprefix('NVML_ERROR_')} ({code})"
            for name, value in vars(pynvml).items()
            if name.startswith("NVML_ERROR_") and value == code
        ),
        f"NVML error {code}",
    )


class Calls:
    """Calls into NVML by one thread: counted, timed in nanoseconds, their errors raised."""

    def __init__(self) -> None:
        self.count = 0
        self.nanoseconds = 0

    def ask(self, function: Callable[..., T], *arguments: object) -> T:
        """The answer of a pynvml function. Raises DriverError or a subclass."""
        began = time.perf_counter_ns()
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            raise driver_error(error.value, function.__name__) from error
        finally:
            self.count += 1
            self.nanoseconds += time.perf_counter_ns() - began

    def text(self, name: str, *arguments: object) -> str:
        """The text that the C function `name` writes. Raises DriverError or a subclass.

        Not through pynvml, which fails on text that is not UTF-8.
        """
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self.code(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        if code != pynvml.NVML_SUCCESS:
            raise driver_error(code, name)
        return buffer.value.decode(errors="replace")

    def code(self, name: str, *arguments: object) -> int:
        """The return code of the C function `name`, called directly.

        For the hot path: pynvml's structures cost 22 times as much as a call into a reused array.
        Raises Unsupported if the library has no such function.
        """
        began = time.perf_counter_ns()
        try:
            # pynvml's lookup has the library handle, a cache, and no public name.
            function: Any = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001
            return int(function(*arguments))
        except pynvml.NVMLError as error:
            raise driver_error(error.value, name) from error
        finally:
            self.count += 1
            self.nanoseconds += time.perf_counter_ns() - began
