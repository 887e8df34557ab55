"""A report for a terminal or an e-mail, and as Markdown."""

from __future__ import annotations

import re

from gpu_bottleneck_exporter.nodeview.text import percent
from gpu_bottleneck_exporter.report import words
from gpu_bottleneck_exporter.report.bill import Bill

_WIDE = 37
"""Cells of a bar of 100 %."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_PLAIN = re.compile(r"(?!_|.*(www\.|__|:\S))[\w ./%€$£¥+,:'()→\u2013-]*")
"""What Markdown takes as it stands: no markup, no link."""


def text(bill: Bill) -> str:
    """The report as plain text."""
    if (job := bill.single) is None:
        lines = [words.summary(bill)]
        for rows in words.tables(bill).values():
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            cells = (zip(row, widths, strict=True) for row in rows if len(rows) > 1)
            lines += ["", *("  ".join(f"{cell:{wide}}" for cell, wide in row) for row in cells)]
        return "\n".join(line.rstrip() for line in (*lines, "", *words.record(bill))).rstrip()
    busy = job.use.busy_ratio or 0.0
    name = f"{words.heading(job)} ({words.who(bill, job)})"
    told = [
        f"{_bar(busy):{_WIDE}} {words.loss(bill, job.use)}",
        "   ".join(words.waits(job.use)),
        *words.about(bill, job),
        *words.record(bill),
    ]
    return "\n".join([f"{name:50} busy {percent(busy)}", *(f"  {line}" for line in told if line)])


def markdown(bill: Bill) -> str:
    """The report as Markdown (GitHub's)."""
    tables, lines = [*words.tables(bill).values()], [f"## {marked(words.title(bill))}", ""]
    if job := bill.single:
        lines.append(f"{marked(words.who(bill, job))}:")
        del tables[:-1]
    lines.append(words.summary(bill))
    for head, *rows in tables:
        ruled = [head, ("---",) * len(head), *rows] if rows else []
        lines += ["", *(f"| {' | '.join(map(marked, row))} |" for row in ruled)]
    if job:
        lines += ["", *(f"- {marked(line)}" for line in words.about(bill, job))]
    return "\n".join([*lines, "", *words.record(bill)]).rstrip()


def marked(name: str) -> str:
    """`name` as text in Markdown: what could be markup, HTML or a link is escaped."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(f"\\{c}" if c.isascii() and not c.isalnum() and c != " " else c for c in name)


def _bar(share: float) -> str:
    eighths = round(share * _WIDE * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
