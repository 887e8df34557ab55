"""A report for a terminal or an e-mail, as Markdown, and as JSON."""

from __future__ import annotations

import re
from typing import Any

from gpu_bottleneck_exporter.jobs.model import VERSION, Use
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.text import percent
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.report import words
from gpu_bottleneck_exporter.report.about import about
from gpu_bottleneck_exporter.report.bill import HOUR_SECONDS, Bill

_WIDE = 37
"""Cells of a bar of 100 %."""
_MARKUP = re.compile(r"[\\`*<>|~&@#\[\]]|(?<![^\W_])_|_(?![^\W_])|:(?=\S)|(?<=www)\.")
"""What Markdown does not take as it stands."""


def text(bill: Bill) -> str:
    """The report as plain text."""
    if job := bill.single:
        head = f"{words.heading(job)} ({words.who(bill, job)})"
        bar = "█" * round(_WIDE * (job.busy_ratio or 0.0))
        told = [words.waits(job), *filter(None, about(bill, job).values())]
        lines = [f"{head:50} busy {percent(job.busy_ratio)}"]
        return "\n  ".join([*lines, f"{bar:{_WIDE}} {words.loss(bill, job)}", *told])
    lines = [words.summary(bill)]
    for part in words.sections(bill):
        widths = [max(map(len, column)) for column in zip(*part.rows, strict=True)]
        rows = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in part.rows]
        lines += [] if part.job else ["", *rows, *part.lines]
    return "\n".join(lines)


def markdown(bill: Bill) -> str:
    """The report as Markdown (GitHub's)."""
    lines = [f"## {marked(words.title(bill))}", "", marked(words.summary(bill))]
    for part in words.sections(bill):
        if part.job is None or bill.single:
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

    def figures(use: Use) -> dict[str, Any]:
        return {
            "observed_seconds": use.observed_seconds,
            "busy_ratio": use.busy_ratio,
            "stall_ratios": use.stall_ratios,
            "lost_gpu_hours": use.lost_seconds / HOUR_SECONDS,
            "lost_cost": bill.cost(use.lost_seconds),
        }

    whole = {
        "version": VERSION,
        "time_seconds": bill.time_seconds,
        "since_seconds": bill.time_seconds - bill.wanted.seconds,
        "currency": None if bill.wanted.hourly_cost is None else bill.wanted.currency,
        "job_count": len(bill.jobs),
        "total": figures(bill.use),
        "owners": [{"owner": name, **figures(use)} for name, use in bill.owners.items()],
        "jobs": [document(job) | figures(job) | about(bill, job) for job in bill.listed],
        "missing": bill.missing,
    }
    return dumps(whole)
