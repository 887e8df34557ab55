"""A report as one HTML page: no script, nothing loaded, light and dark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import zip_longest

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED, UNKNOWN
from gpu_bottleneck_exporter.jobs.model import JobGpu, steps
from gpu_bottleneck_exporter.markup.html import Html, described, element, filled, join, listed
from gpu_bottleneck_exporter.markup.strip import LEGEND_TEXTS, axis, legend, strip
from gpu_bottleneck_exporter.markup.style import STYLE, digest
from gpu_bottleneck_exporter.nodeview.model import DASH, KEPT_BUSY, Parts, named, parts_of
from gpu_bottleneck_exporter.nodeview.text import parts
from gpu_bottleneck_exporter.palette import WAIT_COLOURS
from gpu_bottleneck_exporter.remedies import MEANINGS
from gpu_bottleneck_exporter.report import text as words
from gpu_bottleneck_exporter.report.bill import JobReport, utc


def html(report: JobReport) -> str:
    """`report` as a page."""
    sections = [words.Section("What could not be read", report.missing)] if report.missing else []
    sections += [] if report.single else words.totals(report)
    sections += [words.section(report, job) for job in report.listed]
    folder = files(__package__)
    style = Html(STYLE + (folder / "report.css").read_text(encoding="utf-8"))
    return filled(
        (folder / "report.html").read_text(encoding="utf-8"),
        policy=f"default-src 'none'; style-src {digest(style)}",
        style=style,
        title=words.title(report),
        summary=words.summary(report),
        span=f"since {report.since}, reported {utc(report.time_seconds)}",
        main=join(*(_section(report, part) for part in sections), _glossary(report)),
    )


def _section(report: JobReport, part: words.Section) -> Html:
    content: list[Html | None] = [element("h2", _text(part.heading))]
    rows = part.rows
    if job := part.job:
        start, end = job.start_seconds or 0.0, job.end_seconds or report.time_seconds
        if drawn := _drawn(job.gpus, start, end):
            content += [drawn, axis(utc(start), utc(end))]
            each = ("Over time", *(_drawn([gpu], start, end) or "" for gpu in job.gpus))
            rows = [(*row, cell) for row, cell in zip(rows, each, strict=True)]
        content.append(
            legend(
                _parts(parts_of(job.busy_seconds, job.stall_seconds)),
                LEGEND_TEXTS | {UNALLOCATED: words.BEFORE},
            )
        )
    if part.lines:
        content.append(listed(map(_text, part.lines), "told", "What to know"))
    return element("section", *content, _table(part.heading, rows))


def _glossary(report: JobReport) -> Html | None:
    meanings = MEANINGS | {UNALLOCATED: "the job had not opened the GPU yet"}
    terms = [(name, meanings[name]) for name in report.use.stall_ratios if meanings.get(name)]
    heading = element("h2", "What GPUs waited for")
    return element("section", heading, described(terms, "signals")) if terms else None


def _drawn(gpus: Sequence[JobGpu], start: float, end: float) -> Html | None:
    """Shares over time, with those of quarters as text."""
    text = "; ".join(
        f"quarter {at}: {parts(named(shares)) or DASH}"
        for at, shares in enumerate(columns(gpus, start, end, 4), 1)
    )
    cells = 60
    return strip(columns(gpus, start, end, cells), cells, f"What GPUs did over time. {text}")


def columns(gpus: Iterable[JobGpu], start: float, end: float, count: int) -> list[Parts]:
    """Shares in `count` equal parts of a span of Unix time."""
    sums = [defaultdict[str, float](float) for _ in range(count)]
    wide = (end - start) / count
    for line in (gpu.timeline for gpu in gpus if gpu.timeline and wide > 0):
        for at, spent in enumerate(zip_longest(*line.spent_seconds.values(), fillvalue=0.0)):
            begin = line.start_seconds + at * line.step_seconds - start
            for column, share in steps(begin, begin + line.step_seconds, wide, count):
                for name, seconds in zip(line.spent_seconds, spent, strict=True):
                    sums[column][name] += share * seconds
    return [_parts(spent) for spent in sums]


def _parts(seconds: Mapping[str, float]) -> Parts:
    amounts = dict.fromkeys((KEPT_BUSY, *WAIT_COLOURS), 0.0)
    for name, amount in seconds.items():
        amounts[name if name in amounts else UNKNOWN] += amount
    whole = sum(amounts.values())
    return {name: amount / whole for name, amount in amounts.items() if amount}


def _table(name: str, rows: Sequence[words.Row]) -> Html | None:
    if not rows:
        return None
    head = element("tr", *(element("th", column, scope="col") for column in rows[0]))
    body = (
        element("tr", element("th", _text(first), scope="row"), *map(_cell, cells))
        for first, *cells in rows[1:]
    )
    table = element("table", element("thead", head), element("tbody", *body), aria_label=name)
    # Focusable, so that keys scroll a wide table.
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=name)


def _cell(text: str) -> Html:
    return element("td", text if isinstance(text, Html) else _text(text))


def _text(text: str) -> Html:
    """Text, isolated from the direction of its surroundings."""
    return element("bdi", text)
