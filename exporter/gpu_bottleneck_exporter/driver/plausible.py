"""Dropping impossible values from any driver: no value is better than a wrong one.

Drivers return success along with garbage: utilizations of 808334905 %, 4.29 MW (-1 as an unsigned
number), -2147483648 degrees, counters that run backwards for one reading. The bounds are far
beyond any GPU on the market.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Clocks,
    Health,
    Link,
    Memory,
    Power,
    Process,
    Processes,
    Reading,
    Thermal,
    Throttle,
    Utilization,
)

Drop = Callable[[str, object], None]
"""Called with the name of an impossible value, and the value."""


@dataclass(frozen=True, slots=True)
class Range:
    """Possible values, both ends included; NaN is never in it."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


class Growth(NamedTuple):
    """The most by which a counter can grow: per second, and once on top of that."""

    per_second: float
    at_once: float = 0.0


_PERCENT = Range(0, 100)
_RATIO = Range(-0.01, 1.05)
"""Means between two GPM samples overshoot slightly."""
_WATTS = Range(0, 20_000)
_CELSIUS = Range(-50, 150)
_BYTES = Range(0, 2**50)
_COUNT = Range(0, 2**48)
_SHARES = ("graphics", "sm_active", "sm_occupancy", "dram_active")

RANGES: Mapping[type[object], Mapping[str, Range]] = {
    Utilization: {"gpu_percent": _PERCENT, "memory_percent": _PERCENT},
    Activity: dict.fromkeys((*_SHARES, "pipes"), _RATIO),
    Power: {
        "watts": _WATTS,
        **dict.fromkeys(("limit_watts", "default_limit_watts"), Range(1, 20_000)),
        "energy_joules": Range(0, 1e15),
    },
    Thermal: {"sensors": _CELSIUS, "limits": _CELSIUS},
    Clocks: {"now": Range(0, 1e10), "maximum": Range(1e6, 1e10)},
    Throttle: {"spent_ns": Range(0, 2**62)},
    Memory: {"total_bytes": Range(1, 2**50)},
    Health: {"ecc_errors": _COUNT, "remapped_rows": _COUNT},
    Link: {
        "replays": Range(0, 2**32 - 2),  # 2^32 - 1 is -1 as an unsigned number
        **dict.fromkeys(("generation", "generation_max"), Range(1, 15)),
        **dict.fromkeys(("width", "width_max"), Range(1, 64)),
    },
    Processes: {},
}
GROWTHS: Mapping[type[object], Mapping[str, Growth]] = {
    Power: {"energy_joules": Growth(20_000, at_once=100_000)},
    Throttle: {"spent_ns": Growth(1.1e9, at_once=5e9)},
    Health: {"ecc_errors": Growth(1e9)},
    Link: {"replays": Growth(1e6, at_once=1e6)},
}
_BYTES_PER_SECOND = 1e13
_MOST_PID = 2**22
"""PID_MAX_LIMIT of the kernel's linux/threads.h."""


