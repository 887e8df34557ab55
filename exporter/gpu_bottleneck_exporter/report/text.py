"""What a report says: sentences and tables, for a terminal or an e-mail, as Markdown, as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED
from gpu_bottleneck_exporter.jobs.model import VERSION, Job, Use
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import DASH, named
from gpu_bottleneck_exporter.nodeview.text import duration, memory, parts, percent, short
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.report.about import about, change, claims, gpu_time, rounded
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill

_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥"}
_FIGURES = ("Busy", "GPU-hours lost", "Cost", "Mostly")
Row = tuple[str, ...]
BEFORE = "before it opened the GPU"
"""What a job's unallocated time is: its process was about to open the GPU."""
_WIDE = 37
"""Cells of a bar of 100 %."""
_MARKUP = re.compile(r"[\\`*<>|~&@#$\[\]]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\.")
"""What Markdown does not take as it stands."""


class Section(NamedTuple):
    """What stands under a heading of its own."""

    heading: str
    lines: Sequence[str] = ()
    rows: Sequence[Row] = ()
    """A table, under the names of its columns."""
    job: Job | None = None
    """The one that it is about."""


def text(bill: Bill) -> str:
    """The report as plain text."""
    if job := bill.single:
        head = f"{heading(job)} ({who(bill, job)})"
        bar = "█" * round(_WIDE * (job.busy_ratio or 0.0))
        told = [waits(job), *known(bill, job)]
        lines = [f"{head:50} busy {percent(job.busy_ratio)}"]
        return "\n  ".join([*lines, f"{bar:{_WIDE}} {loss(bill, job)}", *told])
    lines = [summary(bill)]
    for part in totals(bill):
        widths = [max(map(len, column)) for column in zip(*part.rows, strict=True)]
        lines += ["", *("  ".join(map(str.ljust, row, widths)).rstrip() for row in part.rows)]
    return "\n".join(lines)


def markdown(bill: Bill) -> str:
    """The report as Markdown (GitHub's)."""
    lines = [f"## {marked(title(bill))}", "", marked(summary(bill))]
    for part in [section(bill, bill.single)] if bill.single else totals(bill):
        head, *rows = part.rows or [()]
        ruled = [head, ("---",) * len(head), *rows] if rows else []
        lines += ["", *(f"| {' | '.join(map(marked, row))} |" for row in ruled)]
        lines += ["", *(f"- {marked(line)}" for line in part.lines)]
    return "\n".join(lines)


def marked(name: str) -> str:
    """`name` as text in Markdown: what could be markup, HTML or a link is escaped."""
    return _MARKUP.sub(r"\\\g<0>", name)


def json(bill: Bill) -> str:
    """The report as JSON; null is unknown."""

    def summed(use: Use) -> dict[str, object]:
        return {
            "observed_seconds": use.observed_seconds,
            "busy_ratio": use.busy_ratio,
            "stall_ratios": use.stall_ratios,
            "lost_gpu_hours": use.lost_seconds / HOUR_SECONDS,
            "lost_cost": bill.cost(use),
        }

    whole = {
        "version": VERSION,
        "time_seconds": bill.time_seconds,
        "since_seconds": bill.time_seconds - bill.wanted.seconds,
        "currency": None if bill.wanted.hourly_cost is None else bill.wanted.currency,
        "job_count": len(bill.jobs),
        "total": summed(bill.use),
        "owners": [{"owner": name, **summed(use)} for name, use in bill.owners.items()],
        "jobs": [document(job) | summed(job) | about(bill, job) for job in bill.listed],
        "missing": bill.missing,
    }
    return dumps(whole)


def section(bill: Bill, job: Job) -> Section:
    """One job, GPU by GPU."""
    whole = f"{who(bill, job)}: {figures(bill, job)}"
    gpus: list[Row] = []
    for gpu in job.gpus:
        energy = DASH if gpu.energy_joules is None else f"{gpu.energy_joules / 3.6e6:.3g} kWh"
        peak = memory(gpu.memory_peak_bytes, gpu.memory_total_bytes)
        gpus.append((gpu.name, short(gpu.model or ""), *_cells(bill, gpu), peak, energy))
    rows = _table(("GPU", "Model", *_FIGURES, "Peak memory", "Energy"), gpus)
    return Section(heading(job), [whole, *known(bill, job)], rows, job)


