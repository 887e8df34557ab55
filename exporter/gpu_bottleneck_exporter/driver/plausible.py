"""Impossible values of any driver, which are dropped: no value is better than a wrong one.

Only what a driver was seen to return along with success; each bound names its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import NamedTuple

from gpu_bottleneck_exporter.driver import readings

Drop = Callable[[str, object], None]
"""Called with the name of an impossible value, and the value."""


class Range(NamedTuple):
    """Possible values, both ends included; NaN is never in it."""

    low: float
    high: float
    slack: float = 0.0
    """By how much values may be too small or too large: these become `low` and `high`."""

    def fit(self, value: float) -> float | None:
        """`value`, within the range; None if it is impossible."""
        if not self.low - self.slack <= value <= self.high + self.slack:
            return None
        return min(max(value, self.low), self.high)


_PERCENT = Range(0, 100)
"""808334905 and 4294967295 % on H100 (NVIDIA/dcgm-exporter#418, NVIDIA/DCGM#199)."""
_RATIO = Range(0, 1, slack=0.05)
"""NaN (DCGM leaves it out); means between two GPM samples overshoot slightly."""
_BYTES = Range(0, 1e15)
"""NaN of links, as above; also the largest that a document of a job may have."""
_ANYTHING = Range(-(2.0**63), 2.0**63)
"""All figures: 64 bits hold no larger one, and no text or division of integers takes all others."""
_RATIOS = ("graphics", "sm_active", "sm_occupancy", "dram_active", "pipes")
_RANGES: Mapping[type[object], Mapping[str, Range]] = {
    readings.Utilization: {"gpu_percent": _PERCENT, "memory_percent": _PERCENT},
    readings.Video: {"percents": _PERCENT},
    readings.Activity: {**dict.fromkeys(_RATIOS, _RATIO), "traffic_bytes": _BYTES},
    # 3.69 TW for one reading (intel/xpumanager#130).
    # 10 TJ are 16 years of that.
    readings.Power: {
        **dict.fromkeys(("watts", "module_watts"), Range(0, 20_000)),
        "energy_joules": Range(0, 1e13),
    },
    readings.Memory: dict.fromkeys(("total_bytes", "used_bytes", "reserved_bytes"), _BYTES),
    # PCI Express Base Specification: x1 to x32. One wrong width would be the most ever observed.
    readings.Link: dict.fromkeys(("width", "width_max"), Range(1, 32)),
    # 345 to 644245923 degrees Celsius on A100 and H100 (NVIDIA/dcgm-exporter#312).
    readings.Thermal: {
        "sensors": Range(-50, 150),
        "limits": Range(0, 200),
        "margin": Range(-150, 200),
    },
}
_FIGURE = (int, float)
_LARGEST_PID = 2**22
"""PID_MAX_LIMIT of the kernel's linux/threads.h; 0 and 4294967295 came (XuehaiPan/nvitop#75)."""


def plausible(reading: readings.Reading, drop: Drop) -> readings.Reading:
    """`reading` without impossible values; `drop` is called for each."""
    kind: object = type(reading)
    wrong = {
        name: _fitted(name, part, possible, drop)
        for name, possible in _ranges(kind)
        if (part := getattr(reading, name)) is not None and not _fits(part, possible)
    }
    if wrong:
        reading = replace(reading, **wrong)
    for ring in _rings(reading):
        for sample in ring:
            if sample.percent is None:
                drop("samples", "not 0 to 100 %")
    if isinstance(reading, readings.Processes):
        return _of_known_pids(reading, drop)
    return reading


@cache
def _ranges(kind: type[readings.Reading]) -> tuple[tuple[str, Range], ...]:
    """Name and range of each part of readings of type `kind`."""
    special = _RANGES.get(kind, {})
    return tuple((item.name, special.get(item.name, _ANYTHING)) for item in fields(kind))


def _fits(given: object, possible: Range) -> bool:
    """Whether a part is within the range, as nearly all are: cheaper than `_fitted`."""
    if isinstance(given, _FIGURE):
        return possible.low <= given <= possible.high
    if given is None or not isinstance(given, Mapping):
        return True
    low, high = possible.low, possible.high
    return not any(isinstance(v, _FIGURE) and not low <= v <= high for v in given.values())


def _rings(reading: readings.Reading) -> Iterable[readings.Ring]:
    """The rings of samples in `reading`."""
    if isinstance(reading, readings.Utilization):
        return reading.gpu or (), reading.memory or ()
    return reading.rings.values() if isinstance(reading, readings.Video) else ()


def _fitted(name: str, given: object, possible: Range, drop: Drop) -> object:
    """The possible values of part `name` of a reading."""
    if isinstance(given, Mapping):
        fitted = {key: _fitted(f"{name} {key}", one, possible, drop) for key, one in given.items()}
        return {key: one for key, one in fitted.items() if one is not None}
    if not isinstance(given, _FIGURE):
        return given
    if (value := possible.fit(given)) is None:
        drop(name, given)
    return value


def _of_known_pids(reading: readings.Processes, drop: Drop) -> readings.Processes:
    known = [one for one in reading.processes if 1 <= one.pid <= _LARGEST_PID]
    for index, one in enumerate(known):
        if not _fits(one.used_bytes, _BYTES):
            drop("used_bytes", one.used_bytes)
            known[index] = replace(one, used_bytes=None)
    unknown = len(reading.processes) - len(known)
    if unknown:
        drop("pid", unknown)
    elif tuple(known) == reading.processes:
        return reading
    # Somebody holds the GPU, even if the pid is wrong.
    hidden = reading.others_hidden or unknown > 0
    return replace(reading, processes=tuple(known), others_hidden=hidden)


def is_void(reading: readings.Reading) -> bool:
    """Whether no value is left in it."""
    if isinstance(reading, readings.Utilization):
        told = [sample.percent for sample in reading.gpu or ()]
        return all(percent is None for percent in (reading.gpu_percent, *told))
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    values.pop("interval_ns", None)
    return all(value is None or value == {} for value in values.values())
