"""The documents of `/api/v1/jobs`: jobs and the use of their GPUs.

Fields are JSON keys; times are Unix seconds, amounts GPU-seconds. None: unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import add
from typing import Annotated

from gpu_bottleneck_exporter.accounting.stall import VIDEO_ENGINE
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, parts_of
from gpu_bottleneck_exporter.prescription.model import Prescription, Score
from gpu_bottleneck_exporter.stacktraces.model import IdleLines

DOCUMENT_VERSION = 1
"""Version of the documents."""
TIMELINE_STEPS = 60
MAX_DURATION_SECONDS = 1e11
_MAX_MEMORY_BYTES = 1e15
Bytes = Annotated[float, (0.0, _MAX_MEMORY_BYTES)]
Seconds = Annotated[float, (0.0, MAX_DURATION_SECONDS)]
Time = Annotated[float, (-1e10, MAX_DURATION_SECONDS)]
MAX_DECIMALS = 9
"""Decimals in documents."""
_BRIEF = {"digits": 3}
"""Metadata of times and timelines."""
_END = _BRIEF | {"null": True}


@dataclass(slots=True, eq=False)
class Use:
    """The use of GPUs in GPU-seconds: observed = busy + stalls."""

    observed_seconds: Seconds = 0.0
    busy_seconds: Seconds = 0.0
    stall_seconds: dict[str, Seconds] = field(default_factory=dict)
    """GPU-seconds by `waiting_on`."""
    estimated_seconds: Seconds | None = 0.0
    """Observed time that is an equal share of several jobs' time."""

    @property
    def lost_seconds(self) -> float:
        """Idle time, without that of a working video engine."""
        video = self.stall_seconds.get(VIDEO_ENGINE, 0.0)
        return max(self.observed_seconds - self.busy_seconds - video, 0.0)

    @property
    def busy_ratio(self) -> float | None:
        """Busy share of the observed time; None if nothing was observed."""
        whole = self.observed_seconds
        return min(self.busy_seconds / whole, 1.0) if whole else None

    @property
    def stall_ratios(self) -> dict[str, float]:
        """Shares of the observed time, largest first."""
        largest_first = sorted(self.stall_seconds.items(), key=lambda item: -item[1])
        whole = self.observed_seconds
        return {wait: seconds / whole for wait, seconds in largest_first if seconds and whole}

    def add(self, other: Use, share: float = 1.0) -> None:
        """Add a share of `other`."""
        self.observed_seconds += share * other.observed_seconds
        self.busy_seconds += share * other.busy_seconds
        for wait, seconds in other.stall_seconds.items():
            self.stall_seconds[wait] = self.stall_seconds.get(wait, 0.0) + share * seconds
        if other.estimated_seconds is None:
            self.estimated_seconds = None
        elif self.estimated_seconds is not None:
            self.estimated_seconds += share * other.estimated_seconds


def total(uses: Iterable[Use]) -> Use:
    """The sum of `uses`."""
    result = Use()
    for use in uses:
        result.add(use)
    return result


