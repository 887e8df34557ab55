"""A report as one page: no script, nothing loaded, legible in light and dark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import zip_longest

from gpu_bottleneck_exporter.accounting.stall import UNALLOCATED, UNKNOWN
from gpu_bottleneck_exporter.jobs.model import Gpu, steps
from gpu_bottleneck_exporter.markup.html import Html, described, element, filled, join, listed
from gpu_bottleneck_exporter.markup.strip import WORDS, axis, legend, strip
from gpu_bottleneck_exporter.markup.style import STYLE, digest
from gpu_bottleneck_exporter.nodeview.model import DASH, KEPT_BUSY, Parts, named, parts_of
from gpu_bottleneck_exporter.nodeview.text import parts
from gpu_bottleneck_exporter.palette import WAITING_ON
from gpu_bottleneck_exporter.remedies import MEANINGS
from gpu_bottleneck_exporter.report import text as words
from gpu_bottleneck_exporter.report.bill import Bill, utc

_PAGE = (files(__package__) / "report.html").read_text(encoding="utf-8")
_STYLE = Html(STYLE + (files(__package__) / "report.css").read_text(encoding="utf-8"))
_COLUMNS = 60
_LEGEND = WORDS | {UNALLOCATED: words.BEFORE}
_MEANINGS = MEANINGS | {UNALLOCATED: "the job had not opened the GPU yet"}


def html(bill: Bill) -> str:
    """The page."""
    sections = [words.Section("What could not be read", bill.missing)] if bill.missing else []
    sections += [] if bill.single else words.totals(bill)
    sections += [words.section(bill, job) for job in bill.listed]
    return filled(
        _PAGE,
        policy=f"default-src 'none'; style-src {digest(_STYLE)}",
        style=_STYLE,
        title=words.title(bill),
        summary=words.summary(bill),
        span=f"since {bill.since}, reported {utc(bill.time_seconds)}",
        main=join(*(_section(bill, part) for part in sections), _glossary(bill)),
    )


def _section(bill: Bill, part: words.Section) -> Html:
    content: list[Html | None] = [element("h2", _text(part.heading))]
    rows = part.rows
    if job := part.job:
        start, end = job.start_seconds or 0.0, job.end_seconds or bill.time_seconds
        if drawn := _drawn(job.gpus, start, end):
            content += [drawn, axis(utc(start), utc(end))]
            each = ("Over time", *(_drawn([gpu], start, end) or "" for gpu in job.gpus))
            rows = [(*row, cell) for row, cell in zip(rows, each, strict=True)]
        content.append(legend(_parts(parts_of(job.busy_seconds, job.stall_seconds)), _LEGEND))
    if part.lines:
        content.append(listed(map(_text, part.lines), "told", "What to know"))
    return element("section", *content, _table(part.heading, rows))


def _glossary(bill: Bill) -> Html | None:
    """What each wait in the report means, for readers without the documentation."""
    found = [(name, told) for name in bill.use.stall_ratios if (told := _MEANINGS.get(name))]
    heading = element("h2", "What GPUs waited for")
    return element("section", heading, described(found, "signals")) if found else None


def _drawn(gpus: Sequence[Gpu], start: float, end: float) -> Html | None:
    """The shares over time, with a text alternative: what a quarter of the time each was like."""
    heard = "; ".join(
        f"quarter {at}: {parts(named(shares)) or DASH}"
        for at, shares in enumerate(columns(gpus, start, end, 4), 1)
    )
    return strip(columns(gpus, start, end, _COLUMNS), _COLUMNS, f"What GPUs did over time. {heard}")


def columns(gpus: Iterable[Gpu], start: float, end: float, count: int) -> list[Parts]:
    """What these GPUs did in each of `count` equal parts of the time, in Unix seconds."""
    found = [defaultdict[str, float](float) for _ in range(count)]
    wide = (end - start) / count
    for line in (gpu.timeline for gpu in gpus if gpu.timeline and wide > 0):
        for at, spent in enumerate(zip_longest(*line.spent_seconds.values(), fillvalue=0.0)):
            begin = line.start_seconds + at * line.step_seconds - start
            for column, share in steps(begin, begin + line.step_seconds, wide, count):
                for name, seconds in zip(line.spent_seconds, spent, strict=True):
                    found[column][name] += share * seconds
    return [_parts(spent) for spent in found]


def _parts(seconds: Mapping[str, float]) -> Parts:
    """Shares of all these, by names that have a colour, in the same order at all times.

    Empty if nothing is known.
    """
    known = dict.fromkeys((KEPT_BUSY, *WAITING_ON), 0.0)
    for name, amount in seconds.items():
        known[name if name in known else UNKNOWN] += amount
    whole = sum(known.values())
    return {name: amount / whole for name, amount in known.items() if amount}


def _table(name: str, rows: Sequence[words.Row]) -> Html | None:
    if not rows:
        return None
    head = element("tr", *(element("th", column, scope="col") for column in rows[0]))
    body = (
        element("tr", element("th", _text(first), scope="row"), *map(_cell, cells))
        for first, *cells in rows[1:]
    )
    table = element("table", element("thead", head), element("tbody", *body), aria_label=name)
    # Who has no mouse scrolls what is wider than the page by keys.
    return element("div", table, class_="wide", tabindex="0", role="region", aria_label=name)


def _cell(text: str) -> Html:
    return element("td", text if isinstance(text, Html) else _text(text))


def _text(text: str) -> Html:
    """Text that turns nothing around it from left to right."""
    return element("bdi", text)
