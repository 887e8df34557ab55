"""The queries of one GPU or MIG instance, each tried by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from gpu_bottleneck_exporter.driver.nvml.fields import read_fields
from gpu_bottleneck_exporter.driver.nvml.library import Calls
from gpu_bottleneck_exporter.driver.protocol import GPU_WIDE_ERRORS, DriverError, Unsupported
from gpu_bottleneck_exporter.driver.refusals import Refusals

T = TypeVar("T")


class Queries:
    """The queries behind a reading, one by one: a failing call costs only its own value."""

    def __init__(self, calls: Calls, handle: object) -> None:
        """`handle`: of the GPU or instance, the first argument of every query."""
        self.calls = calls
        self.handle = handle
        self.last_error: DriverError | None = None
        """Of the failures, the first that concerns the whole GPU, else the last one."""
        self.refusals = Refusals()

    def begin(self) -> Queries:
        """Forget the failures of the last reading."""
        self.last_error = None
        return self

    def ask(self, function: Callable[..., T], *arguments: object) -> T | None:
        """The answer, or None.

        A call that the GPU does not support is retried only rarely. A failure, or a refusal of
        what worked before, is kept in `last_error`.
        """
        key = (function.__name__, *arguments)
        return self.attempt(key, lambda: self.calls.ask(function, self.handle, *arguments))

    def ask_any(self, versions: Sequence[Callable[..., T]], *arguments: object) -> T | None:
        """The first answer that one of the `versions` of a call gives, or None."""
        answers = (self.ask(function, *arguments) for function in versions)
        return next((answer for answer in answers if answer is not None), None)

    def ask_each(
        self, function: Callable[..., T], kinds: Mapping[str, int], *further: int
    ) -> dict[str, T]:
        """The answers by name of `kinds`, without those that the GPU does not give."""
        answers = {name: self.ask(function, kind, *further) for name, kind in kinds.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def fields(self, *ids: int) -> dict[int, float]:
        """Value by field id, of those that there are."""
        return self.attempt(ids, lambda: read_fields(self.calls, self.handle, ids)) or {}

    def field(self, number: int) -> float | None:
        """The value of one field, or None."""
        return self.fields(number).get(number)

    def attempt(self, key: tuple[object, ...], read: Callable[[], T]) -> T | None:
        """The result of `read`, like `ask`; `key` identifies it."""
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
        """Raise the failure, as `fail` does, if none of `values` was read."""
        if all(value is None or value == {} for value in values):
            self.fail()

    def fail(self) -> NoReturn:
        """Raise the last failure, or Unsupported if there was none."""
        if isinstance(self.last_error, Unsupported):  # kept only as it was answered before
            raise DriverError(str(self.last_error)) from self.last_error
        raise self.last_error or Unsupported("not provided by this GPU")