class _Counter:
    """Accepts a counter that grows plausibly, and a reset once a second reading confirms it."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._other: tuple[int, float] | None = None
        self._believed = 0

    def believes(self, now_ns: int, value: float, growth: Growth) -> bool:
        """Whether `value` is possible at `now_ns`."""
        confirmed = self._other is not None and _grows(self._other, now_ns, value, growth)
        if self._last is None or _grows(self._last, now_ns, value, growth):
            pass
        elif confirmed and (value < self._last[1] or self._believed == 1):
            self._believed = 0  # it was reset, or the very first reading was wrong
        else:
            self._other = now_ns, value
            return False
        self._last, self._other = (now_ns, value), None
        self._believed += 1
        return True


def _grows(before: tuple[int, float], now_ns: int, value: float, growth: Growth) -> bool:
    at_ns, least = before
    most = least + growth.per_second * (now_ns - at_ns) / 1e9 + growth.at_once
    return least <= value <= most


def _is_in(bounds: Range, _: str, value: float) -> bool:
    return value in bounds


class Screen:
    """Filters the readings of one device."""

    def __init__(self) -> None:
        self._drop: Drop = lambda *_: None  # until `clean` is first called
        self._counters: dict[tuple[type[object], str], _Counter] = {}

    def clean(self, now_ns: int, reading: Reading, drop: Drop) -> Reading:
        """`reading` of monotonic `now_ns` without impossible values; `drop` is called for each."""
        self._drop = drop
        kind = type(reading)
        for name, bounds in RANGES[kind].items():
            reading = self._keep(reading, name, partial(_is_in, bounds))
        for name, growth in GROWTHS.get(kind, {}).items():
            reading = self._keep(reading, name, partial(self._believes, kind, now_ns, growth))
        further = self._FURTHER.get(kind)
        return further(self, reading) if further else reading

    def _believes(
        self, kind: type[object], now_ns: int, growth: Growth, name: str, value: float
    ) -> bool:
        counter = self._counters.setdefault((kind, name), _Counter())
        return counter.believes(now_ns, value, growth)

    def _keep(self, reading: Any, name: str, possible: Callable[[str, float], bool]) -> Any:  # noqa: ANN401 - any reading, the same comes back
        """`reading` without impossible values of part `name`; the same object if there are none."""
        value = getattr(reading, name)
        if isinstance(value, Mapping):
            kept = {key: one for key, one in value.items() if possible(f"{name} {key}", one)}
            for key in value.keys() - kept.keys():
                self._drop(f"{name} {key}", value[key])
            return reading if len(kept) == len(value) else replace(reading, **{name: kept})
        if value is None or possible(name, value):
            return reading
        self._drop(name, value)
        return replace(reading, **{name: None})

    def _samples(self, reading: Utilization) -> Utilization:
        for ring in (reading.gpu, reading.memory):
            for _ in range(sum(sample.percent is None for sample in ring.samples)):
                self._drop("samples", "not 0 to 100 %")
            for _ in range(ring.impossible):
                self._drop("timestamps", "a time in the future")
        return reading

    def _activity(self, reading: Activity) -> Activity:
        moved = Range(0, _BYTES_PER_SECOND * reading.interval_ns / 1e9)
        reading = self._keep(reading, "traffic_bytes", partial(_is_in, moved))
        shares: dict[str, Any] = {n: _share(getattr(reading, n)) for n in _SHARES}
        pipes = {name: min(max(ratio, 0.0), 1.0) for name, ratio in reading.pipes.items()}
        return replace(reading, pipes=pipes, **shares)

    def _memory(self, reading: Memory) -> Memory:
        most = Range(0, reading.total_bytes or _BYTES.high)
        for name in ("used_bytes", "reserved_bytes"):
            reading = self._keep(reading, name, partial(_is_in, most))
        return reading

    def _processes(self, reading: Processes) -> Processes:
        known = tuple(one for one in reading.processes if 0 < one.pid <= _MOST_PID)
        if len(known) < len(reading.processes):
            self._drop("pid", len(reading.processes) - len(known))
            # Somebody holds the GPU, even if the pid is wrong.
            reading = replace(reading, processes=known, others_hidden=True)
        kept = tuple(self._process(one) for one in reading.processes)
        return reading if kept == reading.processes else replace(reading, processes=kept)

    def _process(self, one: Process) -> Process:
        if one.used_bytes is None or one.used_bytes in _BYTES:
            return one
        self._drop("process used_bytes", one.used_bytes)
        return replace(one, used_bytes=None)

    _FURTHER: ClassVar[Mapping[type[object], Callable[[Screen, Any], Reading]]] = {
        Utilization: _samples,
        Activity: _activity,
        Memory: _memory,
        Processes: _processes,
    }
    """Checks that need more than one value of a reading."""


def is_void(reading: Reading) -> bool:
    """Whether no value is left in it."""
    if isinstance(reading, Utilization):
        told = [sample.percent for sample in reading.gpu.samples]
        return all(percent is None for percent in (reading.gpu_percent, *told))
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    values.pop("interval_ns", None)
    return all(value is None or value == {} for value in values.values())


def _share(ratio: float | None) -> float | None:
    return None if ratio is None else min(max(ratio, 0.0), 1.0)
