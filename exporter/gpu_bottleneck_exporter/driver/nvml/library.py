"""Calls of libnvidia-ml.so.1, counted, timed, with exceptions."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache

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
from gpu_bottleneck_exporter.generics import T

_ERRORS: dict[int, tuple[type[DriverError], str | None]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: (AccessLost, "access_lost"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (Unsupported, None),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (Unsupported, None),
    pynvml.NVML_ERROR_NO_PERMISSION: (Forbidden, "no_permission"),
    pynvml.NVML_ERROR_NOT_FOUND: (NothingFound, None),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (DriverMissing, "not_loaded"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (DriverMissing, "no_library"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (Unsupported, "library_broken"),
    pynvml.NVML_ERROR_GPU_IS_LOST: (DeviceLost, None),
    pynvml.NVML_ERROR_RESET_REQUIRED: (DeviceLost, "reset_required"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (DriverUnusable, "mismatch"),
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (Unsupported, None),
    pynvml.NVML_ERROR_DEPRECATED: (Unsupported, None),
    pynvml.NVML_ERROR_GPU_NOT_FOUND: (DeviceLost, None),
    # As in a container after `systemctl daemon-reload`.
    pynvml.NVML_ERROR_UNKNOWN: (AccessLost, "access_lost"),
}
"""Error and cause (see `remedies`) by code."""
_NAMES = {
    code: f"{name.removeprefix('NVML_ERROR_')} ({code})"
    for name, code in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}
"""Not nvmlErrorString: the library may be missing."""
_TEXT_BYTES = 96
"""Buffer size of names and UUIDs (NVML_DEVICE_{NAME,UUID}_V2_BUFFER_SIZE)."""


def load() -> None:
    """Check the library before pynvml loads it. Raises DriverMissing."""
    if pynvml.nvmlLib is not None:
        return
    reason = loader.failure()
    if reason is not None:
        cause = "library_forbidden" if "permission" in reason.lower() else "library_broken"
        sentence = f"nvmlInit: {_NAMES[pynvml.NVML_ERROR_LIBRARY_NOT_FOUND]}: {reason}"
        raise DriverMissing(sentence, remedy(cause))


def driver_error(code: int, what: str) -> DriverError:
    """The exception for NVML return code `code` of call `what`."""
    kind, cause = _ERRORS.get(code, (DriverError, None))
    name = _NAMES.get(code, f"NVML error {code}")
    return kind(f"{what}: {name}", cause and remedy(cause))


def address(handle: object) -> int:
    """Address behind a handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


class Calls:
    """The NVML calls of one thread, counted, timed in nanoseconds, with errors raised."""

    def __init__(self) -> None:
        self.count = 0
        self.nanoseconds = 0

    def ask(self, function: Callable[..., T], *arguments: object) -> T:
        """The result of a pynvml function. Raises DriverError."""
        began = time.perf_counter_ns()
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            raise driver_error(error.value, function.__name__) from error
        finally:
            self.count += 1
            self.nanoseconds += time.perf_counter_ns() - began

    def text(self, name: str, *arguments: object) -> str:
        """Text from the C function `name`, which pynvml decodes only if UTF-8.

        Raises DriverError.
        """
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def call(self, name: str, *arguments: object) -> None:
        """Call the C function `name`. Raises DriverError.

        For the hot path: pynvml's structures cost 22 times as much.
        """
        self.ask(_direct(name), *arguments)


def c_function(name: str) -> Callable[..., int]:
    """The C function `name`. Raises NVMLError if it is missing."""
    # pynvml's lookup has handle and cache, but no public name.
    function: Callable[..., int] = pynvml._nvmlGetFunctionPointer(name)  # noqa: SLF001
    return function


@cache
def _direct(name: str) -> Callable[..., None]:
    """The C function `name`, with its code raised, as in pynvml."""

    def function(*arguments: object) -> None:
        code = c_function(name)(*arguments)
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code)

    function.__name__ = name
    return function
