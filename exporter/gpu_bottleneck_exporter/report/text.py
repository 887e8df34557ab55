"""A report for a terminal or an e-mail, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpu_bottleneck_exporter.nodeview.model import DASH
from gpu_bottleneck_exporter.nodeview.text import percent
from gpu_bottleneck_exporter.report import bill as sums
from gpu_bottleneck_exporter.report import words
from gpu_bottleneck_exporter.report.bill import Bill

_WIDE = 37
"""Cells of a bar of 100 %."""
_NARROW = 32
"""Characters of a name in a table."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_PLAIN = re.compile(r"(?!_|.*(www\.|__|:\S))[\w ./%€$£¥+,:'()→\u2013-]*")
"""What Markdown takes as it stands: no markup, no link."""
Rows = list[tuple[str, ...]]


def text(bill: Bill) -> str:
    """The report as plain text."""
    return "\n".join(_single(bill) if bill.count == 1 else _several(bill))


def markdown(bill: Bill) -> str:
    """The report as Markdown (GitHub's)."""
    return "\n".join(_marked(bill))


def jobs_table(bill: Bill) -> Rows:
    """The listed jobs, with a heading; what is unknown of all is left out."""
    rows = [("Job", "GPUs", "Busy", "GPU-hours lost", "Cost", "Mostly", "Owner", "Do first")]
    for job in bill.jobs:
        advice = sums.first(job)
        rows.append(
            (
                words.short(job.name, _NARROW),
                f"{job.boards}" if job.gpus else "",
                percent(job.use.busy_ratio),
                words.hours(job.use.lost_seconds),
                words.money(bill, job.use.lost_seconds),
                words.mostly(job.use),
                words.short(job.owner_name, _NARROW),
                words.change(advice, job) if advice and advice.knob else "",
            )
        )
    return without_empty(rows)


def owners_table(bill: Bill) -> Rows:
    """The totals by owner, with a heading."""
    rows = [("Owner", "Busy", "GPU-hours lost", "Cost", "Mostly")]
    rows += [
        (
            words.short(name, _NARROW),
            percent(use.busy_ratio),
            words.hours(use.lost_seconds),
            words.money(bill, use.lost_seconds),
            words.mostly(use),
        )
        for name, use in bill.owners.items()
    ]
    return without_empty(rows)


def causes_table(bill: Bill) -> Rows:
    """The totals by cause, with a heading."""
    ratios = bill.use.stall_ratios
    rows = [("Cause", "Share", "GPU-hours lost", "Cost")]
    for cause, ratio in ratios.items():
        seconds = bill.use.stall_seconds[cause]
        rows.append((cause, percent(ratio), words.hours(seconds), words.money(bill, seconds)))
    return without_empty(rows)


def summary(bill: Bill) -> str:
    """All of it in a line."""
    use = bill.use
    if not bill.count:
        return "No job"
    return (
        f"{words.counted(bill.count, 'job')}, busy {percent(use.busy_ratio)}, "
        f"lost {words.loss(bill, use)}"
    )


def _single(bill: Bill) -> Iterator[str]:
    (job,) = bill.jobs
    of = ", ".join(
        filter(None, (words.short(job.owner_name), words.extent(job, bill.time_seconds)))
    )
    yield f"{f'{words.title(job)} ({of})':50} busy {percent(job.use.busy_ratio)}"
    yield f"  {_bar(job.use.busy_ratio or 0.0):{_WIDE}} lost {words.loss(bill, job.use)}"
    if job.use.stall_ratios:
        yield f"  {words.causes(job.use.stall_ratios)}"
    yield from (f"  {line}" for line in words.about(bill, job))
    if bill.track:
        yield f"  {words.record(bill.track)}"


def _several(bill: Bill) -> Iterator[str]:
    yield summary(bill)
    for rows in (jobs_table(bill), owners_table(bill), causes_table(bill)):
        if len(rows) > 1:
            yield ""
            yield from _aligned(rows)
        if rows[0][0] == "Job" and bill.count > len(bill.jobs):
            yield f"and {bill.count - len(bill.jobs)} more (see --limit)"
    if bill.track:
        yield f"\n{words.record(bill.track)}"


def _marked(bill: Bill) -> Iterator[str]:
    if bill.count == 1:
        (job,) = bill.jobs
        yield f"## {marked(words.title(job))}"
        yield f"\n{marked(words.short(job.owner_name))}, {words.extent(job, bill.time_seconds)}:"
    else:
        yield "## GPU report\n"
    yield summary(bill).removeprefix("1 job, ")
    for rows in (jobs_table(bill), owners_table(bill), causes_table(bill)):
        if len(rows) > 1 and (bill.count > 1 or rows[0][0] == "Cause"):
            yield ""
            head, *body = rows
            for row in (head, tuple("---" for _ in head), *body):
                yield f"| {' | '.join(map(marked, row))} |"
    for job in bill.jobs if bill.count == 1 else ():
        yield ""
        yield from (f"- {marked(line)}" for line in words.about(bill, job))
    if bill.track:
        yield f"\n{words.record(bill.track)}"


def marked(name: str) -> str:
    """`name` as text in Markdown: what could be markup, HTML or a link is escaped."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(f"\\{c}" if c.isascii() and not c.isalnum() and c != " " else c for c in name)


def _aligned(rows: Rows) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:{wide}}" for cell, wide in zip(row, widths, strict=True)).rstrip()


def without_empty(rows: Sequence[tuple[str, ...]]) -> Rows:
    """`rows` without columns in which nothing stands."""
    kept = [at for at in range(len(rows[0])) if any(row[at] not in ("", DASH) for row in rows[1:])]
    return [tuple(row[at] for at in kept) for row in rows] if kept else [rows[0]]


def _bar(share: float) -> str:
    eighths = round(share * _WIDE * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