def known(bill: Bill, job: Job) -> Iterator[str]:
    """Sentences about a job beyond its figures."""
    if claimed := claims(job):
        yield f"Claims: {claimed}"
    yield from filter(None, about(bill, job).values())


def totals(bill: Bill) -> Iterator[Section]:
    """All jobs, and their owners."""
    jobs: list[Row] = []
    for job in bill.listed:
        cells, boards = _cells(bill, job), f"{len(job.gpus) or ''}"
        to_do = change(job) or ""
        whose = short(job.owner_name), short(job.command or ""), short(claims(job))
        jobs.append((short(job.name), boards, *cells, *whose, to_do))
    columns = ("Job", "GPUs", *_FIGURES, "Owner", "Command", "Claims", "Do first")
    if more := len(bill.jobs) - len(bill.listed):
        jobs.append((f"and {more} more (see --limit)", *[""] * (len(columns) - 1)))
    yield Section("Jobs", rows=_table(columns, jobs))
    owners = ((short(name), *_cells(bill, use)) for name, use in bill.owners.items())
    yield Section("Owners", rows=_table(("Owner", *_FIGURES), owners))


def _cells(bill: Bill, use: Use) -> Row:
    return percent(use.busy_ratio), *_lost(bill, use), waits(use).partition(", ")[0]


def _table(head: Row, rows: Iterable[Row]) -> Sequence[Row]:
    """Without columns in which nothing stands."""
    columns = zip(head, *rows, strict=True)
    return [*zip(*(one for one in columns if {*one[1:]} - {"", DASH}), strict=True)]


def title(bill: Bill) -> str:
    """`Job 4711`, or of several."""
    return heading(bill.single) if bill.single else "GPU report"


def heading(job: Job) -> str:
    """`Job 4711`, `Pod vision/train-0`."""
    return f"{'Pod' if job.name == job.pod else 'Job'} {short(job.name)}"


def summary(bill: Bill) -> str:
    """All of it in a line: `3 jobs, busy 5 %, lost 106 GPU-hours: asleep 89 %, storage 6 %`."""
    return f"{_counted(len(bill.jobs), 'job')}, {figures(bill, bill.use)}: {waits(bill.use)}"


def figures(bill: Bill, use: Use) -> str:
    """`busy 5 %, lost 106 GPU-hours`."""
    return f"busy {percent(use.busy_ratio)}, {loss(bill, use)}"


def loss(bill: Bill, use: Use) -> str:
    """`lost 15.1 GPU-hours = 37.8 €`."""
    _, cost = _lost(bill, use)
    return f"lost {gpu_time(use.lost_seconds)}{f' = {cost}' if cost else ''}"


def _lost(bill: Bill, use: Use) -> Row:
    """GPU-hours, and what they cost; empty without a price."""
    cost, currency = bill.cost(use), bill.wanted.currency
    price = "" if cost is None else f"{rounded(cost)} {_SYMBOLS.get(currency, currency)}"
    return rounded(use.lost_seconds / HOUR_SECONDS), price


def who(bill: Bill, job: Job) -> str:
    """`ada, train.py, 8 GPUs on 2 nodes, 3 h 12 min`, as far as known."""
    told = [*filter(None, (short(job.owner_name), short(job.command or "")))]
    if job.gpus:
        count = len({gpu.node for gpu in job.gpus})
        nodes = f" on {count} nodes" if count > 1 else ""
        told.append(f"{_counted(len(job.gpus), 'GPU')}{nodes}")
    if job.start_seconds is not None:
        so_far = "" if job.end_seconds else " so far"
        told.append(_span((job.end_seconds or bill.time_seconds) - job.start_seconds) + so_far)
    return ", ".join(told)


def _span(seconds: float) -> str:
    whole, minutes = divmod(int(seconds / 60), 60)
    return f"{whole} h {minutes} min" if whole else duration(seconds)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def waits(use: Use) -> str:
    """`worker_cpu 38 %, asleep 14 %`: the largest first; a dash if nothing was lost."""
    found = named(use.stall_ratios).items()
    return parts({BEFORE if name == UNALLOCATED else name: share for name, share in found}) or DASH
