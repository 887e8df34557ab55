"""The node document: what `/api/v1/node` and `--json` contain and people are shown.

Fields are the keys of the JSON (`wire` adds a few) and end in their unit, as in metrics:
seconds, bytes, watts, degrees Celsius, hertz, ratios 0-1. None (null): unknown, or nothing to
report; never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal, Score
from gpu_bottleneck_exporter.stacktraces.model import IdleLines

DASH = "\u2013"
"""Shown for unknown values."""
KEPT_BUSY = "busy"
"""The verdict on a GPU that has no bottleneck."""
MEASURING = "measuring"
"""The verdict while too little was seen; all others name what it waited on."""
WORTH_NAMING = 0.005
"""Smaller shares are left out of lists."""
Ratio = Annotated[float, (-1.0, 1.0)]
"""A share of 0 to 1, or a difference of two; `wire` refuses others."""
Parts = Mapping[str, float]
"""Shares of a GPU's time: `KEPT_BUSY`, then what it waited on, largest first."""


class Key(NamedTuple):
    """A GPU or MIG instance; the uuid is empty if it has never answered."""

    gpu: str
    """The index of the physical GPU."""
    uuid: str


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds a GPU, or one of its workers."""

    pid: int
    role: str
    """`main` or `worker`."""
    name: str | None = None
    """Of the script, or of the process."""
    user: str | None = None
    state: str | None = None
    """What the kernel calls it: running, sleeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU or MIG instance: what it is, what it did lately, why, and what to try."""

    gpu: str
    uuid: str
    name: str | None = None
    mig_profile: str | None = None
    counted_with: str | None = None
    """UUID of the MIG instance that has the figures of both, as they share a GPU instance."""
    up: bool
    down_reason: str | None = None
    holder_pids: tuple[int, ...] | None = None
    """Those that can be seen."""
    observed_seconds: float | None = None
    """The time of which the next three are shares."""
    busy_ratio: Ratio | None = None
    sm_active_ratio: Ratio | None = None
    engine_ratios: Mapping[str, Ratio] | None = None
    """Busy shares of its video engines."""
    stall_ratios: Mapping[str, Ratio] | None = None
    """By what it waited on, largest first."""
    trend: tuple[Mapping[str, Ratio], ...] = ()
    """Shares of each of its last steps of 5 s, oldest first; empty where nothing was observed.

    Of `top` without --url a step lasts as long as its interval.
    """
    verdict: str | None = None
    """What it waited on most, `KEPT_BUSY` or `MEASURING`."""
    verdict_seconds: float | None = None
    """How long the verdict has been the same, at least."""
    cause: str | None = None
    """The verdict, if that is a wait."""
    meaning: str | None = None
    """Of the cause, in words."""
    remedy: str | None = None
    """What to try first against the cause, or to get it up."""
    runbook: str | None = None
    """The name of an alert."""
    evidence: tuple[str, ...] | None = None
    """What was seen of the cause, in words."""
    idle_lines: IdleLines | None = None
    """None: the collector `stacks` is off."""
    prescription: Prescription | None = None
    prescription_refused: Refusal | None = None
    last_change: Score | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: float | None = None
    slowdown_temperature_celsius: float | None = None
    temperature_margin_celsius: float | None = None
    """Distance from the hottest sensor to its slowdown threshold."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    sm_clock_hertz: float | None = None
    sm_clock_max_hertz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Why the driver holds its clocks down now."""
    xid_errors: Mapping[str, int] | None = None
    """Counts by code, since the exporter started."""
    trouble: tuple[str, ...] | None = None
    """What is wrong with its memory or link, in words."""
    processes: int | None = None
    workers: int | None = None
    process_list: tuple[Process, ...] = ()
    """The first few of both."""
    owners: tuple[Mapping[str, str], ...] | None = None
    """Labels of `gpu_workload_info`, without empty ones."""

    @property
    def key(self) -> Key:
        """What it is known by."""
        return Key(self.gpu, self.uuid)

    @property
    def parts(self) -> Parts:
        """What it did lately; empty if unknown."""
        return {} if self.busy_ratio is None else parts_of(self.busy_ratio, self.stall_ratios or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine."""

    cpus: int | None = None
    cpu_busy_ratio: Ratio | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_size_bytes: int | None = None
    shm_used_bytes: int | None = None
    pressure_ratios: Mapping[str, Ratio] | None = None
    """By resource: share of the time in which some tasks were held up."""


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """The state of a collector, over all GPUs."""

    collector: str
    success: bool
    duration_seconds: float | None = None
    """Of its last reading, summed."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The whole document."""

    time_seconds: float
    """Unix time."""
    window_seconds: float
    """What shares cover at most."""
    version: str
    node: str | None = None
    """Its name, as in the ledger of jobs."""
    driver_version: str | None = None
    driver_status: str | None = None
    """One sentence."""
    driver_remedy: str | None = None
    """What to do if there is no GPU."""
    simulated: bool = False
    host: Host = Host()
    gpus: tuple[Gpu, ...] = ()
    signals: Mapping[str, bool] = field(default_factory=dict)
    """Whether each is available."""
    signal_remedies: Mapping[str, str] = field(default_factory=dict)
    """For missing signals: what that costs, or the remedy."""
    collectors: tuple[CollectorHealth, ...] = ()


def parts_of(busy: float, stalls: Mapping[str, float]) -> Parts:
    """Shares as one list."""
    return {KEPT_BUSY: busy, **stalls}


def named(parts: Parts) -> Parts:
    """The parts worth naming."""
    return {name: part for name, part in parts.items() if part >= WORTH_NAMING}
