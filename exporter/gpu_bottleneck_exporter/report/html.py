"""A report as one page: no script, nothing loaded, legible in light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from importlib.resources import files

from gpu_bottleneck_exporter.accounting.stall import UNKNOWN
from gpu_bottleneck_exporter.jobs.model import Gpu, Job, Use
from gpu_bottleneck_exporter.nodeview.model import Parts, parts_of
from gpu_bottleneck_exporter.nodeview.text import percent
from gpu_bottleneck_exporter.palette import WAITING_ON
from gpu_bottleneck_exporter.report import words
from gpu_bottleneck_exporter.report.bill import Bill, columns
from gpu_bottleneck_exporter.web.status.assets import STYLE, digest
from gpu_bottleneck_exporter.web.status.html import Html, element, filled, join, listed
from gpu_bottleneck_exporter.web.status.strip import legend, strip

_PAGE = (files(__package__) / "report.html").read_text(encoding="utf-8")
_STYLE = Html(STYLE + (files(__package__) / "report.css").read_text(encoding="utf-8"))
_COLUMNS = 60
_DRAWN_GPUS = 32
"""A table of more has no drawings."""


def html(bill: Bill) -> str:
    """The page."""
    single, parts = bill.single, []
    if bill.missing:
        parts.append(listed(map(_text, bill.missing), "notice", "What could not be read"))
    for caption, rows in words.tables(bill).items() if not single else ():
        parts.append(_section(f"{rows[0][0]}s", _table(caption, rows)))
    parts += [_job(bill, job, "Over time" if single else words.heading(job)) for job in bill.jobs]
    parts += [_section("Recommendations", element("p", line)) for line in words.record(bill)]
    begun = None if single else bill.since_seconds
    since = f"since {_time(begun)}, " if begun else ""
    return filled(
        _PAGE,
        policy=f"default-src 'none'; style-src {digest(_STYLE)}",
        style=_STYLE,
        title=words.title(bill),
        summary=words.summary(bill),
        span=f"{since}reported {_time(bill.time_seconds)}",
        main=join(*parts),
    )


def _job(bill: Bill, job: Job, heading: str) -> Html:
    start, end = job.start_seconds or 0.0, job.end_seconds or bill.time_seconds
    figures = f": busy {percent(job.use.busy_ratio)}, {words.loss(bill, job.use)}"
    about = [_text(line) for line in words.about(bill, job)]
    axis = element("div", *(element("span", _time(at)) for at in (start, end)), class_="axis")
    drawn = _drawn(job.gpus, start, end)
    head, *rows = words.gpus_table(bill, job)
    if len(rows) <= _DRAWN_GPUS:
        lines = (_drawn([gpu], start, end) or "" for gpu in job.gpus)
        rows = [(*row, line) for row, line in zip(rows, lines, strict=True)]
        head = (*head, "Over time")
    return _section(
        heading,
        element("p", _text(words.who(bill, job)), None if bill.single else figures),
        join(drawn, axis) if drawn else None,
        legend(_parts(job.use)),
        listed(about, "told", "What to know") if about else None,
        _table("Its GPUs", [head, *rows]) if rows else None,
    )


def _drawn(gpus: Sequence[Gpu], start: float, end: float) -> Html | None:
    """The shares over time, with a text alternative: what a quarter of the time each was like."""
    heard = "; ".join(
        f"quarter {at}: busy {percent(use.busy_ratio)}, {words.mostly(use)}"
        for at, use in enumerate(columns(gpus, start, end, 4), 1)
    )
    uses = columns(gpus, start, end, _COLUMNS)
    return strip([_parts(use) for use in uses], _COLUMNS, f"What GPUs did over time. {heard}")


def _parts(use: Use) -> Parts:
    """Shares of the observed time, by names that have a colour; empty if unknown."""
    if use.busy_ratio is None:
        return {}
    known = dict.fromkeys(WAITING_ON, 0.0)  # in the same order at all times
    for cause, ratio in use.stall_ratios.items():
        known[cause if cause in WAITING_ON else UNKNOWN] += ratio
    return parts_of(use.busy_ratio, {cause: ratio for cause, ratio in known.items() if ratio})


def _section(heading: str, *content: Html | None) -> Html:
    return element("section", element("h2", _text(heading)), *content)


def _table(caption: str, rows: words.Rows) -> Html:
    head, *body = rows
    heading = element("thead", element("tr", *(element("th", cell, scope="col") for cell in head)))
    lines = (element("tr", *_cells(*row)) for row in body)
    table = element("table", element("caption", caption), heading, element("tbody", *lines))
    # Who has no mouse scrolls what is wider than the page by keys.
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=caption)


def _cells(first: str, *others: str) -> Iterator[Html]:
    yield element("th", _text(first), scope="row")
    for cell in others:
        yield element("td", cell if isinstance(cell, Html) else _text(cell))


def _text(text: str) -> Html:
    """Text that turns nothing around it from left to right."""
    return element("bdi", text)


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M} UTC"
