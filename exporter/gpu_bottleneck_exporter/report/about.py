"""What there is to say of a job beyond its figures, a sentence each; None: nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import median, mode

from gpu_bottleneck_exporter.accounting.stall import PEER
from gpu_bottleneck_exporter.jobs.model import Gpu, Job, Use, total
from gpu_bottleneck_exporter.nodeview.text import amount, lines_of_code, percent, short
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, REMOVED, Prescription
from gpu_bottleneck_exporter.remedies import REMEDIES, SETTINGS
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill

_CLEARLY = 0.05
"""A GPU is the slowest if it lost so much more of its time than the others."""
_LEAST_RETURNED_SECONDS = 1.0
Offer = Sequence[tuple[Gpu, Prescription]]
"""GPUs for which a change of the same setting is recommended."""


def about(bill: Bill, job: Job) -> dict[str, str | None]:
    """All there is to say, by the keys of the JSON."""
    return {
        "slowest": slowest(job),
        "slow_line": slow_line(job),
        "earlier": earlier(job, bill.read) if bill.single else None,
        "do_first": first(job),
    }


def claims(job: Job) -> str:
    """`WANDB_RUN_ID=3k2j`: what the job says of itself; empty if it says nothing."""
    return ", ".join(f"{name}={short(value)}" for name, value in sorted(job.claims.items()))


def slowest(job: Job) -> str | None:
    """The GPU with the most waits of its own, if one stands out, and what it waited for.

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
    rest = f"(the others {percent(theirs.get(cause, 0.0))})"
    return f"{found.name} was the slowest: {cause} {percent(own[cause])} {rest}"


def _own_ratio(gpu: Gpu) -> float:
    """The share of its time in which it waited, but not for other GPUs."""
    return (gpu.lost_seconds - gpu.stall_seconds.get(PEER, 0.0)) / gpu.observed_seconds


def slow_line(job: Job) -> str | None:
    """The line of code that the GPU which lost most waited for."""
    looked_at = [gpu for gpu in job.gpus if gpu.idle_lines and gpu.idle_lines.lines]
    worst = max(looked_at, key=lambda gpu: gpu.lost_seconds, default=None)
    if worst is None:
        return None
    _, told = next(lines_of_code(worst.idle_lines))
    return f"Slow line: {told}"


def earlier(job: Job, jobs: Iterable[Job]) -> str | None:
    """How busy jobs of the same owner were that had ended when this one began."""
    begun = job.start_seconds or 0.0
    theirs = [one for one in jobs if one.owner_name == job.owner_name != "unknown"]
    ended = (one.busy_ratio for one in theirs if one.end_seconds and one.end_seconds <= begun)
    if not (ratios := [ratio for ratio in ended if ratio is not None]):
        return None
    middle = f"{percent(median(ratios))} busy (median of {len(ratios)})"
    return f"{short(job.owner_name)}'s earlier jobs: {middle}"


def first(job: Job) -> str | None:
    """What to do first: the change that returns most; if there is none, the usual remedy."""
    told = change(job)
    if told is None and (cause := next(iter(job.stall_ratios), None)):
        told = f"{REMEDIES.get(cause, 'see the runbook')} ({cause})"
    return told and f"Do first: {told}"


def change(job: Job) -> str | None:
    """`num_workers 2 → 6 on all ranks (would return about 11 GPU-hours)`."""
    offers: dict[str, list[tuple[Gpu, Prescription]]] = {}
    for gpu in job.gpus:
        if gpu.recommendation:
            offers.setdefault(gpu.recommendation.knob, []).append((gpu, gpu.recommendation))
    offer: Offer = max(offers.values(), key=partial(_returned, job), default=[])
    returned, where, count = _returned(job, offer), "", len(offer)
    if returned < _LEAST_RETURNED_SECONDS:
        return None
    if len(job.gpus) > 1:
        some = offer[0][0].name if count == 1 else f"{count} of {len(job.gpus)} ranks"
        where = f" on {'all ranks' if count == len(job.gpus) else some}"
    turned = mode(_turned(advice) for _, advice in offer)
    about = "at most" if any(advice.at_most for _, advice in offer) else "about"
    return f"{turned}{where} (would return {about} {gpu_time(returned)})"


def _turned(advice: Prescription) -> str:
    """`num_workers 2 → 6`."""
    if advice.of_own_requests:
        return f"{amount(advice.value)} threads or loader workers for its own requests"
    knob = advice.knob
    name = knob if knob == NUM_WORKERS else SETTINGS.get(knob, short(knob))
    turned = f"{name} {amount(advice.current_value)} → {amount(advice.value)}"
    return f"less {name}" if knob in REMOVED else turned


def _returned(job: Job, offer: Offer) -> float:
    """GPU-seconds that the same work would leave over."""
    returned = sum(_left_over(gpu, gpu, of, gpu.busy_ratio, of.busy_ratio) for gpu, of in offer)
    if len(offer) == 1:  # the other ranks of its node wait for it
        ((gpu, of),) = offer
        here = total(one for one in job.gpus if one.node == gpu.node)
        together = _left_over(gpu, here, of, of.job_current_busy_ratio, of.job_busy_ratio)
        returned = max(returned, together)
    return returned


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


def gpu_time(seconds: float) -> str:
    """`15.1 GPU-hours`; less than a tenth of one in minutes, `1.12 GPU-minutes`."""
    if 0 < seconds < HOUR_SECONDS / 10:
        return f"{rounded(seconds / 60)} GPU-minutes"
    return f"{rounded(seconds / HOUR_SECONDS)} GPU-hours"


def rounded(value: float) -> str:
    """Three digits of it: `15.1`, `5 310`."""
    return f"{float(f'{value:.3g}'):,.12g}".replace(",", " ")
