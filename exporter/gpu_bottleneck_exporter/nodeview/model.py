"""Readings of one node, and the shares and verdicts from them. None: unknown, never zero.

Units are those of the metrics: seconds, bytes, watts, degrees Celsius, hertz, ratios 0-1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_bottleneck_exporter.nodeview.outlook import Change, LastChange

DASH = "\u2013"
"""Shown for unknown values."""
ENOUGH = 0.9
"""A GPU with at least this busy share has no bottleneck to name."""
WORTH_NAMING = 0.005
"""Smaller shares are left out of lists."""
KEPT_BUSY = "busy"
"""The verdict from `ENOUGH` on; all others name what the GPU waited on."""


class Key(NamedTuple):
    """A GPU or MIG instance; the uuid is empty if it has never answered."""

    gpu: str
    """The index of the physical GPU."""
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Seconds since the exporter started."""

    observed: float
    busy: float
    stalls: Mapping[str, float]
    sm_active: float | None = None


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU or MIG instance at one moment."""

    key: Key
    up: bool = True
    down: str | None = None
    """Why it is down, if known; metrics do not contain it."""
    down_remedy: str | None = None
    """What to do about it, if known."""
    name: str | None = None
    mig_profile: str | None = None
    counters: GpuTime | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature: float | None = None
    slowdown_temperature: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    sm_clock: float | None = None
    sm_clock_max: float | None = None
    held_down_by: tuple[str, ...] = ()
    """Why the driver holds its clocks down now."""
    xids: Mapping[str, float] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()
    """What is wrong with its memory or link, in words."""
    processes: float | None = None
    workers: float | None = None
    owners: tuple[Mapping[str, str], ...] = ()
    """Labels of `gpu_workload_info` by name, without empty ones."""
    evidence: tuple[str, ...] = ()
    """What was seen behind the waiting, in words; metrics do not contain it."""
    pids: tuple[int, ...] | None = None
    """The visible holders; None: unknown. From `counted` only."""
    prescription: Change | None = None
    refused: str | None = None
    """Why nothing is prescribed: a key of `REFUSALS`."""
    last_change: LastChange | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine at one moment; CPU and pressure in seconds since boot."""

    cpus: float | None = None
    cpu_busy_seconds: float | None = None
    memory_total_bytes: float | None = None
    memory_available_bytes: float | None = None
    shm_size_bytes: float | None = None
    shm_used_bytes: float | None = None
    pressure_seconds: Mapping[str, float] = field(default_factory=dict)
    """By resource: time in which some tasks were held up."""


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """The state of a collector, over all GPUs."""

    name: str
    success: bool
    seconds: float | None = None
    last_success: float | None = None
    """Unix time."""
    error: str | None = None
    """None while it works; metrics do not contain it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that is shown of a node at one moment, except what needs two readings."""

    gpus: tuple[GpuReading, ...] = ()
    host: HostReading = HostReading()
    version: str | None = None
    driver_version: str | None = None
    simulated: bool = False
    status: str | None = None
    """The sampler's own sentence; metrics do not contain it."""
    remedy: str | None = None
    """What to do if there is no GPU; metrics do not contain it."""
    collectors: tuple[CollectorHealth, ...] = ()
    signals: Mapping[str, bool] = field(default_factory=dict)
    """Whether each is available."""
    signal_remedies: Mapping[str, str] = field(default_factory=dict)
    """For missing signals: what that costs, or the remedy; metrics do not contain it."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What a GPU did in `seconds` of observed time, as shares of it."""

    seconds: float
    busy: float
    stalls: Mapping[str, float]
    """Largest first, without zeros."""
    sm_active: float | None = None

    @property
    def named(self) -> Mapping[str, float]:
        """The stalls worth naming, largest first."""
        return {name: part for name, part in self.stalls.items() if part >= WORTH_NAMING}

    @property
    def verdict(self) -> str | None:
        """What it waited on most, or `KEPT_BUSY`; None if the split is unknown."""
        if self.busy >= ENOUGH:
            return KEPT_BUSY
        return next(iter(self.stalls), None)


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU, what it did lately, and the verdict on it."""

    now: GpuReading
    shares: Shares | None = None
    trend: tuple[Shares | None, ...] = ()
    """Shares per step, oldest first; None for a step without observation."""
    verdict_seconds: float | None = None
    """How long the verdict has been the same, at least."""

    @property
    def cause(self) -> str | None:
        """What it waits on; None if it is kept busy or down, or nothing is known."""
        verdict = self.shares.verdict if self.shares else None
        return None if verdict == KEPT_BUSY else verdict

    @property
    def prescription(self) -> Change | None:
        """What would help; None for a GPU that is kept busy: it may have been made before."""
        return None if self._needs_nothing else self.now.prescription

    @property
    def refused(self) -> str | None:
        """Why nothing is prescribed; None for a GPU that is kept busy."""
        return None if self._needs_nothing else self.now.refused

    @property
    def _needs_nothing(self) -> bool:
        return self.shares is not None and self.shares.verdict == KEPT_BUSY


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, ready to be shown."""

    now: Reading
    gpus: tuple[GpuView, ...] = ()
    cpu_busy: float | None = None
    """Share of all CPUs."""
    pressure: Mapping[str, float] = field(default_factory=dict)
    """By resource: share of the time in which some tasks were held up."""


def likely_cause(gpu: GpuView) -> str:
    """One word for a cell: the cause, `busy`, `down`, or a dash."""
    if not gpu.now.up:
        return "down"
    return (gpu.shares.verdict if gpu.shares else None) or DASH


def notices(gpu: GpuReading) -> list[str]:
    """What else somebody should know, in words."""
    found = [f"clocks held down: {reason}" for reason in gpu.held_down_by]
    found += [f"XID {code} ({count:.0f})" for code, count in gpu.xids.items()]
    return found + list(gpu.trouble)
