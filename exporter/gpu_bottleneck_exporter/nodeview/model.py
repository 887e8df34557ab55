"""The node document of `/api/v1/node`, `--json` and the displays.

Fields are the JSON keys and end in their unit: seconds, bytes, watts, degrees Celsius, hertz,
ratios 0-1. None (null) is unknown or nothing to report, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.nodeview.thresholds import MIN_SHOWN_RATIO
from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal, Score
from gpu_bottleneck_exporter.stacktraces.model import IdleLines

DASH = "\u2013"
"""Placeholder for unknown values."""
KEPT_BUSY = "busy"
"""Verdict on a GPU without a bottleneck."""
MEASURING = "measuring"
"""Verdict before enough was observed; all others are `waiting_on` values."""
Ratio = Annotated[float, (-1.0, 1.0)]
"""A share of 0 to 1, or a difference of two; `wire` rejects others."""
Parts = Mapping[str, float]
"""Shares of a GPU's time: `KEPT_BUSY`, then its waits, largest first."""


class Key(NamedTuple):
    """Identifies a GPU or MIG instance."""

    gpu: str
    """Index of the physical GPU."""
    uuid: str
    """Empty if the GPU has never answered."""


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A holder of a GPU, or one of its workers."""

    pid: int
    role: str
    """`main` or `worker`."""
    name: str | None = None
    """Name of the script, or else of the process."""
    user: str | None = None
    state: str | None = None
    """Scheduler state, such as running or sleeping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatus:
    """A tenant's part of a shared GPU's time in the last 5 min."""

    tenant: str
    """Label of the metrics."""
    owner: Mapping[str, str] | None = None
    """Non-empty labels of `gpu_workload_info`."""
    busy_seconds: float
    busy_share_ratio: Ratio | None = None
    """Share of all tenants' busy time."""
    stall_seconds: Mapping[str, float]
    """Idle time by `waiting_on`, largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """A GPU or MIG instance: its recent activity, the cause of its waits and the remedy."""

    gpu: str
    uuid: str
    name: str | None = None
    mig_profile: str | None = None
    counted_with: str | None = None
    """UUID of the MIG instance that reports for its whole GPU instance."""
    up: bool
    down_reason: str | None = None
    holder_pids: tuple[int, ...] | None = None
    """Visible holders."""
    observed_seconds: float | None = None
    """Time that the ratios below are shares of."""
    busy_ratio: Ratio | None = None
    sm_active_ratio: Ratio | None = None
    engine_ratios: Mapping[str, Ratio] | None = None
    """Busy share by video engine."""
    stall_ratios: Mapping[str, Ratio] | None = None
    """Share by `waiting_on`, largest first."""
    trend: tuple[Mapping[str, Ratio], ...] = ()
    """Parts of each of the last steps of 5 s, oldest first; empty where nothing was observed."""
    verdict: str | None = None
    """The largest wait, `KEPT_BUSY` or `MEASURING`."""
    verdict_seconds: float | None = None
    """Minimum age of the verdict."""
    cause: str | None = None
    """The verdict, if it is a wait."""
    meaning: str | None = None
    remedy: str | None = None
    """First thing to try against the cause, or to bring the GPU up."""
    runbook: str | None = None
    """Name of the runbook, which is that of an alert."""
    evidence: tuple[str, ...] | None = None
    """Findings that support the cause."""
    serving: Serving | None = None
    """The clients of its server; None if it has none, or if unknown."""
    idle_lines: IdleLines | None = None
    """Sampled lines of code; None if the collector `stacks` is off."""
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
    """Active reasons for reduced clocks."""
    xid_errors: Mapping[str, int] | None = None
    """Count by code, since the exporter started."""
    trouble: tuple[str, ...] | None = None
    """Problems with memory or link."""
    processes: int | None = None
    workers: int | None = None
    process_list: tuple[ProcessEntry, ...] = ()
    """The first few holders and workers."""
    owners: tuple[Mapping[str, str], ...] | None = None
    """Non-empty labels of `gpu_workload_info`."""
    tenants: tuple[TenantStatus, ...] | None = None
    """Largest first; None unless the GPU is shared."""

    @property
    def key(self) -> Key:
        """Index and uuid."""
        return Key(self.gpu, self.uuid)

    @property
    def parts(self) -> Parts:
        """Recent shares; empty if unknown."""
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
    """PSI "some" share by resource."""


@dataclass(frozen=True, slots=True)
class CollectorHealth:
    """The state of a collector over all GPUs."""

    collector: str
    success: bool
    duration_seconds: float | None = None
    """Duration of the last reading, summed over GPUs."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The whole document."""

    time_seconds: float
    """Unix time."""
    window_seconds: float
    """Maximum time that shares cover."""
    version: str
    node: str | None = None
    """Name of the node, as in the job ledger."""
    driver_version: str | None = None
    driver_status: str | None = None
    driver_remedy: str | None = None
    simulated: bool = False
    host: Host = Host()
    gpus: tuple[GpuStatus, ...] = ()
    signals: Mapping[str, bool] = field(default_factory=dict)
    signal_remedies: Mapping[str, str] = field(default_factory=dict)
    """Consequence or remedy by missing signal."""
    collectors: tuple[CollectorHealth, ...] = ()


def parts_of(busy: float, stalls: Mapping[str, float]) -> Parts:
    """Busy and stall shares in one mapping."""
    return {KEPT_BUSY: busy, **stalls}


def named(parts: Parts) -> Parts:
    """The parts of at least `MIN_SHOWN_RATIO`."""
    return {name: part for name, part in parts.items() if part >= MIN_SHOWN_RATIO}
