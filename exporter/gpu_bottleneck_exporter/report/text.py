"""Renders a report as plain text, Markdown or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED
from gpu_bottleneck_exporter.jobs.model import DOCUMENT_VERSION, Job, Use
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import DASH, named
from gpu_bottleneck_exporter.nodeview.text import counted, duration, memory, parts, percent, short
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.report.about import about, change, claims, gpu_time, rounded
from gpu_bottleneck_exporter.report.bill import (
    HOUR_SECONDS,
    Deployment,
    JobReport,
    Served,
    energy_kwh,
)

_FIGURES = ("Busy", "GPU-hours lost", "Cost", "Main cause", "Estimated")
_SERVED = ("Prompt tokens", "Generated tokens", "Tokens per GPU-hour", "GPU-hours without demand")
Row = tuple[str, ...]
BEFORE = "before it opened the GPU"
"""Label of a job's unallocated time."""


class Section(NamedTuple):
    """A heading with its content."""

    heading: str
    lines: Sequence[str] = ()
    rows: Sequence[Row] = ()
    """A table, with column titles first."""
    job: Job | None = None


def text(report: JobReport) -> str:
    """The report as plain text."""
    if job := report.single:
        head, width = f"{heading(job)} ({description(report, job)})", 37
        bar = "█" * round(width * (job.busy_ratio or 0.0))
        lines = [f"{head:50} busy {percent(job.busy_ratio)}", f"{bar:{width}} {loss(report, job)}"]
        return "\n  ".join([*lines, causes(job), *findings(report, job)])
    lines = [summary(report)]
    for part in totals(report):
        lines += ["", *aligned(part.rows)]
    return "\n".join(lines)


