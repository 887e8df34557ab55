"""The query and the result of a report, and its sums."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from gpu_bottleneck_exporter.jobs.model import Job, JobGpu, Use, total

HOUR_SECONDS = 3600
MAX_LABEL_CHARACTERS = 253
"""Limit of names, as of Kubernetes and DNS."""


def utc(seconds: float) -> str:
    """Unix time `seconds` as `2026-11-29 09:30 UTC`."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def energy_kwh(gpus: Collection[JobGpu]) -> float | None:
    """Sum of the energy; None if a part is unknown."""
    joules = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
    return sum(joules) / 3.6e6 if len(gpus) == len(joules) > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """The flags of `report`."""

    job: str | None = None
    pod: str | None = None
    gpu: str | None = None
    owner: str | None = None
    since: float | None = None
    """Seconds back from now."""
    limit: int = 20
    hourly_cost: float | None = None
    """Cost of a GPU-hour."""
    co2_per_kwh: float | None = None
    """Grams."""
    currency: str = "EUR"
    layout: str = "text"
    deadline: float = 20.0
    ca_file: Path | None = None
    verbose: bool = False

    @property
    def seconds(self) -> float:
        """Length of the reported time."""
        return self.since or 24 * HOUR_SECONDS * (30 if self.job or self.pod else 7)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The replicas of one model."""

    name: str
    """`namespace/deployment`."""
    cluster: str
    replicas: int
    replicas_needed: int
    """Replicas that would have held the most requests of the last week."""


@dataclass(slots=True, eq=False)
class Served:
    """The tokens of inference engines, and the GPU-seconds in which these ran."""

    tokens: dict[str, float] = field(default_factory=dict)
    """Tokens by phase, `prefill` and `decode`; empty if the engine counts none."""
    gpu_seconds: float = 0.0
    counted_seconds: float = 0.0
    """GPU-seconds of engines that count tokens."""
    unasked_seconds: float = 0.0
    """GPU-seconds without a request."""
    deployment: Deployment | None = None

    def add(self, other: Served) -> None:
        """Add another job's."""
        for phase, count in other.tokens.items():
            self.tokens[phase] = self.tokens.get(phase, 0.0) + count
        self.gpu_seconds += other.gpu_seconds
        self.counted_seconds += other.counted_seconds
        self.unasked_seconds += other.unasked_seconds

    @property
    def tokens_per_gpu_hour(self) -> float | None:
        """Prompt and generated tokens; None if none are counted, or for less than a second."""
        whole = self.counted_seconds
        if not self.tokens or whole < 1:
            return None
        return sum(self.tokens.values()) / whole * HOUR_SECONDS


@dataclass
class JobReport:
    """The jobs that match a query, and problems."""

    query: ReportQuery
    jobs: list[Job] = field(default_factory=list)
    """Selected jobs; all jobs before the selection."""
    all_jobs: Sequence[Job] = ()
    """All jobs, set by the selection."""
    served: Mapping[Job, Served] = field(default_factory=dict)
    """Output of jobs with an inference engine; empty without a Prometheus."""
    missing: list[str] = field(default_factory=list)
    """Sources that could not be read, a line each."""
    notes: list[str] = field(default_factory=list)
    """Other remarks, a line each."""
    source: str = ""
    """Source, such as `the ledger of node7:10170`."""
    time_seconds: float = field(default_factory=time.time)

    @cached_property
    def owners(self) -> Mapping[str, Use]:
        """Use by owner, largest loss first."""
        uses: dict[str, Use] = {}
        for job in self.jobs:
            uses.setdefault(job.owner_name, Use()).add(job)
        return dict(sorted(uses.items(), key=lambda item: (-item[1].lost_seconds, item[0])))

    @cached_property
    def use(self) -> Use:
        """Use by all jobs."""
        return total(self.owners.values())

    @cached_property
    def served_by_owner(self) -> Mapping[str, Served]:
        """Sums by owner that has an inference engine."""
        sums: dict[str, Served] = {}
        for job in self.jobs:
            if part := self.served.get(job):
                sums.setdefault(job.owner_name, Served()).add(part)
        return sums

    @cached_property
    def all_served(self) -> Served | None:
        """The sum of all jobs; None if none serves."""
        whole = Served()
        for part in self.served_by_owner.values():
            whole.add(part)
        return whole if self.served_by_owner else None

    @cached_property
    def deployments(self) -> Sequence[Deployment]:
        """Deployments of the jobs, most superfluous replicas first."""
        parts = (self.served.get(job) for job in self.jobs)
        distinct = {part.deployment for part in parts if part and part.deployment}
        return sorted(distinct, key=lambda of: (of.replicas_needed - of.replicas, of.name))

    @property
    def since(self) -> str:
        """Beginning of the reported time."""
        return utc(self.time_seconds - self.query.seconds)

    @property
    def listed(self) -> Sequence[Job]:
        """Jobs up to the limit."""
        return self.jobs[: self.query.limit]

    @property
    def single(self) -> Job | None:
        """The job, if there is only one."""
        return self.jobs[0] if len(self.jobs) == 1 else None

    def cost(self, use: Use) -> float | None:
        """Cost of the lost time; None without a price."""
        price = self.query.hourly_cost
        return None if price is None else use.lost_seconds / HOUR_SECONDS * price

    def co2_kg(self, kwh: float | None) -> float | None:
        """Kilograms of CO2; None if unknown."""
        grams = self.query.co2_per_kwh
        return None if kwh is None or grams is None else kwh * grams / 1000
