"""Jobs and what their GPUs did, as `/api/v1/jobs` describes them.

Fields are the keys of the JSON; times are Unix seconds, amounts GPU-seconds. None: unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from gpu_bottleneck_exporter.prescription.model import Prescription, Score

ID = re.compile(r"[A-Za-z0-9._-]{1,80}")
MOST_SECONDS = 1e11
Seconds = Annotated[float, (0.0, MOST_SECONDS)]


@dataclass(frozen=True, slots=True)
class Use:
    """What GPUs did in GPU-seconds: observed ones are busy ones and stalls."""

    observed_seconds: float = 0.0
    busy_seconds: float = 0.0
    stall_seconds: Mapping[str, float] = field(default_factory=dict)
    """By what they waited on."""

    @property
    def lost_seconds(self) -> float:
        """What was not busy."""
        return max(self.observed_seconds - self.busy_seconds, 0.0)

    @property
    def busy_ratio(self) -> float | None:
        """The busy share; None if nothing was observed."""
        return (
            min(self.busy_seconds / self.observed_seconds, 1.0) if self.observed_seconds else None
        )

    @property
    def stall_ratios(self) -> dict[str, float]:
        """Shares of the observed time, largest first."""
        most = sorted(self.stall_seconds.items(), key=lambda one: -one[1])
        return {cause: seconds / self.observed_seconds for cause, seconds in most if seconds}


def total(uses: Iterable[Use]) -> Use:
    """The sum of `uses`."""
    observed = busy = 0.0
    stalls: dict[str, float] = {}
    for use in uses:
        observed += use.observed_seconds
        busy += use.busy_seconds
        for cause, seconds in use.stall_seconds.items():
            stalls[cause] = stalls.get(cause, 0.0) + seconds
    return Use(observed, busy, stalls)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps from the first to the last."""

    start_seconds: Seconds
    step_seconds: Annotated[float, (1e-3, MOST_SECONDS)]
    busy: tuple[Seconds, ...]
    stall: tuple[Mapping[str, Seconds], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a job had of one GPU or MIG instance."""

    gpu: str
    uuid: str
    node: str = ""
    model: str | None = None
    mig: str | None = None
    start_seconds: Seconds
    end_seconds: Seconds | None = None
    observed_seconds: Seconds
    busy_seconds: Seconds
    unobserved_seconds: Seconds = 0.0
    stall_seconds: Mapping[str, Seconds] = field(default_factory=dict)
    shared_seconds: Seconds | None = None
    energy_joules: Annotated[float, (0.0, 1e18)] | None = None
    memory_peak_bytes: Annotated[float, (0.0, 1e15)] | None = None
    memory_total_bytes: Annotated[float, (0.0, 1e15)] | None = None
    timeline: Timeline | None = None
    recommendation: Prescription | None = None
    score: Score | None = None

    @property
    def use(self) -> Use:
        """What it did."""
        return Use(self.observed_seconds, self.busy_seconds, self.stall_seconds)

    @property
    def name(self) -> str:
        """`GPU 3 on node7`."""
        return f"GPU {self.gpu}{f' ({self.mig})' if self.mig else ''} on {self.node}"

    @property
    def names(self) -> tuple[str, str, str]:
        """What may be asked for: `node7/3`, its uuid, its index."""
        return f"{self.node}/{self.gpu}", self.uuid, self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job, on one or more nodes."""

    id: str
    owner: Mapping[str, str] = field(default_factory=dict)
    """Labels of `gpu_workload_info`, with or without `workload_` before them."""
    claims: Mapping[str, str] = field(default_factory=dict)
    start_seconds: Seconds | None = None
    end_seconds: Seconds | None = None
    """None while it runs, or if it is unknown."""
    gpus: tuple[Gpu, ...] = ()
    summed: Use | None = None
    """Of all its GPUs, where they are not known one by one."""

    @property
    def use(self) -> Use:
        """What its GPUs did."""
        return self.summed or total(gpu.use for gpu in self.gpus)

    @property
    def nodes(self) -> set[str]:
        """The nodes that its GPUs are on."""
        return {gpu.node for gpu in self.gpus}

    @property
    def boards(self) -> int:
        """The number of its GPUs or MIG instances."""
        return len({(gpu.node, gpu.uuid or gpu.gpu) for gpu in self.gpus})

    def ran_since(self, seconds: float | None) -> bool:
        """Whether it runs, or ended no earlier than this Unix time."""
        return seconds is None or self.end_seconds is None or self.end_seconds >= seconds

    def only(self, name: str) -> Job:
        """The same with those of its GPUs that are called so: index, `node/index` or uuid."""
        return replace(self, gpus=tuple(gpu for gpu in self.gpus if name in gpu.names))

    def label(self, name: str) -> str:
        """A label of its owner; empty if unknown."""
        return self.owner.get(name) or self.owner.get(f"workload_{name}", "")

    @property
    def owner_name(self) -> str:
        """The namespace, else the user."""
        return self.label("namespace") or self.label("user") or "unknown"

    @property
    def name(self) -> str:
        """What people call it: Slurm's number, `namespace/pod`, else its id."""
        pod = "/".join(filter(None, (self.label("namespace"), self.label("pod"))))
        return self.label("slurm_job_id") or (pod if self.label("pod") else self.id)
