"""Impossible values of any driver, which are dropped: no value is better than a wrong one.

Only what a driver was seen to return along with success; each bound names its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gpu_bottleneck_exporter.driver.readings import (
    Activity,
    Power,
    Processes,
    Reading,
    Thermal,
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


_PERCENT = Range(0, 100)
"""808334905 and 4294967295 % on H100 (NVIDIA/dcgm-exporter#418, NVIDIA/DCGM#199)."""
_RATIO = Range(-0.01, 1.05)
"""NaN (DCGM leaves it out); means between two GPM samples overshoot slightly."""
_SHARES = ("graphics", "sm_active", "sm_occupancy", "dram_active")
RANGES: Mapping[type[object], Mapping[str, Range]] = {
    Utilization: {"gpu_percent": _PERCENT, "memory_percent": _PERCENT},
    # NaN, as above: 1 PiB is far more than any link moves between two readings.
    Activity: {**dict.fromkeys((*_SHARES, "pipes"), _RATIO), "traffic_bytes": Range(0, 2**50)},
    # 3.69 TW for one reading (intel/xpumanager#130).
    Power: {"watts": Range(0, 20_000)},
    # 345 to 644245923 degrees Celsius on A100 and H100 (NVIDIA/dcgm-exporter#312).
    Thermal: {"sensors": Range(-50, 150)},
}
_PIDS = Range(1, 2**22)
"""PID_MAX_LIMIT of the kernel's linux/threads.h; 0 and 4294967295 came (XuehaiPan/nvitop#75)."""


class PlausibilityFilter:
    """The filter for the readings of one device."""

    def __init__(self) -> None:
        self._energy = 0.0
        self._doubted: float | None = None

    def clean(self, reading: Reading, drop: Drop) -> Reading:
        """`reading` without impossible values; `drop` is called for each."""
        for name, possible in RANGES.get(type(reading), {}).items():
            reading = _kept(reading, name, possible, drop)
        if isinstance(reading, Utilization):
            _tell_samples(reading, drop)
        elif isinstance(reading, Activity):
            return _clamped(reading)
        elif isinstance(reading, Processes):
            return _of_known_pids(reading, drop)
        elif isinstance(reading, Power) and not self._believes(reading.energy_joules):
            drop("energy_joules", reading.energy_joules)
            return replace(reading, energy_joules=None)
        return reading

    def _believes(self, joules: float | None) -> bool:
        """Whether the energy has not fallen, or the next reading confirms that, as after a reset.

        A single reading of nearly 0 came while the counter went on (intel/compute-runtime#938), and
        lower ones (ROCm/amdsmi#115): Prometheus would add the whole counter once more.
        """
        if joules is None:
            return True
        if joules < self._energy and (self._doubted is None or joules < self._doubted):
            self._doubted = joules
            return False
        self._energy, self._doubted = joules, None
        return True


def _kept(reading: Any, name: str, possible: Range, drop: Drop) -> Any:  # noqa: ANN401 - any reading, the same comes back
    """`reading` without impossible values of part `name`; the same object if there are none."""
    value = getattr(reading, name)
    if isinstance(value, Mapping):
        kept = {key: one for key, one in value.items() if one in possible}
        for key in value.keys() - kept.keys():
            drop(f"{name} {key}", value[key])
        return reading if len(kept) == len(value) else replace(reading, **{name: kept})
    if value is None or value in possible:
        return reading
    drop(name, value)
    return replace(reading, **{name: None})


def _tell_samples(reading: Utilization, drop: Drop) -> None:
    for ring in (reading.gpu, reading.memory):
        for _ in range(sum(sample.percent is None for sample in ring.samples)):
            drop("samples", "not 0 to 100 %")
        for _ in range(ring.impossible):
            drop("timestamps", "a time in the future")


def _clamped(reading: Activity) -> Activity:
    shares: dict[str, Any] = {name: _share(getattr(reading, name)) for name in _SHARES}
    pipes = {name: min(max(ratio, 0.0), 1.0) for name, ratio in reading.pipes.items()}
    return replace(reading, pipes=pipes, **shares)


def _share(ratio: float | None) -> float | None:
    return None if ratio is None else min(max(ratio, 0.0), 1.0)


def _of_known_pids(reading: Processes, drop: Drop) -> Processes:
    known = tuple(one for one in reading.processes if one.pid in _PIDS)
    if len(known) == len(reading.processes):
        return reading
    drop("pid", len(reading.processes) - len(known))
    # Somebody holds the GPU, even if the pid is wrong.
    return replace(reading, processes=known, others_hidden=True)


def is_void(reading: Reading) -> bool:
    """Whether no value is left in it."""
    if isinstance(reading, Utilization):
        told = [sample.percent for sample in reading.gpu.samples]
        return all(percent is None for percent in (reading.gpu_percent, *told))
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    values.pop("interval_ns", None)
    return all(value is None or value == {} for value in values.values())
