"""What a job did with its GPUs: sums in integer nanoseconds of monotonic time, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

VERSION = 1
"""Of the documents."""
STEPS = 60
"""At most, of a timeline."""
_STEP_NS = 1_000_000_000
"""The first length of a step."""


class Span(NamedTuple):
    """A stretch of one GPU's time."""

    start_ns: int
    end_ns: int
    active_ns: int = 0
    stalls: Mapping[str, int] = {}
    """Idle nanoseconds by what the GPU waited on."""
    unobserved_ns: int = 0
    joules: float = 0.0

    @property
    def observed_ns(self) -> int:
        """The time that the driver's samples cover."""
        return self.active_ns + sum(self.stalls.values())

    def shared(self, among: int) -> list[Span]:
        """Equal parts, which add up."""
        return [
            self._replace(
                active_ns=portion(self.active_ns, at, at + 1, among),
                stalls={c: portion(ns, at, at + 1, among) for c, ns in self.stalls.items()},
                unobserved_ns=portion(self.unobserved_ns, at, at + 1, among),
                joules=self.joules / among,
            )
            for at in range(among)
        ]


def portion(total: int, start: int, end: int, whole: int) -> int:
    """What of `total` lies from `start` to `end` of `whole`: neighbours add up exactly."""
    return total * end // whole - total * start // whole


@dataclass(slots=True)
class Timeline:
    """Busy and idle time in at most `STEPS` steps, whose length doubles."""

    start_ns: int
    step_ns: int = _STEP_NS
    busy: list[int] = field(default_factory=list)
    stall: list[dict[str, int]] = field(default_factory=list)

    def add(self, span: Span) -> None:
        """Add a span; what lies in several steps is spread over them."""
        start = max(span.start_ns - self.start_ns, 0)
        end = max(span.end_ns - self.start_ns, start + 1)
        while end > STEPS * self.step_ns:
            self._double()
        for step in range(start // self.step_ns, (end - 1) // self.step_ns + 1):
            while len(self.busy) <= step:
                self.busy.append(0)
                self.stall.append({})
            edges = (min(max(e * self.step_ns, start), end) - start for e in (step, step + 1))
            share = (*edges, end - start)
            self.busy[step] += portion(span.active_ns, *share)
            stalls = self.stall[step]
            for cause, ns in span.stalls.items():
                stalls[cause] = stalls.get(cause, 0) + portion(ns, *share)

    def _double(self) -> None:
        self.step_ns *= 2
        self.busy = [sum(self.busy[at : at + 2]) for at in range(0, len(self.busy), 2)]
        first, second = self.stall[::2], [*self.stall[1::2], {}]
        self.stall = [
            {c: one.get(c, 0) + two.get(c, 0) for c in one | two}
            for one, two in zip(first, second, strict=False)
        ]


@dataclass(slots=True, eq=False)
class Use:
    """What a job did with one GPU or MIG instance."""

    gpu: Mapping[str, str]
    """`gpu` (index), `uuid`, `model` and `mig`, as far as they are known."""
    start_ns: int
    until_ns: int
    """When its last process left; while it has one, when that was last seen."""
    held: int = 0
    """How many of its processes hold the GPU now."""
    busy_ns: int = 0
    stall_ns: dict[str, int] = field(default_factory=dict)
    unobserved_ns: int = 0
    shared_ns: int = 0
    joules: float | None = None
    peak_bytes: int | None = None
    total_bytes: int | None = None
    timeline: Timeline = field(init=False)
    told: dict[str, Any] = field(default_factory=dict)
    """`recommendation` and `score`, as JSON."""

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.start_ns)

    def add(self, span: Span, *, shared: bool) -> None:
        """Add its part of a span."""
        self.busy_ns += span.active_ns
        for cause, ns in span.stalls.items():
            self.stall_ns[cause] = self.stall_ns.get(cause, 0) + ns
        self.unobserved_ns += span.unobserved_ns
        if span.joules:
            self.joules = (self.joules or 0.0) + span.joules
        if span.active_ns or span.stalls:
            self.shared_ns += span.observed_ns if shared else 0
            self.timeline.add(span)

    def need(self, used_bytes: int | None) -> None:
        """Note how much memory it has now."""
        if used_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, used_bytes)


