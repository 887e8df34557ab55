"""Made-up series: a value for each minute, in the notation of promtool.

What changes is given as a list of `(minutes, value)` phases, None being a time without samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

STALE = math.nan
"""Where a series ends, as Prometheus marks it; None merely leaves a sample out."""
FOREVER = 2000
"""Minutes: longer than any fleet."""
Phases = Sequence[tuple[int, float | None]]
Signal = float | Phases
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """A series with a value for each minute; None: no sample."""

    name: str
    labels: Labels
    values: tuple[float | None, ...]
    is_counter: bool = False

    def every(self, seconds: int) -> Series:
        """The same, scraped more often: a counter grows evenly in between."""
        parts = 60 // seconds
        if parts == 1:
            return self
        after = (*self.values[1:], self.values[-1])
        between = [
            value if value is None or not self.is_counter else _between(value, end, part / parts)
            for value, end in zip(self.values, after, strict=True)
            for part in range(parts)
        ]
        return replace(self, values=tuple(between))

    @property
    def selector(self) -> str:
        """As promtool wants it."""
        pairs = ",".join(f"{name}={json.dumps(text)}" for name, text in self.labels.items())
        return f"{self.name}{{{pairs}}}"

    @property
    def notation(self) -> str:
        """The values as promtool wants them, in short: it copies all series once for each."""
        return " ".join(_notation(self.values))


def _between(start: float, end: float | None, share: float) -> float:
    return start if end is None or not end > start else start + (end - start) * share


def _notation(values: Sequence[float | None]) -> Iterator[str]:
    """Where each value follows the one before by the same step: the first, the step, how often."""
    written = [None if value is None else round(float(value), 6) for value in values]
    steps = [_step(*pair) for pair in pairwise(written)]
    at = 0
    while at < len(written):
        first, more = written[at], _repeats(steps, at)
        if first is None:
            yield f"_x{more + 1}"
        elif math.isnan(first):
            yield "stale"
        else:
            yield f"{first:.6f}" + (f"{steps[at]:+.6f}x{more}" if more else "")
        at += more + 1


def _step(before: float | None, after: float | None) -> float | None:
    """None: not one to leave to promtool, which adds floats: sums of fractions would drift."""
    if before is None or after is None:
        return 0.0 if before is after else None
    whole = before.is_integer() and after.is_integer()
    return after - before if whole or before == after else None


def _repeats(steps: Sequence[float | None], at: int) -> int:
    """How often in a row the step is taken that is taken there."""
    end = at
    while end < len(steps) and steps[end] is not None and steps[end] == steps[at]:
        end += 1
    return end - at


def level(minutes: int, signal: Signal) -> tuple[float | None, ...]:
    """A gauge: the value at each minute."""
    phases = [(minutes + 1, signal)] if isinstance(signal, int | float) else signal
    values = [value for length, value in phases for _ in range(length)]
    return tuple(values[: minutes + 1])


def total(minutes: int, rate: Signal, *, reset_at: int | None = None) -> tuple[float | None, ...]:
    """A counter that grows by `rate` a second; it starts anew at minute `reset_at`."""
    sums: list[float | None] = []
    so_far = 0.0
    for minute, value in enumerate(level(minutes, rate)):
        so_far = 0.0 if minute == reset_at else so_far
        ended = value is None or math.isnan(value)
        sums.append(value if ended else so_far)
        so_far += 0.0 if ended else 60 * (value or 0.0)
    return tuple(sums)


def mapped(signal: Signal, change: Callable[[float], float]) -> Signal:
    """Each of its values changed."""
    if isinstance(signal, int | float):
        return change(signal)
    return [(length, None if value is None else change(value)) for length, value in signal]


def like(signal: Signal, value: float) -> Signal:
    """`value` wherever `signal` has one."""
    return mapped(signal, lambda _: value)