def aligned(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def markdown(report: JobReport) -> str:
    """The report as Markdown (GitHub's)."""
    lines = [f"## {marked(title(report))}", "", marked(summary(report))]
    for part in [section(report, report.single)] if report.single else totals(report):
        head, *rows = part.rows or [()]
        ruled = [head, ("---",) * len(head), *rows] if rows else []
        lines += ["", *(f"| {' | '.join(map(marked, row))} |" for row in ruled)]
        lines += ["", *(f"- {marked(line)}" for line in part.lines)]
    return "\n".join(lines)


def marked(name: str) -> str:
    """`name` with markup, HTML and links escaped for Markdown."""
    markup = r"[\\`*<>|~&@#$\[\]]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\."
    return re.sub(markup, r"\\\g<0>", name)


def json(report: JobReport) -> str:
    """The report as JSON; null is unknown."""

    def summed(use: Use) -> dict[str, object]:
        return {
            "observed_seconds": use.observed_seconds,
            "busy_ratio": use.busy_ratio,
            "stall_ratios": use.stall_ratios,
            "lost_gpu_hours": use.lost_seconds / HOUR_SECONDS,
            "lost_cost": report.cost(use),
            "estimated_seconds": use.estimated_seconds,
        }

    whole = {
        "version": DOCUMENT_VERSION,
        "time_seconds": report.time_seconds,
        "since_seconds": report.time_seconds - report.query.seconds,
        "currency": None if report.query.hourly_cost is None else report.query.currency,
        "job_count": len(report.jobs),
        "total": summed(report.use) | {"served": _output(report.all_served)},
        "owners": [
            {"owner": name, **summed(use), "served": _output(report.served_by_owner.get(name))}
            for name, use in report.owners.items()
        ],
        "jobs": [
            document(job)
            | summed(job)
            | about(report, job)
            | {"co2_kg": report.co2_kg(energy_kwh(job.gpus))}
            | {"served": _output(report.served.get(job))}
            for job in report.listed
        ],
        "deployments": [document(of) for of in report.deployments],
        "missing": report.missing,
    }
    return dumps(whole)


def _output(served: Served | None) -> dict[str, object] | None:
    if not served:
        return None
    return {
        "prompt_tokens": served.tokens.get("prefill"),
        "generated_tokens": served.tokens.get("decode"),
        "tokens_per_gpu_hour": served.tokens_per_gpu_hour,
        "gpu_hours": served.gpu_seconds / HOUR_SECONDS,
        "gpu_hours_without_demand": served.unasked_seconds / HOUR_SECONDS,
    }


def section(report: JobReport, job: Job) -> Section:
    """The GPUs of one job."""
    whole = f"{description(report, job)}: {figures(report, job)}"
    gpus: list[Row] = []
    for gpu in job.gpus:
        energy = DASH if gpu.energy_joules is None else f"{gpu.energy_joules / 3.6e6:.3g} kWh"
        peak = memory(gpu.memory_peak_bytes, gpu.memory_total_bytes)
        gpus.append((gpu.name, short(gpu.model or ""), *_cells(report, gpu), peak, energy))
    rows = _table(("GPU", "Model", *_FIGURES, "Peak memory", "Energy"), gpus)
    return Section(heading(job), [whole, *findings(report, job)], rows, job)


def findings(report: JobReport, job: Job) -> Iterator[str]:
    """Sentences about a job."""
    if text := claims(job):
        yield f"Claims: {text}"
    if share := _estimated(job):
        yield f"Estimated: {share} of the GPU time is an equal share of shared GPUs, not measured"
    kwh = energy_kwh(job.gpus)
    if kwh is not None and (co2 := report.co2_kg(kwh)) is not None:
        yield f"Energy: {rounded(kwh)} kWh, {rounded(co2)} kg of CO2"
    if served := report.served.get(job):
        yield from output(served)
    yield from filter(None, about(report, job).values())


def output(served: Served) -> Iterator[str]:
    """Sentences about tokens, demand and replicas."""
    names = {"prefill": "prompt", "decode": "generated"}
    counts = [
        f"{amount(served.tokens[of])} {name}" for of, name in names.items() if of in served.tokens
    ]
    if counts and (rate := served.tokens_per_gpu_hour) is not None:
        yield f"Served {' and '.join(counts)} tokens, {amount(rate)} per GPU-hour"
    whole, unasked = served.gpu_seconds, served.unasked_seconds
    if whole:
        hours = f"{rounded(unasked / HOUR_SECONDS)} of {rounded(whole / HOUR_SECONDS)}"
        yield f"GPU-hours without demand: {hours} ({percent(unasked / whole)})"
    if of := served.deployment:
        yield f"Deployment {short(of.name)}: {replicas(of)}"


def amount(tokens: float) -> str:
    """`1.2 million`, `531`."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if tokens >= size:
            return f"{rounded(tokens / size)} {name}"
    return rounded(round(tokens))


def replicas(of: Deployment) -> str:
    """`2 of 6 replicas would do`, for the most requests at once of the last week."""
    if of.replicas_needed >= of.replicas:
        all_of = "its only replica" if of.replicas == 1 else f"all {of.replicas} replicas"
        return f"the last week needed {all_of}"
    return f"{of.replicas_needed} of {counted(f'{of.replicas}', 'replica')} would do"


def totals(report: JobReport) -> Iterator[Section]:
    """All jobs, and their owners."""
    jobs: list[Row] = []
    for job in report.listed:
        cells, gpus = _cells(report, job), f"{len(job.gpus) or ''}"
        output = _served_cells(report.served.get(job))
        origin = short(job.owner_name), short(job.command or ""), short(claims(job))
        jobs.append((short(job.name), gpus, *cells, *output, *origin, change(job) or ""))
    columns = ("Job", "GPUs", *_FIGURES, *_SERVED, "Owner", "Command", "Claims", "Do first")
    if more := len(report.jobs) - len(report.listed):
        jobs.append((f"and {more} more (see --limit)", *[""] * (len(columns) - 1)))
    yield Section("Jobs", rows=_table(columns, jobs))
    owners = (
        (short(name), *_cells(report, use), *_served_cells(report.served_by_owner.get(name)))
        for name, use in report.owners.items()
    )
    yield Section("Owners", rows=_table(("Owner", *_FIGURES, *_SERVED), owners))
    if report.deployments:
        names = ((short(of.name), short(of.cluster), replicas(of)) for of in report.deployments)
        rows = _table(("Deployment", "Cluster", "Replicas"), names)
        yield Section("Deployments", rows=rows)


def _cells(report: JobReport, use: Use) -> Row:
    cause = causes(use).partition(", ")[0]
    return percent(use.busy_ratio), *_lost(report, use), cause, _estimated(use)


def _estimated(use: Use) -> str:
    """Estimated share of the time; empty without any."""
    seconds, whole = use.estimated_seconds, use.observed_seconds
    return percent(min(seconds / whole, 1.0)) if seconds and whole else ""


def _served_cells(served: Served | None) -> Row:
    """Cells of the columns `_SERVED`, empty if unknown."""
    if not served:
        return ("",) * len(_SERVED)
    values = *map(served.tokens.get, ("prefill", "decode")), served.tokens_per_gpu_hour
    unasked = rounded(served.unasked_seconds / HOUR_SECONDS)
    return *("" if value is None else amount(value) for value in values), unasked


def _table(head: Row, rows: Iterable[Row]) -> Sequence[Row]:
    columns = zip(head, *rows, strict=True)
    return [*zip(*(cells for cells in columns if {*cells[1:]} - {"", DASH}), strict=True)]


def title(report: JobReport) -> str:
    """`Job 4711`, or the title for several."""
    return heading(report.single) if report.single else "GPU report"


def heading(job: Job) -> str:
    """`Job 4711`, `Pod vision/train-0`."""
    return f"{'Pod' if job.name == job.pod else 'Job'} {short(job.name)}"


def summary(report: JobReport) -> str:
    """`3 jobs, busy 5 %, lost 106 GPU-hours: asleep 89 %, storage 6 %`."""
    jobs = counted(f"{len(report.jobs)}", "job")
    return f"{jobs}, {figures(report, report.use)}: {causes(report.use)}"


def figures(report: JobReport, use: Use) -> str:
    """`busy 5 %, lost 106 GPU-hours`."""
    return f"busy {percent(use.busy_ratio)}, {loss(report, use)}"


def loss(report: JobReport, use: Use) -> str:
    """`lost 15.1 GPU-hours = 37.8 €`."""
    _, cost = _lost(report, use)
    return f"lost {gpu_time(use.lost_seconds)}{f' = {cost}' if cost else ''}"


def _lost(report: JobReport, use: Use) -> Row:
    cost, currency = report.cost(use), report.query.currency
    symbol = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}.get(currency, currency)
    price = "" if cost is None else f"{rounded(cost)} {symbol}"
    return rounded(use.lost_seconds / HOUR_SECONDS), price


def description(report: JobReport, job: Job) -> str:
    """`ada, train.py, 8 GPUs on 2 nodes, 3 h 12 min`, as far as known."""
    items = [*filter(None, (short(job.owner_name), short(job.command or "")))]
    if job.gpus:
        count = len({gpu.node for gpu in job.gpus})
        nodes = f" on {count} nodes" if count > 1 else ""
        items.append(f"{counted(f'{len(job.gpus)}', 'GPU')}{nodes}")
    if job.start_seconds is not None:
        so_far = "" if job.end_seconds else " so far"
        items.append(_span((job.end_seconds or report.time_seconds) - job.start_seconds) + so_far)
    return ", ".join(items)


def _span(seconds: float) -> str:
    whole, minutes = divmod(int(seconds / 60), 60)
    return f"{whole} h {minutes} min" if whole else duration(seconds)


def causes(use: Use) -> str:
    """`worker_cpu 38 %, asleep 14 %`: largest first; a dash without any."""
    shares = named(use.stall_ratios).items()
    return parts({BEFORE if name == UNALLOCATED else name: share for name, share in shares}) or DASH
