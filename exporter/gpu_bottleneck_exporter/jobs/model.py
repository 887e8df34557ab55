"""Jobs and what their GPUs did, as `/api/v1/jobs` describes them.

Fields are the keys of the JSON; times are Unix seconds, amounts are GPU-seconds. None: unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import add
from typing import Annotated

from gpu_bottleneck_exporter.accounting.stall import VIDEO_ENGINE
from gpu_bottleneck_exporter.nodeview.model import parts_of
from gpu_bottleneck_exporter.prescription.model import Prescription, Score
from gpu_bottleneck_exporter.stacktraces.model import IdleLines

VERSION = 1
"""Of the documents."""
STEPS = 60
"""At most, of a timeline."""
MOST_SECONDS = 1e11
MOST_BYTES = 1e15
Bytes = Annotated[float, (0.0, MOST_BYTES)]
Seconds = Annotated[float, (0.0, MOST_SECONDS)]
Time = Annotated[float, (-1e10, MOST_SECONDS)]
DIGITS = 9
"""Decimals of numbers in a document: see `nodeview.wire.document`."""
_BRIEF = {"digits": 3}
"""Metadata of times, and of timelines, which are most of a document."""
_END = _BRIEF | {"null": True}


@dataclass(slots=True, eq=False)
class Use:
    """What GPUs did in GPU-seconds: observed ones are busy ones and stalls."""

    observed_seconds: Seconds = 0.0
    busy_seconds: Seconds = 0.0
    stall_seconds: dict[str, Seconds] = field(default_factory=dict)
    """By what they waited on."""

    @property
    def lost_seconds(self) -> float:
        """Idle time of GPUs, without that in which a video engine worked."""
        video = self.stall_seconds.get(VIDEO_ENGINE, 0.0)
        return max(self.observed_seconds - self.busy_seconds - video, 0.0)

    @property
    def busy_ratio(self) -> float | None:
        """The busy share; None if nothing was observed."""
        whole = self.observed_seconds
        return min(self.busy_seconds / whole, 1.0) if whole else None

    @property
    def stall_ratios(self) -> dict[str, float]:
        """Shares of the observed time, largest first."""
        most = sorted(self.stall_seconds.items(), key=lambda one: -one[1])
        whole = self.observed_seconds
        return {wait: seconds / whole for wait, seconds in most if seconds and whole}

    def add(self, other: Use, share: float = 1.0) -> None:
        """Add a share of what `other` did."""
        self.observed_seconds += share * other.observed_seconds
        self.busy_seconds += share * other.busy_seconds
        for wait, seconds in other.stall_seconds.items():
            self.stall_seconds[wait] = self.stall_seconds.get(wait, 0.0) + share * seconds


def total(uses: Iterable[Use]) -> Use:
    """The sum of `uses`."""
    found = Use()
    for use in uses:
        found.add(use)
    return found


@dataclass(slots=True, eq=False)
class Timeline:
    """Busy and idle time in `STEPS` steps, whose length doubles."""

    start_seconds: Time
    step_seconds: Annotated[float, (1e-3, MOST_SECONDS)] = 1.0
    spent_seconds: dict[str, list[Seconds]] = field(default_factory=dict)
    """In each step, by what was waited on or `KEPT_BUSY`."""

    def add(self, start: float, end: float, use: Use, share: float = 1.0) -> None:
        """Add a share of `use`, spread over the steps between two times."""
        start = max(start - self.start_seconds, 0.0)
        end = max(end - self.start_seconds, start + 1e-6)
        while end > STEPS * self.step_seconds:
            self._double()
        covered = [*steps(start, end, self.step_seconds, STEPS)]
        for name, seconds in parts_of(use.busy_seconds, use.stall_seconds).items():
            spent = self.spent_seconds.setdefault(name, [0.0] * STEPS)
            for step, part in covered:
                spent[step] += part * share * seconds

    def _double(self) -> None:
        self.step_seconds *= 2
        for spent in self.spent_seconds.values():
            spent[:] = [*map(add, spent[::2], spent[1::2]), *[0.0] * (STEPS // 2)]


def steps(start: float, end: float, length: float, most: int) -> Iterator[tuple[int, float]]:
    """Of the first `most` steps, each so long, those between two times, and the share in each."""
    for step in range(max(int(start / length), 0), min(math.ceil(end / length), most)):
        inside = min(end, (step + 1) * length) - max(start, step * length)
        yield step, inside / (end - start)


@dataclass(slots=True, eq=False, kw_only=True)
class Gpu(Use):
    """What a job had of one GPU or MIG instance."""

    gpu: str
    """Its index."""
    uuid: str
    node: str = ""
    model: str | None = None
    mig: str | None = None
    start_seconds: Time = field(metadata=_BRIEF)
    end_seconds: Time | None = field(default=None, metadata=_END)
    """None while a process of the job holds it."""
    pause_seconds: Seconds | None = None
    """Between start and end, without any process of the job."""
    energy_joules: Annotated[float, (0.0, 1e18)] | None = None
    memory_peak_bytes: Bytes | None = None
    memory_total_bytes: Bytes | None = None
    timeline: Timeline | None = field(default=None, metadata=_BRIEF)
    idle_lines: IdleLines | None = None
    """What the last looks at stacks found."""
    recommendation: Prescription | None = None
    score: Score | None = None

    def need(self, used_bytes: float | None) -> None:
        """Note how much memory it takes now."""
        if used_bytes is not None and used_bytes <= MOST_BYTES:
            self.memory_peak_bytes = max(self.memory_peak_bytes or 0, used_bytes)

    def shift(self, seconds: float) -> None:
        """Move all times by `seconds`, and round them: their clock was wrong."""
        self.start_seconds = round(self.start_seconds + seconds, 3)
        if self.end_seconds is not None:
            self.end_seconds = round(self.end_seconds + seconds, 3)
        if line := self.timeline:
            self.timeline = replace(line, start_seconds=round(line.start_seconds + seconds, 3))

    @property
    def name(self) -> str:
        """`GPU 3 on node7`."""
        return f"GPU {self.gpu[:8]}{f' ({self.mig[:100]})' if self.mig else ''} on {self.node}"

    @property
    def names(self) -> tuple[str, str, str]:
        """What may be asked for: `node7/3`, its uuid, its index."""
        return f"{self.node}/{self.gpu}", self.uuid, self.gpu


def end_of(gpus: Sequence[Gpu]) -> float | None:
    """When the last one was left; None while one is held."""
    ends = [gpu.end_seconds for gpu in gpus if gpu.end_seconds is not None]
    return max(ends, default=None) if len(ends) == len(gpus) else None


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Use):
    """A job, on one or more nodes, and what all its GPUs did."""

    id: str
    owner: dict[str, str] = field(default_factory=dict)
    """Fields of `workload.identity.Owner`, without empty ones."""
    command: str | None = None
    """The program that opened a GPU first, such as train.py, without its arguments."""
    claims: dict[str, str] = field(default_factory=dict)
    """Variables of its environment: anybody can set them to anything."""
    run: dict[str, str] = field(default_factory=dict)
    """What identifies the run of a Slurm job: see `jobs.runs`."""
    start_seconds: Time | None = field(default=None, metadata=_BRIEF)
    end_seconds: Time | None = field(default=None, metadata=_END)
    """None while it runs, or if it is unknown."""
    gpus: list[Gpu] = field(default_factory=list)
    """Empty where they are not known one by one."""

    def having(self, gpus: Iterable[Gpu]) -> Job:
        """The same with these GPUs, in order, from the first one's start to the last one's end."""
        found = sorted(gpus, key=lambda gpu: (gpu.node, len(gpu.gpu), gpu.gpu))
        start = min((gpu.start_seconds for gpu in found), default=None)
        did, end = asdict(total(found)), end_of(found)
        return replace(self, gpus=found, start_seconds=start, end_seconds=end, **did)

    @property
    def owner_name(self) -> str:
        """Whose label rules found, else the namespace, else the user."""
        of = self.owner
        return of.get("owner") or of.get("namespace") or of.get("user") or "unknown"

    @property
    def pod(self) -> str:
        """`namespace/pod`; empty if it is in none."""
        of = self.owner
        return f"{of.get('namespace', '')}/{of['pod']}" if of.get("pod") else ""

    @property
    def name(self) -> str:
        """What people call it: Slurm's number, its pod, else its id."""
        return self.owner.get("slurm_job_id") or self.pod or self.id
