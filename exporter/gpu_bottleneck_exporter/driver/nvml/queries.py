"""The queries of one GPU or MIG instance, each tried by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.protocol import GPU_WIDE_ERRORS, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.refusals import Refusals

T = TypeVar("T")


class Queries:
    """The queries behind a reading, one by one: a failing call costs only its own value."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.last_error: DriverError | None = None
        """Of the failures, the first that concerns the whole GPU, else the last one."""
        self.refusals = Refusals()

    def ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The answer, or None.

        A call that the GPU does not support is retried only rarely. A failure, or a refusal of
        what worked before, is kept in `last_error`.
        """
        key = (function.__name__, *arguments[1:])
        return self.attempt(key, lambda: self.calls.ask(function, *arguments))

    def attempt(self, key: tuple[object, ...], read: Callable[[], T]) -> T | None:
        """The result of `read`, which makes several calls, like `ask`; `key` identifies it."""
        if self.refusals.stands(key):
            return None
        try:
            answer = read()
        except Unsupported as error:
            if self.refusals.refused(key):
                self.note(error)
            return None
        except DriverError as error:
            self.note(error)
            return None
        self.refusals.answered(key)
        return answer

    def note(self, error: DriverError) -> None:
        """Keep a failure, unless a more serious one is kept."""
        if not isinstance(self.last_error, GPU_WIDE_ERRORS):
            self.last_error = error

    def require(self, *values: object) -> None:
        """Raise if none of `values` was read: the failure, or Unsupported if there was none."""
        if any(value is not None and value != {} for value in values):
            return
        last_error = self.last_error
        if isinstance(last_error, Unsupported):  # kept only if it was answered before: a failure
            raise DriverError(str(last_error)) from last_error
        raise last_error or Unsupported("not provided by this GPU")


_BASICS: tuple[tuple[Callable[..., object], tuple[object, ...]], ...] = (
    (pynvml.nvmlDeviceGetMemoryInfo, ()),
    (pynvml.nvmlDeviceGetTemperature, (pynvml.NVML_TEMPERATURE_GPU,)),
    (pynvml.nvmlDeviceGetPowerUsage, ()),
    (pynvml.nvmlDeviceGetClockInfo, (pynvml.NVML_CLOCK_SM,)),
    (pynvml.nvmlDeviceGetUtilizationRates, ()),
)
"""Calls that nearly every GPU answers, and that the library cannot answer without the GPU."""


def check_basics(calls: Calls, handle: object) -> None:
    """Raise the GPU's error if all of `_BASICS` fail with `GPU_WIDE_ERRORS`."""
    found = [_failure(calls, handle, *basic) for basic in _BASICS]
    told = [error for error in found if not isinstance(error, Unsupported)]
    worst = [error for error in told if isinstance(error, GPU_WIDE_ERRORS)]
    if worst and len(worst) == len(told):
        raise worst[0]


def _failure(
    calls: Calls, handle: object, function: Callable[..., object], arguments: tuple[object, ...]
) -> DriverError | None:
    try:
        calls.ask(function, handle, *arguments)
    except DriverError as error:
        return error
    return None
