"""Independent queries of one GPU or MIG instance.

Of field ids, 199, 200 and 251-273 changed their meaning between driver branches (nvml.h of CUDA
11.5 to 13.3).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NoReturn

import pynvml

from gpu_bottleneck_exporter.driver.nvml.library import Calls, driver_error
from gpu_bottleneck_exporter.driver.protocol import GPU_WIDE_ERRORS, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.refusals import Refusals
from gpu_bottleneck_exporter.generics import T

FIELD = struct.Struct("=IIqqII8s")
"""nvmlFieldValue_t: field id, scope id, timestamp, latency, value type, return code, value."""
UNTOUCHED = 998
"""Marker of entries not filled in, as with ECC off."""
VALUES = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "d",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "I4x",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "Q",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "Q",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "q",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "i4x",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "H6x",
}
"""Format of nvmlValue_t by value type."""
_FORMATS = {kind: struct.Struct(f"={value}") for kind, value in VALUES.items()}


class Queries:
    """Queries of a reading: a failed call costs its own value."""

    def __init__(self, calls: Calls, handle: object) -> None:
        """`handle`: GPU or instance, the first argument."""
        self.calls = calls
        self.handle = handle
        self.last_error: DriverError | None = None
        """First failure of the whole GPU, else the last failure."""
        self.refusals = Refusals()

    def begin(self) -> Queries:
        """Clear failures."""
        self.last_error = None
        return self

    def ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The result, or None; unsupported calls are seldom retried.

        A failure, also a refusal after an answer, becomes `last_error`.
        """
        key = (function.__name__, *arguments)
        return self.attempt(key, lambda: self.calls.ask(function, self.handle, *arguments))

    def ask_any(self, versions: Sequence[Callable[..., T]], *arguments: object) -> T | None:
        """The first result of the `versions` of a call."""
        answers = (self.ask(function, *arguments) for function in versions)
        return next((answer for answer in answers if answer is not None), None)

    def ask_version(self, versions: Sequence[Callable[..., T]]) -> T | None:
        """The result of the first of `versions` not refused, or None.

        Only that one is called from then on.
        """
        for function in versions:
            answer = self.ask(function)
            if answer is not None or not self.refusals.is_unknown((function.__name__,)):
                return answer
        return None

    def ask_each(
        self, function: Callable[..., T], kinds: Mapping[str, int], *further: int
    ) -> dict[str, T]:
        """Available results by name of `kinds`."""
        answers = {name: self.ask(function, kind, *further) for name, kind in kinds.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def fields(self, *ids: int, scope: int = 0) -> dict[int, float]:
        """Available values by field id; `scope`: part of the board."""
        return self.attempt((*ids, scope), lambda: self._read_fields(ids, scope)) or {}

    def field(self, *ids: int) -> float | None:
        """The first available value of `ids`."""
        values = (self.fields(number).get(number) for number in ids)
        return next((value for value in values if value is not None), None)

    def structure(self, name: str, layout: str, version: int = 0) -> tuple[int, ...]:
        """Members filled in by the C function `name`; empty if the binding lacks it.

        `layout`: its format; `version`: preset first member.
        """

        def read() -> tuple[int, ...]:
            buffer = ctypes.create_string_buffer(struct.calcsize(layout))
            struct.pack_into("=I", buffer, 0, version)
            self.calls.call(name, self.handle, buffer)
            return struct.unpack(layout, buffer)

        return self.attempt((name, version), read) or ()

    def attempt(self, key: tuple[object, ...], read: Callable[[], T]) -> T | None:
        """The result of `read`, as `ask`, with identity `key`."""
        if self.refusals.stands(key):
            return None
        try:
            answer = read()
        except DriverError as error:
            failed = not isinstance(error, Unsupported) or self.refusals.refused(key)
            if failed and not isinstance(self.last_error, GPU_WIDE_ERRORS):
                self.last_error = error
            return None
        self.refusals.answered(key)
        return answer

    def require(self, *values: object) -> None:
        """Raise the failure if all `values` are missing."""
        if all(value is None or value == {} for value in values):
            self.fail()

    def fail(self) -> NoReturn:
        """Raise the last failure, or Unsupported if there was none."""
        if isinstance(self.last_error, Unsupported):  # recorded only if it was answered before
            raise DriverError(str(self.last_error)) from self.last_error
        raise self.last_error or Unsupported("not provided by this GPU")

    def _read_fields(self, ids: tuple[int, ...], scope: int) -> dict[int, float]:
        buffer = ctypes.create_string_buffer(_unanswered(ids, scope))
        name = "nvmlDeviceGetFieldValues"
        self.calls.call(name, self.handle, ctypes.c_int32(len(ids)), buffer)
        values: dict[int, float] = {}
        rows = memoryview(buffer)[: len(ids) * FIELD.size]
        for field, _, _, _, kind, result, raw in FIELD.iter_unpack(rows):
            if result == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise driver_error(result, name)
            if result == pynvml.NVML_SUCCESS and kind in _FORMATS:
                values[field] = _FORMATS[kind].unpack(raw)[0]
        if not values:
            raise Unsupported("no such field values")
        return values


def unanswered(fields: Iterable[tuple[int, int]]) -> bytes:
    """Entries by field id and scope; one spare, for NVML."""
    entries = (*fields, (0, 0))
    return b"".join(FIELD.pack(i, scope, 0, 0, 0, UNTOUCHED, bytes(8)) for i, scope in entries)


@cache
def _unanswered(ids: tuple[int, ...], scope: int) -> bytes:
    return unanswered((i, scope) for i in ids)
