"""What a report says: sentences and tables, the same in every format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from gpu_bottleneck_exporter.jobs.model import Gpu, Job, Use
from gpu_bottleneck_exporter.nodeview.model import DASH, named
from gpu_bottleneck_exporter.nodeview.text import amount, memory, percent
from gpu_bottleneck_exporter.prescription.model import NUM_WORKERS, REMOVED
from gpu_bottleneck_exporter.remedies import REMEDIES, SETTINGS
from gpu_bottleneck_exporter.report import bill as sums
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill, Change

_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_FEW = 20
"""Smaller amounts have decimals."""
_NARROW = 32
"""Characters of a name in a table."""
_FIGURES = ("Busy", "GPU-hours lost", "Cost", "Mostly")
Rows = list[tuple[str, ...]]
"""A table with its heading."""


def title(bill: Bill) -> str:
    """`Job 4711`, `Pod vision/train-0`, or of several."""
    return heading(bill.single) if bill.single else "GPU report"


def heading(job: Job) -> str:
    """`Job 4711`, `Pod vision/train-0`."""
    return f"{'Pod' if job.name == job.pod else 'Job'} {short(job.name)}"


def summary(bill: Bill) -> str:
    """All of it in a line: `3 jobs, busy 5 %, lost 106 GPU-hours`."""
    if not bill.count:
        return "No job"
    several = f"{bill.count} jobs, " if bill.count > 1 else ""
    return f"{several}busy {percent(bill.use.busy_ratio)}, {loss(bill, bill.use)}"


def loss(bill: Bill, use: Use) -> str:
    """`lost 15.1 GPU-hours = 38 €`."""
    cost = money(bill, use.lost_seconds)
    return f"lost {hours(use.lost_seconds)} GPU-hours{f' = {cost}' if cost else ''}"


def hours(seconds: float) -> str:
    """GPU-hours, with as many digits as say something."""
    found = seconds / HOUR_SECONDS
    return f"{found:.2g}" if 0 < found < 0.1 else _rounded(found, 1)  # noqa: PLR2004 - 0.0


def money(bill: Bill, seconds: float) -> str:
    """Their cost: `38 €`; empty without a price."""
    cost, unit = bill.cost(seconds), _SYMBOLS.get(bill.currency, bill.currency)
    return "" if cost is None else f"{_rounded(cost, 2)} {unit}"


def _rounded(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if value < _FEW else f"{value:,.0f}".replace(",", " ")


def short(name: str, most: int = 60) -> str:
    """`name`, cut where it is too long for a line."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def who(bill: Bill, job: Job) -> str:
    """`ada, 8 GPUs on 2 nodes, 3 h 12 min`, as far as known."""
    told = [short(job.owner_name)]
    if job.gpus:
        nodes = f" on {len(job.nodes)} nodes" if len(job.nodes) > 1 else ""
        told.append(f"{_counted(len(job.gpus), 'GPU')}{nodes}")
    if job.start_seconds is not None:
        so_far = " so far" if job.end_seconds is None else ""
        told.append(_span((job.end_seconds or bill.time_seconds) - job.start_seconds) + so_far)
    return ", ".join(told)


