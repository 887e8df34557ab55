"""Removal of impossible values, as no value is better than a wrong one.

Each bound names its source: a driver that returned such values with success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import NamedTuple

from gpu_bottleneck_exporter.driver import readings

Drop = Callable[[str, object], None]
"""Callback with the name of an impossible value, and the value."""


class Range(NamedTuple):
    """The possible values, both ends included, without NaN."""

    low: float
    high: float
    slack: float = 0.0
    """Tolerance, within which values become `low` or `high`."""

    def fit(self, value: float) -> float | None:
        """`value` within the range; None if impossible."""
        if not self.low - self.slack <= value <= self.high + self.slack:
            return None
        return min(max(value, self.low), self.high)


_PERCENT_RANGE = Range(0, 100)
"""808334905 and 4294967295 % on H100 (NVIDIA/dcgm-exporter#418, NVIDIA/DCGM#199)."""
_BYTE_RANGE = Range(0, 1e15)
"""NaN of links; the maximum is that of a job's document."""
_NUMBERS = (int, float)
_RANGES: Mapping[type[object], Mapping[str, Range]] = {
    readings.Utilization: {"gpu_percent": _PERCENT_RANGE, "memory_percent": _PERCENT_RANGE},
    readings.Video: {"percents": _PERCENT_RANGE},
    # NaN, which DCGM drops; means between two GPM samples overshoot slightly.
    readings.UnitActivity: {
        **dict.fromkeys(
            ("graphics", "sm_active", "sm_occupancy", "dram_active", "pipes"),
            Range(0, 1, slack=0.05),
        ),
        "traffic_bytes": _BYTE_RANGE,
    },
    # 3.69 TW once (intel/xpumanager#130); 10 TJ are 16 years at 20 kW.
    readings.Power: {
        **dict.fromkeys(("watts", "module_watts"), Range(0, 20_000)),
        "energy_joules": Range(0, 1e13),
    },
    readings.Memory: dict.fromkeys(("total_bytes", "used_bytes", "reserved_bytes"), _BYTE_RANGE),
    # PCI Express Base Specification: x1 to x32. A wrong width would be the maximum observed.
    readings.Link: dict.fromkeys(("width", "width_max"), Range(1, 32)),
    # 345 to 644245923 degrees Celsius on A100 and H100 (NVIDIA/dcgm-exporter#312).
    readings.Thermal: {
        "sensors": Range(-50, 150),
        "limits": Range(0, 200),
        "margin": Range(-150, 200),
    },
}


def plausible(reading: readings.Reading, drop: Drop) -> readings.Reading:
    """`reading` without impossible values, each passed to `drop`."""
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
        return _with_valid_pids(reading, drop)
    if isinstance(reading, readings.ProcessUse):
        return _with_possible_use(reading, drop)
    return reading


@cache
def _ranges(kind: type[readings.Reading]) -> tuple[tuple[str, Range], ...]:
    """Name and range of each part; by default 64 bits, for integer division."""
    special = _RANGES.get(kind, {})
    any_64_bits = Range(-(2.0**63), 2.0**63)
    return tuple((item.name, special.get(item.name, any_64_bits)) for item in fields(kind))


def _fits(value: object, possible: Range) -> bool:
    """Whether a part is within the range: cheaper than `_fitted`."""
    if isinstance(value, _NUMBERS):
        return possible.low <= value <= possible.high
    if value is None or not isinstance(value, Mapping):
        return True
    low, high = possible.low, possible.high
    return not any(isinstance(v, _NUMBERS) and not low <= v <= high for v in value.values())


def _rings(reading: readings.Reading) -> Iterable[readings.Ring]:
    if isinstance(reading, readings.Utilization):
        return reading.gpu or (), reading.memory or ()
    return reading.rings.values() if isinstance(reading, readings.Video) else ()


def _fitted(name: str, part: object, possible: Range, drop: Drop) -> object:
    """The possible values of part `name`."""
    if isinstance(part, Mapping):
        fitted = {key: _fitted(f"{name} {key}", item, possible, drop) for key, item in part.items()}
        return {key: item for key, item in fitted.items() if item is not None}
    if not isinstance(part, _NUMBERS):
        return part
    if (value := possible.fit(part)) is None:
        drop(name, part)
    return value


def _with_valid_pids(reading: readings.Processes, drop: Drop) -> readings.Processes:
    valid = [process for process in reading.processes if _is_pid(process.pid)]
    for index, process in enumerate(valid):
        if not _fits(process.used_bytes, _BYTE_RANGE):
            drop("used_bytes", process.used_bytes)
            valid[index] = replace(process, used_bytes=None)
    invalid = len(reading.processes) - len(valid)
    if invalid:
        drop("pid", invalid)
    elif tuple(valid) == reading.processes:
        return reading
    # A process has a context, even if its pid is wrong.
    hidden = reading.others_hidden or invalid > 0
    return replace(reading, processes=tuple(valid), others_hidden=hidden)


def _is_pid(pid: int) -> bool:
    # Up to PID_MAX_LIMIT (linux/threads.h): 0 and 4294967295 came (XuehaiPan/nvitop#75).
    return 1 <= pid <= 2**22


def _with_possible_use(reading: readings.ProcessUse, drop: Drop) -> readings.ProcessUse:
    # Dead processes came above 100 % (Syllo/nvtop#110).
    samples = tuple(
        sample
        for sample in reading.samples
        if _is_pid(sample.pid) and _fits(sample.percent, _PERCENT_RANGE)
    )
    if len(samples) == len(reading.samples):
        return reading
    drop("samples", len(reading.samples) - len(samples))
    return readings.ProcessUse(samples)


def is_void(reading: readings.Reading) -> bool:
    """Whether it has no value left."""
    if isinstance(reading, readings.Utilization):
        percents = [sample.percent for sample in reading.gpu or ()]
        return all(percent is None for percent in (reading.gpu_percent, *percents))
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    values.pop("interval_ns", None)
    return all(value is None or value == {} for value in values.values())
