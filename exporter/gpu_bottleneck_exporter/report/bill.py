"""What is asked for, what was found, and its sums."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from gpu_bottleneck_exporter.jobs.model import Job, Use, total

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400


def utc(seconds: float) -> str:
    """Unix time `seconds` as `2026-11-29 09:30 UTC`."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the flags of `report` ask for."""

    job: str | None = None
    pod: str | None = None
    gpu: str | None = None
    owner: str | None = None
    since: float | None = None
    """Seconds back from now."""
    limit: int = 20
    hourly_cost: float | None = None
    """Of a GPU."""
    currency: str = "EUR"
    layout: str = "text"
    deadline: float = 20.0
    ca_file: Path | None = None
    verbose: bool = False

    @property
    def seconds(self) -> float:
        """How far back to look."""
        return self.since or DAY_SECONDS * (30 if self.job or self.pod else 7)


@dataclass
class Bill:
    """All that is reported."""

    wanted: Wanted
    jobs: list[Job] = field(default_factory=list)
    """Those that are asked for; before they are selected, all that were read."""
    read: Sequence[Job] = ()
    """All that were read, once the others are selected."""
    missing: list[str] = field(default_factory=list)
    """What could not be read, one line each."""
    notes: list[str] = field(default_factory=list)
    """What could, but is worth knowing."""
    source: str = ""
    """Where jobs were looked for, as `the ledger of node7:10170`."""
    time_seconds: float = field(default_factory=time.time)

    @cached_property
    def owners(self) -> Mapping[str, Use]:
        """What the jobs of each did, the largest loss first."""
        found: dict[str, Use] = {}
        for job in self.jobs:
            found.setdefault(job.owner_name, Use()).add(job)
        return dict(sorted(found.items(), key=lambda one: (-one[1].lost_seconds, one[0])))

    @cached_property
    def use(self) -> Use:
        """What all jobs did."""
        return total(self.owners.values())

    @property
    def since(self) -> str:
        """The beginning of the time that is reported."""
        return utc(self.time_seconds - self.wanted.seconds)

    @property
    def listed(self) -> Sequence[Job]:
        """As many jobs as are wanted."""
        return self.jobs[: self.wanted.limit]

    @property
    def single(self) -> Job | None:
        """The job, if it is the only one."""
        return self.jobs[0] if len(self.jobs) == 1 else None

    def cost(self, use: Use) -> float | None:
        """The cost of what was lost; None without a price."""
        price = self.wanted.hourly_cost
        return None if price is None else use.lost_seconds / HOUR_SECONDS * price
