"""What jobs lost, to what, and what would have helped: arithmetic only."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from gpu_bottleneck_exporter.accounting.stall import PEER
from gpu_bottleneck_exporter.jobs.model import VERSION, Gpu, Job, Use, steps, total
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.wire import document as plain
from gpu_bottleneck_exporter.prescription.model import Prescription

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400
_CLEARLY = 0.05
"""A GPU is the slowest if it lost so much more of its time than the others."""
_LEAST_RETURNED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Change:
    """What to do first about a job."""

    cause: str
    """What it is against (`WAITING_ON`)."""
    knob: str | None = None
    """A key of `remedies.SETTINGS`; None: the usual remedy against the cause."""
    current_value: float | None = None
    value: float | None = None
    gpus: tuple[str, ...] = ()
    """The names of those for which it was recommended."""
    returned_seconds: float = 0.0
    """GPU-seconds that the same work would have left over; 0 if unknown."""
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Slowest:
    """The GPU that the others of its job had to wait for, and what it waited for."""

    gpu: str
    cause: str
    ratio: float
    others_ratio: float
    """Shares of the time that it and the others waited for that."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The owner's jobs before this one."""

    jobs: int
    busy_ratio: float
    """Their median."""


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
    missing: list[str] = field(default_factory=list)
    """What could not be read, one line each."""
    notes: list[str] = field(default_factory=list)
    """What could, but is worth knowing."""
    earlier: Earlier | None = None
    """If there is one job."""
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
    def listed(self) -> Sequence[Job]:
        """As many jobs as are wanted."""
        return self.jobs[: self.wanted.limit]

    @property
    def single(self) -> Job | None:
        """The job, if it is the only one."""
        return self.jobs[0] if len(self.jobs) == 1 else None

    def cost(self, seconds: float) -> float | None:
        """The cost of so many GPU-seconds; None without a price."""
        price = self.wanted.hourly_cost
        return None if price is None else seconds / HOUR_SECONDS * price


def json(bill: Bill) -> str:
    """The report as JSON; null is unknown."""

    def use(of: Use) -> dict[str, Any]:
        names = ("observed_seconds", "busy_ratio", "stall_ratios")
        lost = {"lost_gpu_hours": of.lost_seconds / HOUR_SECONDS}
        known = {name: getattr(of, name) for name in names}
        return known | lost | {"lost_cost": bill.cost(of.lost_seconds)}

    def job(of: Job) -> dict[str, Any]:
        told = {"slowest": slowest(of), "do_first": first(of), "earlier": bill.earlier}
        return {**plain(of), **use(of), **plain(told)}

    whole = {
        "version": VERSION,
        "time_seconds": bill.time_seconds,
        "since_seconds": bill.time_seconds - bill.wanted.seconds,
        "currency": None if bill.wanted.hourly_cost is None else bill.wanted.currency,
        "job_count": len(bill.jobs),
        "total": use(bill.use),
        "owners": [{"owner": name, **use(of)} for name, of in bill.owners.items()],
        "jobs": [job(one) for one in bill.listed],
        "missing": bill.missing,
    }
    return dumps(whole)


def first(job: Job) -> Change | None:
    """The change of one setting that returns most; the usual remedy if none was recommended."""
    offers: dict[str, list[tuple[Gpu, Prescription]]] = {}
    for gpu in job.gpus:
        if gpu.recommendation:
            offers.setdefault(gpu.recommendation.knob, []).append((gpu, gpu.recommendation))
    changes = [_change(job, offer) for offer in offers.values()]
    most = max(changes, key=lambda one: one.returned_seconds, default=None)
    if most and most.returned_seconds >= _LEAST_RETURNED_SECONDS:
        return most
    cause = next(iter(job.stall_ratios), None)
    return Change(cause) if cause else None


def slowest(job: Job) -> Slowest | None:
    """The GPU with the most waits of its own; None if none stands out.

    Waits for other GPUs do not count: those are slower.
    """
    gpus = [gpu for gpu in job.gpus if gpu.observed_seconds]
    found = max(gpus, key=_own_ratio, default=None)
    others = [gpu for gpu in gpus if gpu is not found]
    if not found or not others:
        return None
    own, theirs = found.stall_ratios, total(others).stall_ratios
    more = {cause: own[cause] - theirs.get(cause, 0.0) for cause in own if cause != PEER}
    if not more or _own_ratio(found) - median(map(_own_ratio, others)) < _CLEARLY:
        return None
    cause = max(more, key=more.__getitem__)
    return Slowest(found.name, cause, own[cause], theirs.get(cause, 0.0))


def columns(
    gpus: Iterable[Gpu], start: float, end: float, count: int
) -> Sequence[Mapping[str, float]]:
    """What these GPUs spent each of `count` equal parts of the time on, in Unix seconds."""
    found = [defaultdict[str, float](float) for _ in range(count)]
    wide = (end - start) / count
    for line in (gpu.timeline for gpu in gpus if gpu.timeline and wide > 0):
        for name, spent in line.spent_seconds.items():
            for at, seconds in enumerate(spent):
                begin = line.start_seconds + at * line.step_seconds - start
                for column, share in steps(begin, begin + line.step_seconds, wide, count):
                    found[column][name] += share * seconds
    return found


def earlier(job: Job, jobs: Iterable[Job]) -> Earlier | None:
    """The jobs of the same owner that had ended when this one began; None without any."""
    begun = job.start_seconds or 0.0
    theirs = [one for one in jobs if one.owner_name == job.owner_name != "unknown"]
    ended = (one for one in theirs if one.end_seconds and one.end_seconds <= begun)
    ratios = [one.busy_ratio for one in ended if one.busy_ratio is not None]
    return Earlier(len(ratios), median(ratios)) if ratios else None


def _change(job: Job, offer: Sequence[tuple[Gpu, Prescription]]) -> Change:
    """One setting, for all GPUs for which it was recommended."""
    gpu, advice = offer[0]
    returned = sum(_left_over(one, one, of, one.busy_ratio, of.busy_ratio) for one, of in offer)
    if len(offer) == 1:  # the other ranks of its node wait for this one
        here = total(one for one in job.gpus if one.node == gpu.node)
        before, after = advice.job_current_busy_ratio, advice.job_busy_ratio
        returned = max(returned, _left_over(gpu, here, advice, before, after))
    (now, then), _ = Counter((of.current_value, of.value) for _, of in offer).most_common(1)[0]
    names, at_most = tuple(one.name for one, _ in offer), any(of.at_most for _, of in offer)
    return Change(advice.cause, advice.knob, now, then, names, returned, at_most)


def _left_over(
    gpu: Gpu, whole: Use, advice: Prescription, before: float | None, after: float | None
) -> float:
    """GPU-seconds of `whole` that the same work leaves over; 0 if the busy shares are unknown.

    No more than its GPU lost to the cause, and all of them to ranks that wait for it.
    """
    if before is None or not after:
        return 0.0
    most = gpu.stall_seconds.get(advice.cause, 0.0) + whole.stall_seconds.get(PEER, 0.0)
    return max(0.0, min(whole.observed_seconds * (1 - before / after), most))


def _own_ratio(gpu: Gpu) -> float:
    """The share of its time in which it waited, but not for other GPUs."""
    return (gpu.lost_seconds - gpu.stall_seconds.get(PEER, 0.0)) / gpu.observed_seconds