@dataclass(slots=True, eq=False)
class Job:
    """The uses of an owner."""

    id: str
    owner: dict[str, str]
    """Fields of `workload.identity.Owner`, without empty ones."""
    claims: dict[str, str]
    """Variables of its environment: anybody can set them to anything."""
    epoch_ns: int
    """Unix time less monotonic time, when it was first seen: a clock that is set moves no job."""
    uses: dict[str, Use] = field(default_factory=dict)
    """By GPU uuid."""

    @property
    def start_ns(self) -> int:
        """When its first process came."""
        return min((use.start_ns for use in self.uses.values()), default=0)

    @property
    def until_ns(self) -> int:
        """When its last process left, or was last seen."""
        return max((use.until_ns for use in self.uses.values()), default=0)

    @property
    def runs(self) -> bool:
        """Whether one of its processes holds a GPU."""
        return any(use.held for use in self.uses.values())

    def unix(self, at_ns: int) -> float:
        """Unix seconds of monotonic `at_ns`."""
        return round((at_ns + self.epoch_ns) / 1e9, 3)

    def document(self) -> dict[str, Any]:
        """It as JSON; what is unknown is left out."""
        return {
            "id": self.id,
            "owner": self.owner,
            **({"claims": self.claims} if self.claims else {}),
            "start_seconds": self.unix(self.start_ns),
            "end_seconds": None if self.runs else self.unix(self.until_ns),
            "gpus": [self._use(use) for use in self.uses.values()],
        }

    def _use(self, use: Use) -> dict[str, Any]:
        line, known = use.timeline, {**use.gpu, **use.told}
        if use.joules is not None:
            known["energy_joules"] = round(use.joules, 3)
        for name, value in (("peak", use.peak_bytes), ("total", use.total_bytes)):
            if value is not None:
                known[f"memory_{name}_bytes"] = value
        return known | {
            "start_seconds": self.unix(use.start_ns),
            "end_seconds": None if use.held else self.unix(use.until_ns),
            "observed_seconds": (use.busy_ns + sum(use.stall_ns.values())) / 1e9,
            "busy_seconds": use.busy_ns / 1e9,
            "unobserved_seconds": use.unobserved_ns / 1e9,
            "stall_seconds": {cause: ns / 1e9 for cause, ns in use.stall_ns.items() if ns},
            "shared_seconds": use.shared_ns / 1e9,
            "timeline": {
                "start_seconds": self.unix(line.start_ns),
                "step_seconds": line.step_ns / 1e9,
                "busy": [round(ns / 1e9, 3) for ns in line.busy],
                "stall": [
                    {c: round(ns / 1e9, 3) for c, ns in by.items() if ns} for by in line.stall
                ],
            },
        }


def resumed(found: Mapping[str, Any], saved_ns: int, epoch_ns: int) -> Job:
    """The job that a document describes, to be continued; nothing of it holds a GPU yet.

    `saved_ns`: when the document was made; `epoch_ns`: as in `Job`. Raises LookupError, TypeError
    or ValueError for what is no such document.
    """

    def mono(seconds: float) -> int:
        return _ns(seconds) - epoch_ns

    job = Job(found["id"], dict(found["owner"]), dict(found.get("claims", {})), epoch_ns)
    for gpu in found["gpus"]:
        end = gpu["end_seconds"]
        use = Use(
            gpu={k: gpu[k] for k in ("gpu", "uuid", "model", "mig") if k in gpu},
            start_ns=mono(gpu["start_seconds"]),
            until_ns=saved_ns if end is None else mono(end),
            busy_ns=_ns(gpu["busy_seconds"]),
            stall_ns={cause: _ns(s) for cause, s in gpu["stall_seconds"].items()},
            unobserved_ns=_ns(gpu["unobserved_seconds"]),
            shared_ns=_ns(gpu["shared_seconds"]),
            joules=gpu.get("energy_joules"),
            peak_bytes=gpu.get("memory_peak_bytes"),
            total_bytes=gpu.get("memory_total_bytes"),
            told={k: gpu[k] for k in ("recommendation", "score") if k in gpu},
        )
        line = gpu["timeline"]
        use.timeline = Timeline(
            mono(line["start_seconds"]),
            _ns(line["step_seconds"]),
            [_ns(s) for s in line["busy"]],
            [{cause: _ns(s) for cause, s in by.items()} for by in line["stall"]],
        )
        job.uses[gpu["uuid"]] = use
    return job


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
