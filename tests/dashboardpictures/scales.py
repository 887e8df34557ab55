"""Axes: round numbers and round times, and where they stand."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from dashboardpictures.units import BINARY, text

_TICKS_APART, _TIMES_APART = 38, 80
_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_MINUTE = 60
_OF_ZEROS = 98
"""Where all is zero, the axis goes to 100."""
_DECIMALS = 3
_NUMBER = re.compile(r"-?[\d.]+")


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` on pixels from `first` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """The pixel of a value, one outside of the scale at its end."""
        part = (value - self.low) / (self.high - self.low)
        return self.first + min(1, max(0, part)) * (self.last - self.first)


def values(high: float, unit: str, height: float, *, fixed: bool) -> tuple[float, list[float]]:
    """The axis' end and its round numbers, from 0 to `high` or, unless `fixed`, a bit more."""
    high = high or (1 if unit == "percentunit" else _OF_ZEROS)
    step = _step(high * _TICKS_APART / height, binary=unit in BINARY)
    end = high if fixed else step * math.ceil(high * 1.02 / step)
    return end, [step * at for at in range(int(end / step + 1e-9) + 1)]


def label(tick: float, unit: str) -> str:
    """A round number as a text, without zeros that say nothing."""
    written = text(tick, unit, _DECIMALS)
    number = _NUMBER.match(written)
    return f"{float(number[0]):g}{written[number.end() :]}" if number else written


def _step(least: float, *, binary: bool) -> float:
    if binary:
        return 2.0 ** math.ceil(math.log2(least))
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least)


def times(start: float, end: float, width: float) -> list[tuple[float, str]]:
    """Round times and their texts."""
    least = (end - start) * _TIMES_APART / width
    step = next((one for one in _TIME_STEPS if one >= least), _TIME_STEPS[-1])
    form = "%H:%M" if step >= _MINUTE else "%H:%M:%S"
    first = math.ceil(start / step)
    return [
        (at * step, time.strftime(form, time.localtime(at * step)))
        for at in range(first, math.floor(end / step) + 1)
    ]
