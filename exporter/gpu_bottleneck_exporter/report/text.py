"""Renders a report as plain text, Markdown or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED
from gpu_bottleneck_exporter.jobs.model import DOCUMENT_VERSION, Job, Use
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import DASH, named
from gpu_bottleneck_exporter.nodeview.text import duration, memory, parts, percent, short
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.report.about import about, change, claims, gpu_time, rounded
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, JobReport

_FIGURES = ("Busy", "GPU-hours lost", "Cost", "Main cause")
Row = tuple[str, ...]
BEFORE = "before it opened the GPU"
"""Label of a job's unallocated time."""
_MARKUP = re.compile(r"[\\`*<>|~&@#$\[\]]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\.")
"""Characters that Markdown requires to be escaped."""


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
        widths = [max(map(len, column)) for column in zip(*part.rows, strict=True)]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in part.rows)]
    return "\n".join(lines)


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
    return _MARKUP.sub(r"\\\g<0>", name)


def json(report: JobReport) -> str:
    """The report as JSON; null is unknown."""

    def summed(use: Use) -> dict[str, object]:
        return {
            "observed_seconds": use.observed_seconds,
            "busy_ratio": use.busy_ratio,
            "stall_ratios": use.stall_ratios,
            "lost_gpu_hours": use.lost_seconds / HOUR_SECONDS,
            "lost_cost": report.cost(use),
        }

    whole = {
        "version": DOCUMENT_VERSION,
        "time_seconds": report.time_seconds,
        "since_seconds": report.time_seconds - report.query.seconds,
        "currency": None if report.query.hourly_cost is None else report.query.currency,
        "job_count": len(report.jobs),
        "total": summed(report.use),
        "owners": [{"owner": name, **summed(use)} for name, use in report.owners.items()],
        "jobs": [document(job) | summed(job) | about(report, job) for job in report.listed],
        "missing": report.missing,
    }
    return dumps(whole)


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
    yield from filter(None, about(report, job).values())


def totals(report: JobReport) -> Iterator[Section]:
    """All jobs, and their owners."""
    jobs: list[Row] = []
    for job in report.listed:
        cells, count = _cells(report, job), f"{len(job.gpus) or ''}"
        origin = short(job.owner_name), short(job.command or ""), short(claims(job))
        jobs.append((short(job.name), count, *cells, *origin, change(job) or ""))
    columns = ("Job", "GPUs", *_FIGURES, "Owner", "Command", "Claims", "Do first")
    if more := len(report.jobs) - len(report.listed):
        jobs.append((f"and {more} more (see --limit)", *[""] * (len(columns) - 1)))
    yield Section("Jobs", rows=_table(columns, jobs))
    owners = ((short(name), *_cells(report, use)) for name, use in report.owners.items())
    yield Section("Owners", rows=_table(("Owner", *_FIGURES), owners))


def _cells(report: JobReport, use: Use) -> Row:
    return percent(use.busy_ratio), *_lost(report, use), causes(use).partition(", ")[0]


def _table(head: Row, rows: Iterable[Row]) -> Sequence[Row]:
    """A table without empty columns."""
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
    return (
        f"{_counted(len(report.jobs), 'job')}, {figures(report, report.use)}: {causes(report.use)}"
    )


def figures(report: JobReport, use: Use) -> str:
    """`busy 5 %, lost 106 GPU-hours`."""
    return f"busy {percent(use.busy_ratio)}, {loss(report, use)}"


def loss(report: JobReport, use: Use) -> str:
    """`lost 15.1 GPU-hours = 37.8 €`."""
    _, cost = _lost(report, use)
    return f"lost {gpu_time(use.lost_seconds)}{f' = {cost}' if cost else ''}"


def _lost(report: JobReport, use: Use) -> Row:
    """Lost GPU-hours and their cost."""
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
        items.append(f"{_counted(len(job.gpus), 'GPU')}{nodes}")
    if job.start_seconds is not None:
        so_far = "" if job.end_seconds else " so far"
        items.append(_span((job.end_seconds or report.time_seconds) - job.start_seconds) + so_far)
    return ", ".join(items)


def _span(seconds: float) -> str:
    whole, minutes = divmod(int(seconds / 60), 60)
    return f"{whole} h {minutes} min" if whole else duration(seconds)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def causes(use: Use) -> str:
    """`worker_cpu 38 %, asleep 14 %`: largest first; a dash without any."""
    shares = named(use.stall_ratios).items()
    return parts({BEFORE if name == UNALLOCATED else name: share for name, share in shares}) or DASH