def _span(seconds: float) -> str:
    """A duration in its two largest units: `3 h 12 min`."""
    for (large, length), (small, part) in pairwise(_UNITS):
        if seconds >= length:
            rest = int(seconds % length // part)
            return f"{int(seconds // length)} {large}{f' {rest} {small}' if rest else ''}"
    return f"{seconds:.0f} s"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def waits(use: Use) -> list[str]:
    """`worker_cpu 38 %`, `asleep 14 %`: the largest first."""
    return [f"{cause} {percent(ratio)}" for cause, ratio in named(use.stall_ratios).items()]


def mostly(use: Use) -> str:
    """The largest; a dash if nothing was lost."""
    return next(iter(waits(use)), DASH)


def about(bill: Bill, job: Job) -> Iterator[str]:
    """What there is to say of a job beyond its figures, a sentence each."""
    if slow := sums.slowest(job):
        yield (
            f"{slow.gpu} was the slowest: {slow.cause} {percent(slow.ratio)} "
            f"(the others {percent(slow.others_ratio)})"
        )
    if before := bill.earlier.get(job.id):
        yield (
            f"{short(job.owner_name)}'s {_counted(before.jobs, 'earlier job')}: "
            f"{percent(before.busy_ratio)} busy{' (median)' if before.jobs > 1 else ''}"
        )
    if found := sums.first(job):
        yield f"Do first: {change(found, job)}"
    most = max(job.gpus, key=lambda gpu: gpu.memory_peak_bytes or 0.0, default=None)
    used = {"energy {}": _energy(*job.gpus), "memory {} at most": _memory(most) if most else DASH}
    if told := ", ".join(text.format(amount) for text, amount in used.items() if amount != DASH):
        yield told


def _energy(*gpus: Gpu) -> str:
    """`8 kWh`; a dash if that of one is unknown."""
    joules = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
    return f"{sum(joules) / 3.6e6:.3g} kWh" if 0 < len(joules) == len(gpus) else DASH


def _memory(gpu: Gpu) -> str:
    """`52 of 80 GiB`; a dash if it is unknown."""
    known = gpu.memory_peak_bytes is not None
    return memory(gpu.memory_peak_bytes, gpu.memory_total_bytes) if known else DASH


def change(found: Change, job: Job) -> str:
    """`num_workers 2 → 6 on all ranks (would return about 11 GPU-hours)`."""
    if found.knob is None:
        return f"{REMEDIES.get(found.cause, 'see the runbook')} ({found.cause})"
    name = found.knob if found.knob == NUM_WORKERS else SETTINGS.get(found.knob, short(found.knob))
    turned, where, count = f"less {name}", "", len(found.gpus)
    if found.knob not in REMOVED and found.current_value is not None and found.value is not None:
        turned = f"{name} {amount(found.current_value)} → {amount(found.value)}"
    if len(job.gpus) > 1:
        some = found.gpus[0] if count == 1 else f"{count} of {len(job.gpus)} ranks"
        where = f" on {'all ranks' if count == len(job.gpus) else some}"
    about = "at most" if found.at_most else "about"
    returned = hours(found.returned_seconds or 0.0)
    return f"{turned}{where} (would return {about} {returned} GPU-hours)"


def record(bill: Bill) -> Iterator[str]:
    """`Predictions: 312 followed, 91 % inside, median error 2 points`, if any were."""
    if track := bill.track:
        error = _counted(round(100 * track.median_error_ratio), "point")
        inside = f"{percent(track.inside_ratio)} inside"
        yield f"Predictions: {track.followed} followed, {inside}, median error {error}"


def tables(bill: Bill) -> dict[str, Rows]:
    """Tables of all jobs, by caption."""
    jobs: Rows = [("Job", "GPUs", *_FIGURES, "Owner", "Do first")]
    for job in bill.jobs:
        advice = sums.first(job)
        to_do = change(advice, job) if advice and advice.knob else ""
        figures, owner = _figures(bill, job.use), short(job.owner_name, _NARROW)
        boards = f"{len(job.gpus) or ''}"
        jobs.append((short(job.name, _NARROW), boards, *figures, owner, to_do))
    if more := bill.count - len(bill.jobs):
        jobs.append((f"and {more} more (see --limit)", *[""] * 7))
    owners: Rows = [("Owner", *_FIGURES)]
    owners += [(short(name, _NARROW), *_figures(bill, use)) for name, use in bill.owners.items()]
    causes: Rows = [("Cause", "Share", "GPU-hours lost", "Cost")]
    for cause, ratio in bill.use.stall_ratios.items():
        lost = bill.use.stall_seconds[cause]
        causes.append((cause, percent(ratio), hours(lost), money(bill, lost)))
    return {
        "The jobs that lost most": _filled(jobs),
        "All jobs, by owner": _filled(owners),
        "All jobs, by what GPUs waited for": _filled(causes),
    }


def gpus_table(bill: Bill, job: Job) -> Rows:
    """The GPUs of a job."""
    rows: Rows = [("GPU", "Model", *_FIGURES, "Peak memory", "Energy")]
    for gpu in job.gpus:
        model, figures = short(gpu.model or ""), _figures(bill, gpu)
        rows.append((gpu.name, model, *figures, _memory(gpu), _energy(gpu)))
    return _filled(rows)


def _figures(bill: Bill, use: Use) -> tuple[str, ...]:
    lost = use.lost_seconds
    return percent(use.busy_ratio), hours(lost), money(bill, lost), mostly(use)


def _filled(rows: Rows) -> Rows:
    """Without columns in which nothing stands."""
    kept = [at for at in range(len(rows[0])) if any(row[at] not in ("", DASH) for row in rows[1:])]
    return [tuple(row[at] for at in kept) for row in rows] if kept else [rows[0]]
