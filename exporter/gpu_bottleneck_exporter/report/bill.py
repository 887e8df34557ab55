"""The query and the result of a report, and its sums."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from gpu_bottleneck_exporter.jobs.model import Job, Use, total

HOUR_SECONDS = 3600
MAX_LABEL_CHARACTERS = 253
"""Limit of names, as of Kubernetes and DNS."""


def utc(seconds: float) -> str:
    """Unix time `seconds` as `2026-11-29 09:30 UTC`."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


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
    currency: str = "EUR"
    layout: str = "text"
    deadline: float = 20.0
    ca_file: Path | None = None
    verbose: bool = False

    @property
    def seconds(self) -> float:
        """Length of the reported time."""
        return self.since or 24 * HOUR_SECONDS * (30 if self.job or self.pod else 7)


@dataclass
class JobReport:
    """The jobs that match a query, and problems."""

    query: ReportQuery
    jobs: list[Job] = field(default_factory=list)
    """Selected jobs; all jobs before the selection."""
    all_jobs: Sequence[Job] = ()
    """All jobs, set by the selection."""
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
