"""One-sentence findings about a job; None without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import median, mode

from gpu_bottleneck_exporter.accounting.stall import PEER
from gpu_bottleneck_exporter.jobs.model import Job, JobGpu, Use, total
from gpu_bottleneck_exporter.nodeview.text import amount, lines_of_code, percent, setting, short
from gpu_bottleneck_exporter.prescription.model import REMOVED, Prescription
from gpu_bottleneck_exporter.remedies import REMEDIES
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, JobReport

Offer = Sequence[tuple[JobGpu, Prescription]]
"""GPUs with recommendations of one setting."""


def about(report: JobReport, job: Job) -> dict[str, str | None]:
    """All findings, by JSON key."""
    return {
        "slowest": slowest(job),
        "slow_line": slow_line(job),
        "earlier": earlier(job, report.all_jobs) if report.single else None,
        "do_first": do_first(job),
    }


def claims(job: Job) -> str:
    """`WANDB_RUN_ID=3k2j`, as the job claims; empty without claims."""
    return ", ".join(f"{name}={short(value)}" for name, value in sorted(job.claims.items()))


def slowest(job: Job) -> str | None:
    """The GPU with the most waits of its own, if it stands out, and their cause."""
    gpus = [gpu for gpu in job.gpus if gpu.observed_seconds]
    straggler = max(gpus, key=_own_ratio, default=None)
    others = [gpu for gpu in gpus if gpu is not straggler]
    if not straggler or not others:
        return None
    own, theirs = straggler.stall_ratios, total(others).stall_ratios
    more = {cause: own[cause] - theirs.get(cause, 0.0) for cause in own if cause != PEER}
    margin = 0.05
    if not more or _own_ratio(straggler) - median(map(_own_ratio, others)) < margin:
        return None
    cause = max(more, key=more.__getitem__)
    rest = f"(the others {percent(theirs.get(cause, 0.0))})"
    return f"{straggler.name} was the slowest: {cause} {percent(own[cause])} {rest}"


def _own_ratio(gpu: JobGpu) -> float:
    """Share of time lost, except to peers."""
    return (gpu.lost_seconds - gpu.stall_seconds.get(PEER, 0.0)) / gpu.observed_seconds


def slow_line(job: Job) -> str | None:
    """Line of code that the GPU with most loss waited for."""
    sampled = [gpu for gpu in job.gpus if gpu.idle_lines and gpu.idle_lines.lines]
    worst = max(sampled, key=lambda gpu: gpu.lost_seconds, default=None)
    if worst is None:
        return None
    _, line = next(lines_of_code(worst.idle_lines))
    return f"Slow line: {line}"


def earlier(job: Job, jobs: Iterable[Job]) -> str | None:
    """Busy share of the owner's earlier jobs."""
    begun = job.start_seconds or 0.0
    theirs = [other for other in jobs if other.owner_name == job.owner_name != "unknown"]
    ended = (other.busy_ratio for other in theirs if (end := other.end_seconds) and end <= begun)
    if not (ratios := [ratio for ratio in ended if ratio is not None]):
        return None
    middle = f"{percent(median(ratios))} busy (median of {len(ratios)})"
    return f"{short(job.owner_name)}'s earlier jobs: {middle}"


def do_first(job: Job) -> str | None:
    """The change with the largest gain, else the usual remedy."""
    action = change(job)
    if action is None and (cause := next(iter(job.stall_ratios), None)):
        action = f"{REMEDIES.get(cause, 'see the runbook')} ({cause})"
    return action and f"Do first: {action}"


def change(job: Job) -> str | None:
    """`Use 6 loader workers (now 2) on all ranks. This would return about 11 GPU-hours.`."""
    offers: dict[str, list[tuple[JobGpu, Prescription]]] = {}
    for gpu in job.gpus:
        if gpu.recommendation:
            offers.setdefault(gpu.recommendation.knob, []).append((gpu, gpu.recommendation))
    offer: Offer = max(offers.values(), key=partial(_returned, job), default=[])
    returned, where, count = _returned(job, offer), "", len(offer)
    if returned < 1:
        return None
    if len(job.gpus) > 1:
        some = offer[0][0].name if count == 1 else f"{count} of {len(job.gpus)} ranks"
        where = f" on {'all ranks' if count == len(job.gpus) else some}"
    action = mode(f"{setting(it)}{_now(it)}" for _, it in offer)
    about = "at most" if any(advice.at_most for _, advice in offer) else "about"
    return f"{action}{where}. This would return {about} {gpu_time(returned)}."


def _now(advice: Prescription) -> str:
    return "" if advice.knob in REMOVED else f" (now {amount(advice.current_value)})"


def _returned(job: Job, offer: Offer) -> float:
    """GPU-seconds that the same work would save."""
    returned = sum(
        _saved(gpu, gpu, advice, gpu.busy_ratio, advice.busy_ratio) for gpu, advice in offer
    )
    if len(offer) == 1:  # the other ranks of its node wait for it
        ((gpu, advice),) = offer
        node = total(other for other in job.gpus if other.node == gpu.node)
        together = _saved(gpu, node, advice, advice.job_current_busy_ratio, advice.job_busy_ratio)
        returned = max(returned, together)
    return returned


def _saved(
    gpu: JobGpu, whole: Use, advice: Prescription, before: float | None, after: float | None
) -> float:
    """GPU-seconds of `whole` that the same work saves, at most its loss to cause and peers."""
    if before is None or not after:
        return 0.0
    most = gpu.stall_seconds.get(advice.cause, 0.0) + whole.stall_seconds.get(PEER, 0.0)
    return max(0.0, min(whole.observed_seconds * (1 - before / after), most))


def gpu_time(seconds: float) -> str:
    """`15.1 GPU-hours`; below a tenth of one, `1.12 GPU-minutes`."""
    if 0 < seconds < HOUR_SECONDS / 10:
        return f"{rounded(seconds / 60)} GPU-minutes"
    return f"{rounded(seconds / HOUR_SECONDS)} GPU-hours"


def rounded(value: float) -> str:
    """Three significant digits: `15.1`, `5 310`."""
    return f"{float(f'{value:.3g}'):,.12g}".replace(",", " ")
