"""Readings of one node, and what they come to over a minute. None: not known, never zero.

Units are those of the metrics: seconds, bytes, watts, degrees Celsius, hertz, ratios 0-1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DASH = "\u2013"
"""Stands for what is not known."""
ENOUGH = 0.9
"""A GPU busy for so much of the time has no bottleneck to name; as in `check --diagnose`."""
KEPT_BUSY = "busy"
"""The verdict on such a GPU; all others are what it waited on."""


class Key(NamedTuple):
    """A GPU or MIG instance; one that has never answered has no uuid."""

    gpu: str
    """The index of the physical GPU."""
    uuid: str


@dataclass(frozen=True, slots=True)
class Counters:
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
    """Why it is down, where that is known: metrics do not tell."""
    down_remedy: str | None = None
    """What to do about it, where that is known."""
    name: str | None = None
    mig_profile: str | None = None
    counters: Counters | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature: float | None = None
    slowdown_temperature: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    sm_clock: float | None = None
    sm_clock_max: float | None = None
    held_down_by: tuple[str, ...] = ()
    """Why the driver holds its clocks down at the moment."""
    xids: Mapping[str, float] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()
    """What is wrong with its memory or link, in words."""
    processes: float | None = None
    workers: float | None = None
    owners: tuple[Mapping[str, str], ...] = ()
    """Labels of `gpu_workload_info` by their names, without those that are empty."""
    evidence: tuple[str, ...] = ()
    """What was seen behind the waiting, in words; metrics do not tell."""


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
    """By resource, some tasks held up."""


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """How a collector fared, over all GPUs."""

    name: str
    success: bool
    seconds: float | None = None
    last_success: float | None = None
    """Unix time."""
    error: str | None = None
    """Metrics do not tell; None too while it works."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that is shown of a node at one moment, but for what takes two of them."""

    gpus: tuple[GpuReading, ...] = ()
    host: HostReading = HostReading()
    version: str | None = None
    driver_version: str | None = None
    simulated: bool = False
    status: str | None = None
    """The sampler's own sentence; metrics do not tell."""
    remedy: str | None = None
    """What to do where there is no GPU; metrics do not tell."""
    collectors: tuple[CollectorHealth, ...] = ()
    signals: Mapping[str, bool] = field(default_factory=dict)
    """Whether each is given; see `remedies.OF_SIGNALS`."""


@dataclass(frozen=True, slots=True)
class Shares:
    """What a GPU did over `seconds` of observed time, in shares of them."""

    seconds: float
    busy: float
    stalls: Mapping[str, float]
    """Largest first, without those that are zero."""
    sm_active: float | None = None

    @property
    def verdict(self) -> str | None:
        """What it waited on most, or that it was kept busy; None where the split is not known."""
        if self.busy >= ENOUGH:
            return KEPT_BUSY
        return next(iter(self.stalls), None)


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU, what it did lately, and the verdict on it."""

    now: GpuReading
    shares: Shares | None = None
    trend: tuple[Shares | None, ...] = ()
    """Step by step, oldest first; None for a step without observation."""
    verdict_seconds: float | None = None
    """For how long the verdict has been the same, at least."""

    @property
    def cause(self) -> str | None:
        """What it waits on; None where it is kept busy, down, or nothing is known."""
        verdict = self.shares.verdict if self.shares else None
        return None if verdict == KEPT_BUSY else verdict


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
    """What somebody should know besides, in words."""
    found = [f"clocks held down: {reason}" for reason in gpu.held_down_by]
    found += [f"XID {code} ({count:.0f})" for code, count in gpu.xids.items()]
    return found + list(gpu.trouble)