@dataclass(slots=True, eq=False)
class Timeline:
    """Busy and idle time in steps of a length that doubles as needed."""

    start_seconds: Time
    step_seconds: Annotated[float, (1e-3, MAX_DURATION_SECONDS)] = 1.0
    spent_seconds: dict[str, list[Seconds]] = field(default_factory=dict)
    """GPU-seconds in each step, by `waiting_on` or `KEPT_BUSY`."""

    def add(self, start: float, end: float, use: Use) -> None:
        """Add `use`, spread evenly from `start` to `end`."""
        start = max(start - self.start_seconds, 0.0)
        end = max(end - self.start_seconds, start + 1e-6)
        while end > TIMELINE_STEPS * self.step_seconds:
            self._double()
        covered = [*steps(start, end, self.step_seconds, TIMELINE_STEPS)]
        for name, seconds in parts_of(use.busy_seconds, use.stall_seconds).items():
            spent = self.spent_seconds.setdefault(name, [0.0] * TIMELINE_STEPS)
            for step, part in covered:
                spent[step] += part * seconds

    def share_since(self, begin: float, name: str) -> float:
        """Share of the time of `name` that is later than `begin`; 1 if unknown."""
        spent = self.spent_seconds.get(name, ())
        at = (begin - self.start_seconds) / self.step_seconds
        later = sum(part * min(max(i + 1 - at, 0.0), 1.0) for i, part in enumerate(spent))
        return later / whole if (whole := sum(spent)) else 1.0

    def _double(self) -> None:
        self.step_seconds *= 2
        for spent in self.spent_seconds.values():
            spent[:] = [*map(add, spent[::2], spent[1::2]), *[0.0] * (TIMELINE_STEPS // 2)]


def steps(start: float, end: float, length: float, count: int) -> Iterator[tuple[int, float]]:
    """The first `count` steps of `length` that overlap the span, with its share in each."""
    for step in range(max(int(start / length), 0), min(math.ceil(end / length), count)):
        inside = min(end, (step + 1) * length) - max(start, step * length)
        yield step, inside / (end - start)


@dataclass(slots=True, eq=False, kw_only=True)
class JobGpu(Use):
    """A job's use of one GPU or MIG instance."""

    gpu: str
    """Index."""
    uuid: str
    estimated_seconds: Seconds | None = None
    node: str = ""
    model: str | None = None
    mig: str | None = None
    start_seconds: Time = field(metadata=_BRIEF)
    end_seconds: Time | None = field(default=None, metadata=_END)
    """None while a process of the job holds the GPU."""
    pause_seconds: Seconds | None = None
    """Time between start and end without any process of the job."""
    energy_joules: Annotated[float, (0.0, 1e18)] | None = None
    memory_peak_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    timeline: Timeline | None = field(default=None, metadata=_BRIEF)
    idle_lines: IdleLines | None = None
    recommendation: Prescription | None = None
    score: Score | None = None

    def record_memory(self, used_bytes: float | None) -> None:
        """Update the peak memory."""
        if used_bytes is not None and used_bytes <= _MAX_MEMORY_BYTES:
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, used_bytes)

    def since(self, begin: float) -> JobGpu:
        """The use since `begin`, by the timeline; all without one."""
        line = self.timeline
        if not line or self.start_seconds >= begin:
            return self
        busy = self.busy_seconds * line.share_since(begin, KEPT_BUSY)
        stalls = {
            wait: seconds * line.share_since(begin, wait)
            for wait, seconds in self.stall_seconds.items()
        }
        observed = busy + sum(stalls.values())
        share = observed / self.observed_seconds if self.observed_seconds else 0.0
        estimated, joules = self.estimated_seconds, self.energy_joules
        return replace(
            self,
            observed_seconds=observed,
            busy_seconds=busy,
            stall_seconds=stalls,
            estimated_seconds=None if estimated is None else share * estimated,
            energy_joules=None if joules is None else share * joules,
        )

    def shift(self, seconds: float) -> None:
        """Shift all times, and round them."""
        self.start_seconds = round(self.start_seconds + seconds, 3)
        if self.end_seconds is not None:
            self.end_seconds = round(self.end_seconds + seconds, 3)
        if self.timeline:
            start = round(self.timeline.start_seconds + seconds, 3)
            self.timeline = replace(self.timeline, start_seconds=start)

    @property
    def name(self) -> str:
        """`GPU 3 on node7`."""
        return f"GPU {self.gpu[:8]}{f' ({self.mig[:100]})' if self.mig else ''} on {self.node}"

    @property
    def names(self) -> tuple[str, str, str]:
        """Accepted names: `node7/3`, the uuid, the index."""
        return f"{self.node}/{self.gpu}", self.uuid, self.gpu


def end_of(gpus: Sequence[JobGpu]) -> float | None:
    """End of the last tenancy; None while a GPU is held."""
    ends = [gpu.end_seconds for gpu in gpus if gpu.end_seconds is not None]
    return max(ends, default=None) if len(ends) == len(gpus) else None


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Use):
    """A job, and the use of all its GPUs."""

    id: str
    owner: dict[str, str] = field(default_factory=dict)
    """Fields of `workload.identity.Owner`."""
    command: str | None = None
    """First program that opened a GPU, such as train.py."""
    claims: dict[str, str] = field(default_factory=dict)
    """Environment variables, which any user can set."""
    run: dict[str, str] = field(default_factory=dict)
    """Identifiers of the run of a Slurm job (`jobs.runs`)."""
    start_seconds: Time | None = field(default=None, metadata=_BRIEF)
    end_seconds: Time | None = field(default=None, metadata=_END)
    """None while the job runs, or if unknown."""
    gpus: list[JobGpu] = field(default_factory=list)
    """Empty if only totals are known."""

    def having(self, gpus: Iterable[JobGpu]) -> Job:
        """A copy with `gpus`, sorted, and their times and totals."""
        by_name = sorted(gpus, key=lambda gpu: (gpu.node, len(gpu.gpu), gpu.gpu))
        start = min((gpu.start_seconds for gpu in by_name), default=None)
        use, end = asdict(total(by_name)), end_of(by_name)
        return replace(self, gpus=by_name, start_seconds=start, end_seconds=end, **use)

    @property
    def owner_name(self) -> str:
        """Owner label that rules recorded, else the namespace, else the user."""
        of = self.owner
        return of.get("owner") or of.get("namespace") or of.get("user") or "unknown"

    @property
    def pod(self) -> str:
        """`namespace/pod`; empty outside a pod."""
        of = self.owner
        return f"{of.get('namespace', '')}/{of['pod']}" if of.get("pod") else ""

    @property
    def name(self) -> str:
        """Display name: Slurm's number, else the pod, else the id."""
        return self.owner.get("slurm_job_id") or self.pod or self.id
