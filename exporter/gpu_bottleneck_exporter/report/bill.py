"""What jobs lost, to what, and what would have helped: arithmetic only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gpu_bottleneck_exporter.accounting.stall import PEER
from gpu_bottleneck_exporter.prescription.model import Prescription, Score
from gpu_bottleneck_exporter.report.model import Gpu, Job, Use, total

HOUR_SECONDS = 3600
_CLEARLY = 0.05
"""A GPU is the slowest if it lost so much more of its time than the others."""
_GAIN_CLEARLY = 0.02
"""Or if its change alone would bring the job so much."""
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
    returned_seconds: float | None = None
    """GPU-seconds that the same work would have left over; None if unknown."""
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


@dataclass(frozen=True, slots=True)
class Track:
    """What came of recommendations that were followed."""

    followed: int
    inside_ratio: float
    """The share within the predicted interval."""
    median_error_ratio: float
    """Distance between outcome and prediction, as a share of the GPU's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """All that is reported."""

    jobs: Sequence[Job]
    """Those that lost most, worst first."""
    count: int
    """Of all jobs; unlisted ones are in the totals."""
    use: Use
    owners: Mapping[str, Use]
    track: Track | None = None
    earlier: Mapping[str, Earlier] = field(default_factory=dict)
    """By the job's id."""
    since_seconds: float | None = None
    time_seconds: float
    hourly_cost: float | None = None
    """Of a GPU-hour."""
    currency: str = ""
    missing: Sequence[str] = ()
    """What could not be read, one line each."""

    def cost(self, seconds: float) -> float | None:
        """The cost of so many GPU-seconds; None without a price."""
        return None if self.hourly_cost is None else seconds / HOUR_SECONDS * self.hourly_cost


def worst(jobs: Iterable[Job], most: int) -> list[Job]:
    """The `most` jobs that lost most GPU-hours, worst first."""
    return sorted(jobs, key=lambda job: (-job.use.lost_seconds, job.id))[:most]


def by_owner(jobs: Iterable[Job]) -> dict[str, Use]:
    """What the jobs of each owner did, the largest loss first."""
    uses: dict[str, list[Use]] = {}
    for job in jobs:
        uses.setdefault(job.owner_name, []).append(job.use)
    return largest({name: total(found) for name, found in uses.items()})


def largest(uses: Mapping[str, Use]) -> dict[str, Use]:
    """`uses`, the largest loss first."""
    return dict(sorted(uses.items(), key=lambda one: (-one[1].lost_seconds, one[0])))


def first(job: Job) -> Change | None:
    """The change of one setting that returns most; the usual remedy if none was recommended."""
    offers: dict[str, list[tuple[Gpu, Prescription]]] = {}
    for gpu in job.gpus:
        if gpu.recommendation:
            offers.setdefault(gpu.recommendation.knob, []).append((gpu, gpu.recommendation))
    changes = [change for offer in offers.values() if (change := _change(job, offer))]
    if changes:
        return max(changes, key=lambda one: one.returned_seconds or 0.0)
    cause = next(iter(job.use.stall_ratios), None)
    return Change(cause) if cause else None


def slowest(job: Job) -> Slowest | None:
    """The GPU with the most waits of its own, or whose change alone helps the job most.

    None if no GPU stands out. Waits for other GPUs do not count: those are slower.
    """
    gpus = [gpu for gpu in job.gpus if gpu.observed_seconds]
    if job.boards < 2 or len(gpus) < 2:  # noqa: PLR2004 - one is never the slowest
        return None
    found = max(gpus, key=lambda gpu: (_gain(gpu), _own_ratio(gpu)))
    others = [gpu for gpu in gpus if gpu is not found]
    stands_out = _own_ratio(found) - median(map(_own_ratio, others)) >= _CLEARLY
    causes = [cause for cause in found.stall_seconds if cause != PEER]
    if not causes or not (stands_out or _gain(found) >= _GAIN_CLEARLY):
        return None
    theirs = total(gpu.use for gpu in others).stall_ratios
    own = found.use.stall_ratios
    cause = max(causes, key=lambda one: own.get(one, 0.0) - theirs.get(one, 0.0))
    return Slowest(found.name, cause, own.get(cause, 0.0), theirs.get(cause, 0.0))


