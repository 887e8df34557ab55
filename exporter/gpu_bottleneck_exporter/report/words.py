"""Figures and names of a report as people read them, in any format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_bottleneck_exporter.nodeview.model import DASH, named
from gpu_bottleneck_exporter.nodeview.text import amount, memory, percent
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, REMOVED
from gpu_bottleneck_exporter.remedies import REMEDIES, SETTINGS
from gpu_bottleneck_exporter.report import bill as sums
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill, Change, Track
from gpu_bottleneck_exporter.report.model import Job, Use

_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_ONE_DIGIT = 20
"""Smaller amounts have a decimal."""


def hours(seconds: float) -> str:
    """GPU-hours, with as many digits as say something."""
    found = seconds / HOUR_SECONDS
    if 0 < found < 0.1:  # noqa: PLR2004 - would be 0.0
        return f"{found:.2g}"
    return f"{found:.1f}" if found < _ONE_DIGIT else f"{found:,.0f}".replace(",", " ")


def money(bill: Bill, seconds: float) -> str:
    """`38 €`; empty without a price."""
    cost = bill.cost(seconds)
    if cost is None:
        return ""
    text = f"{cost:.2f}" if cost < _ONE_DIGIT else f"{cost:,.0f}".replace(",", " ")
    return f"{text} {_SYMBOLS.get(bill.currency, bill.currency)}"


def loss(bill: Bill, use: Use) -> str:
    """`15.1 GPU-hours = 38 €`."""
    cost = money(bill, use.lost_seconds)
    return f"{hours(use.lost_seconds)} GPU-hours{f' = {cost}' if cost else ''}"


def span(seconds: float) -> str:
    """A duration in its two largest units: `3 h 12 min`."""
    for at, (unit, length) in enumerate(_UNITS):
        if seconds >= length:
            small, below = _UNITS[min(at + 1, len(_UNITS) - 1)]
            rest = int(seconds % length // below) if small != unit else 0
            return f"{int(seconds // length)} {unit}" + (f" {rest} {small}" if rest else "")
    return "under 1 s"


def short(name: str, most: int = 60) -> str:
    """`name`, cut where it is too long for a line."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def counted(count: int, what: str) -> str:
    """`8 GPUs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def extent(job: Job, now_seconds: float) -> str:
    """`8 GPUs on 2 nodes, 3 h 12 min`, as far as known."""
    told = []
    if job.gpus:
        nodes = f" on {counted(len(job.nodes), 'node')}" if len(job.nodes) > 1 else ""
        told.append(f"{counted(job.boards, 'GPU')}{nodes}")
    if job.start_seconds is not None:
        end = now_seconds if job.end_seconds is None else job.end_seconds
        told.append(span(end - job.start_seconds) + (" so far" if job.end_seconds is None else ""))
    return ", ".join(told)


def causes(ratios: Mapping[str, float]) -> str:
    """`worker_cpu 38 %   asleep 14 %`."""
    return "   ".join(f"{cause} {percent(ratio)}" for cause, ratio in named(ratios).items())


def mostly(use: Use) -> str:
    """The largest cause; a dash if nothing was lost."""
    return next(iter(causes(use.stall_ratios).split("   ")), "") or DASH


def change(found: Change, job: Job) -> str:
    """`num_workers 2 → 6 on all ranks (would return about 11 GPU-hours)`."""
    if found.knob is None:
        return f"{REMEDIES.get(found.cause, 'see the runbook')} ({found.cause})"
    name = found.knob if found.knob == NUM_WORKERS else SETTINGS.get(found.knob, short(found.knob))
    turned = f"less {name}"
    if found.knob not in REMOVED and found.current_value is not None and found.value is not None:
        turned = f"{name} {amount(found.current_value)} → {amount(found.value)}"
    where = ""
    if job.boards > 1:
        every = len(found.gpus) >= job.boards
        some = found.gpus[0] if len(found.gpus) == 1 else f"{len(found.gpus)} of {job.boards} ranks"
        where = f" {'on all ranks' if every else f'on {some}'}"
    about = "at most" if found.at_most else "about"
    returned = hours(found.returned_seconds or 0.0)
    return f"{turned}{where} (would return {about} {returned} GPU-hours)"


def about(bill: Bill, job: Job) -> Iterator[str]:
    """What there is to say of a job beyond its figures, a sentence each."""
    if slow := sums.slowest(job):
        yield (
            f"{slow.gpu} was the slowest: {slow.cause} {percent(slow.ratio)} "
            f"(the others {percent(slow.others_ratio)})"
        )
    if before := bill.earlier.get(job.id):
        yield (
            f"{job.owner_name}'s {counted(before.jobs, 'earlier job')}: "
            f"{percent(before.busy_ratio)} busy{' (median)' if before.jobs > 1 else ''}"
        )
    if found := sums.first(job):
        yield f"Do first: {change(found, job)}"
    if used := resources(job):
        yield used


def resources(job: Job) -> str:
    """Energy, and memory at its peak; empty if neither is known."""
    joules = [gpu.energy_joules for gpu in job.gpus if gpu.energy_joules is not None]
    told = []
    if joules and len(joules) == len(job.gpus):
        told.append(f"energy {energy(sum(joules))}")
    peaks = [gpu for gpu in job.gpus if gpu.memory_peak_bytes is not None]
    if peaks:
        most = max(peaks, key=lambda gpu: gpu.memory_peak_bytes or 0.0)
        told.append(f"memory {memory(most.memory_peak_bytes, most.memory_total_bytes)} at most")
    return ", ".join(told)


def energy(joules: float) -> str:
    """`8 kWh`."""
    return f"{joules / 3.6e6:.3g} kWh"


def record(track: Track) -> str:
    """`Predictions: 312 followed, 91 % inside, median error 2 points`."""
    points = f"{100 * track.median_error_ratio:.0f}"
    return (
        f"Predictions: {track.followed} followed, {percent(track.inside_ratio)} inside, "
        f"median error {points} point{'' if points == '1' else 's'}"
    )


def title(job: Job) -> str:
    """`Job 4711`, `Pod vision/train-0`."""
    kind = "Pod" if job.label("pod") and not job.label("slurm_job_id") else "Job"
    return f"{kind} {short(job.name)}"
