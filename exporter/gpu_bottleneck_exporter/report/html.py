"""A report as one page: no script, nothing loaded, legible in light and dark."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from hashlib import sha256
from importlib.resources import files

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.nodeview.model import Parts, parts_of
from gpu_bottleneck_exporter.nodeview.text import memory, percent
from gpu_bottleneck_exporter.palette import WAITING_ON
from gpu_bottleneck_exporter.report import words
from gpu_bottleneck_exporter.report.bill import Bill, columns
from gpu_bottleneck_exporter.report.model import Gpu, Job, Use
from gpu_bottleneck_exporter.report.text import (
    Rows,
    causes_table,
    jobs_table,
    owners_table,
    summary,
    without_empty,
)
from gpu_bottleneck_exporter.web.status.assets import STYLE
from gpu_bottleneck_exporter.web.status.html import Html, element, filled, join, listed
from gpu_bottleneck_exporter.web.status.strip import legend, strip

_STYLE = Html(STYLE + (files(__package__) / "report.css").read_text(encoding="utf-8"))
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'"
)
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title>
<style>$style</style>
</head>
<body class="report">
<header><h1>$title</h1><p id="summary">$summary</p><p class="span">$span</p></header>
<main>$main</main>
</body>
</html>
"""
_HEADING = "GPU,Model,Busy,GPU-hours lost,Mostly,Peak memory,Energy,Over time"
_COLUMNS = 60
_DRAWN_GPUS = 32
"""A table of more has no drawings."""


def html(bill: Bill) -> str:
    """The page."""
    single = bill.count == 1
    parts = [_missing(bill)] if bill.missing else []
    if not single:
        parts += [
            _section("Jobs", _table("The jobs that lost most", jobs_table(bill))),
            _section("Owners", _table("All jobs, by owner", owners_table(bill))),
            _section("Causes", _table("All jobs, by what GPUs waited for", causes_table(bill))),
        ]
    parts += [_job(bill, job, "Over time" if single else words.title(job)) for job in bill.jobs]
    if bill.track:
        parts.append(_section("Recommendations", element("p", words.record(bill.track))))
    since = f"since {_time(bill.since_seconds)}, " if bill.since_seconds is not None else ""
    return filled(
        _PAGE,
        policy=_POLICY,
        style=_STYLE,
        title=words.title(bill.jobs[0]) if single else "GPU report",
        summary=summary(bill).removeprefix("1 job, "),
        span=f"{since}reported {_time(bill.time_seconds)}",
        main=join(*parts),
    )


def _section(heading: str, *content: Html | None) -> Html:
    return element("section", element("h2", element("bdi", heading)), *content)


def _missing(bill: Bill) -> Html:
    lines = (element("bdi", line) for line in bill.missing)
    return listed(lines, "notice", "What could not be read")


def _job(bill: Bill, job: Job, heading: str) -> Html:
    start, end = job.start_seconds, job.end_seconds or bill.time_seconds
    who = f"{words.short(job.owner_name)}, {words.extent(job, bill.time_seconds)}"
    figures = f"busy {percent(job.use.busy_ratio)}, lost {words.loss(bill, job.use)}"
    told = [element("bdi", line) for line in words.about(bill, job)]
    return _section(
        heading,
        element("p", element("bdi", who), None if bill.count == 1 else f": {figures}"),
        _drawn(job.gpus, start, end) if start is not None else None,
        element("div", element("span", _time(start)), element("span", _time(end)), class_="axis")
        if start
        else None,
        legend(_parts(job.use)),
        listed(told, "told", "What to know") if told else None,
        _table("Its GPUs", _gpus(job, end)) if job.gpus else None,
    )


def _gpus(job: Job, end: float) -> Rows:
    rows: Rows = [tuple(_HEADING.split(","))]
    for gpu in job.gpus:
        joules, drawn = gpu.energy_joules, None
        if len(job.gpus) <= _DRAWN_GPUS:
            drawn = _drawn([gpu], job.start_seconds or gpu.start_seconds, end)
        figures = (
            words.short(gpu.model or ""),
            percent(gpu.use.busy_ratio),
            words.hours(gpu.use.lost_seconds),
            words.mostly(gpu.use),
            memory(gpu.memory_peak_bytes, gpu.memory_total_bytes),
            "" if joules is None else words.energy(joules),
        )
        rows.append((gpu.name, *figures, drawn or ""))
    return without_empty(rows)


def _drawn(gpus: Sequence[Gpu], start: float, end: float) -> Html | None:
    """The shares over time, with a text alternative: what a quarter of the time each was like."""
    uses = columns(gpus, start, end, _COLUMNS)
    fourths = columns(gpus, start, end, 4)
    heard = "; ".join(f"quarter {at}: {_heard(use)}" for at, use in enumerate(fourths, 1))
    return strip([_parts(use) for use in uses], _COLUMNS, f"What GPUs did over time. {heard}")


def _heard(use: Use) -> str:
    if use.busy_ratio is None:
        return "nothing is known"
    return f"busy {percent(use.busy_ratio)}, {words.mostly(use)}"


def _parts(use: Use) -> Parts:
    """Shares of the observed time, by names that have a colour; empty if unknown."""
    if use.busy_ratio is None:
        return {}
    known = dict.fromkeys(WAITING_ON, 0.0)  # in the same order at all times
    for cause, ratio in use.stall_ratios.items():
        known[cause if cause in WAITING_ON else UNKNOWN] += ratio
    return parts_of(use.busy_ratio, {cause: ratio for cause, ratio in known.items() if ratio})


def _table(caption: str, rows: Sequence[tuple[str, ...]]) -> Html:
    head, *body = rows
    heading = element("thead", element("tr", *(element("th", cell, scope="col") for cell in head)))
    lines = (element("tr", *_cells(row)) for row in body)
    table = element("table", element("caption", caption), heading, element("tbody", *lines))
    # Who has no mouse scrolls what is wider than the page by keys.
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=caption)


def _cells(row: Sequence[str]) -> Iterator[Html]:
    first, *others = row
    yield element("th", element("bdi", first), scope="row")
    for cell in others:
        yield element("td", cell if isinstance(cell, Html) else element("bdi", cell))


def _time(at: float | None) -> str:
    """Date and time, as far as Python's calendar goes."""
    try:
        return f"{datetime.fromtimestamp(at or 0.0, timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "unknown"
