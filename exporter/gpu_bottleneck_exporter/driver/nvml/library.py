"""Calling libnvidia-ml.so.1: error codes become exceptions, every call is counted and timed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml import trial
from gpu_bottleneck_exporter.driver.protocol import (
    NO_PERMISSION,
    AccessLost,
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverUnusable,
    NothingFound,
    Unsupported,
)

T = TypeVar("T")

_ERRORS: dict[int, type[DriverError]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: AccessLost,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Unsupported,
    pynvml.NVML_ERROR_NOT_SUPPORTED: Unsupported,
    pynvml.NVML_ERROR_NO_PERMISSION: Unsupported,
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
    pynvml.NVML_ERROR_UNKNOWN: AccessLost,
}


_TEXT_BYTES = 96
"""Names and UUIDs (NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE)."""
_CAUSES = {
    pynvml.NVML_ERROR_UNINITIALIZED: "access_lost",
    pynvml.NVML_ERROR_NO_PERMISSION: NO_PERMISSION,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "not_loaded",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no_library",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "library_broken",
    pynvml.NVML_ERROR_RESET_REQUIRED: "reset_required",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "mismatch",
    pynvml.NVML_ERROR_UNKNOWN: "access_lost",
}


def load() -> None:
    """See to it that the library can be loaded without harm; pynvml loads it at its first call.

    Raises DriverMissing where there is a library that cannot be.
    """
    if pynvml.nvmlLib is not None:
        return
    reason = trial.failure()
    if reason is not None:
        forbidden = "permission" in reason.lower()
        sentence = f"nvmlInit: {_describe(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)}: {reason}"
        raise DriverMissing(sentence, "library_forbidden" if forbidden else "library_broken")


def driver_error(code: int, what: str) -> DriverError:
    """The exception for NVML return code `code` of call `what`."""
    return _ERRORS.get(code, DriverError)(f"{what}: {_describe(code)}", _CAUSES.get(code))


def _describe(code: int) -> str:
    # The library's own nvmlErrorString is out: it may be gone or of another version.
    return next(
        (
            f"{name.removeprefix('NVML_ERROR_')} ({code})"
            for name, value in vars(pynvml).items()
            if name.startswith("NVML_ERROR_") and value == code
        ),
        f"NVML error {code}",
    )


class Calls:
    """Calls into NVML by one thread: how many, how long, and their errors as exceptions."""

    def __init__(self) -> None:
        self.count = 0
        self.nanoseconds = 0

    def ask(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a pynvml function; raises DriverError or one of its kinds."""
        began = time.perf_counter_ns()
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            raise driver_error(error.value, function.__name__) from error
        finally:
            self.count += 1
            self.nanoseconds += time.perf_counter_ns() - began

    def text(self, name: str, *arguments: object) -> str:
        """The text that the C function `name` writes; raises DriverError or one of its kinds.

        Not through pynvml, which fails on what is not UTF-8.
        """
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self.code(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        if code != pynvml.NVML_SUCCESS:
            raise driver_error(code, name)
        return buffer.value.decode(errors="replace")

    def code(self, name: str, *arguments: object) -> int:
        """Call the C function `name` itself and return its code.

        For the hot path: reading an answer through pynvml's structures costs 22 times
        what one call into a reused array does. Raises Unsupported where the library
        has no such function.
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