def columns(gpus: Iterable[Gpu], start: float, end: float, count: int) -> list[Use]:
    """What these GPUs did in each of `count` equal parts of the time, in Unix seconds."""
    wide = (end - start) / count
    found: list[list[Use]] = [[] for _ in range(count)]
    if wide <= 0:
        return []
    for line in (gpu.timeline for gpu in gpus if gpu.timeline):
        for at, (busy, stalls) in enumerate(zip(line.busy, line.stall, strict=False)):
            begin = (line.start_seconds + at * line.step_seconds - start) / wide
            over = begin + line.step_seconds / wide
            for column in range(max(int(begin), 0), min(math.ceil(over), count)):
                share = (min(over, column + 1) - max(begin, column)) / (over - begin)
                part = {cause: seconds * share for cause, seconds in stalls.items()}
                found[column].append(Use(share * (busy + sum(stalls.values())), share * busy, part))
    return [total(uses) for uses in found]


def earlier(job: Job, jobs: Iterable[Job]) -> Earlier | None:
    """The jobs of the same owner that had ended when this one began; None without any."""
    start = job.start_seconds
    if start is None or job.owner_name == "unknown":
        return None
    ratios = [
        ratio
        for one in jobs
        if one.owner_name == job.owner_name
        and one.end_seconds is not None
        and one.end_seconds <= start
        and (ratio := one.use.busy_ratio) is not None
    ]
    return Earlier(len(ratios), median(ratios)) if ratios else None


def track(scores: Sequence[Score]) -> Track | None:
    """The record of predictions; None without any."""
    if not scores:
        return None
    inside = [s.predicted_low_ratio <= s.busy_ratio <= s.predicted_high_ratio for s in scores]
    errors = [abs(score.error_ratio) for score in scores]
    return Track(len(scores), sum(inside) / len(scores), median(errors))


def _change(job: Job, offer: Sequence[tuple[Gpu, Prescription]]) -> Change | None:
    """One setting, for all GPUs for which it was recommended; None if it returns nothing."""
    returned = sum(_returned(gpu, advice) for gpu, advice in offer)
    if len(offer) == 1:
        returned = max(returned, _returned_to_all(job, *offer[0]))
    if returned < _LEAST_RETURNED_SECONDS:
        return None
    (now, then), _ = Counter((a.current_value, a.value) for _, a in offer).most_common(1)[0]
    advice = offer[0][1]
    return Change(
        cause=advice.cause,
        knob=advice.knob,
        current_value=now,
        value=then,
        gpus=tuple(dict.fromkeys(gpu.name for gpu, _ in offer)),
        returned_seconds=returned,
        at_most=any(advice.at_most for _, advice in offer),
    )


def _returned(gpu: Gpu, advice: Prescription) -> float:
    """GPU-seconds: no more than it lost to that cause, and to ranks that do not have it either."""
    if advice.busy_ratio <= 0:
        return 0.0
    most = gpu.stall_seconds.get(advice.cause, 0.0) + gpu.stall_seconds.get(PEER, 0.0)
    return max(0.0, min(gpu.observed_seconds - gpu.busy_seconds / advice.busy_ratio, most))


def _returned_to_all(job: Job, gpu: Gpu, advice: Prescription) -> float:
    """GPU-seconds on its node, where the other ranks wait for this one; 0 if unknown."""
    if not advice.job_busy_ratio or advice.job_current_busy_ratio is None:
        return 0.0
    here = total(one.use for one in job.gpus if one.node == gpu.node)
    most = gpu.stall_seconds.get(advice.cause, 0.0) + here.stall_seconds.get(PEER, 0.0)
    share = 1 - advice.job_current_busy_ratio / advice.job_busy_ratio
    return max(0.0, min(here.observed_seconds * share, most))


def _gain(gpu: Gpu) -> float:
    """What its change alone would add to the busy share of its job; 0 if unknown."""
    advice = gpu.recommendation
    if not advice or advice.job_busy_ratio is None or advice.job_current_busy_ratio is None:
        return 0.0
    return advice.job_busy_ratio - advice.job_current_busy_ratio


def _own_ratio(gpu: Gpu) -> float:
    """The share of its time in which it waited, but not for other GPUs."""
    return (gpu.use.lost_seconds - gpu.stall_seconds.get(PEER, 0.0)) / gpu.observed_seconds
