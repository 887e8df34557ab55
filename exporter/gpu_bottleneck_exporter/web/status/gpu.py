"""One GPU or MIG instance on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_bottleneck_exporter.driver.about import DOWN
from gpu_bottleneck_exporter.nodeview.advice import outcome, prescription
from gpu_bottleneck_exporter.nodeview.model import (
    DASH,
    KEPT_BUSY,
    WORTH_NAMING,
    GpuView,
    Shares,
    likely_cause,
    notices,
)
from gpu_bottleneck_exporter.nodeview.text import duration, label, levels, owners, percent
from gpu_bottleneck_exporter.remedies import REMEDIES, RUNBOOK_OF_DOWN, RUNBOOKS
from gpu_bottleneck_exporter.web.status.html import Html, described, element, table_row

_WIDE, _HIGH = 1000, 100
"""Of the drawings, in their own units; CSS scales them."""
_COLUMNS = 60
"""Columns of a trend: 5 s each, 5 min in all; the last one is now."""


def card(at: int, gpu: GpuView, runbooks: str) -> Html:
    """The GPU at position `at`."""
    heading = f"gpu-{at}"
    colour = f"c-{gpu.cause or KEPT_BUSY}" if gpu.now.up and gpu.shares else "c-unknown"
    content = (_head(gpu, heading), *_body(gpu, runbooks))
    return element("li", element("article", *content, aria_labelledby=heading, class_=colour))


def row(at: int, gpu: GpuView) -> Html:
    """The same GPU in one line, with a link to its card."""
    name = element("a", label(gpu), href=f"#gpu-{at}")
    shares = gpu.shares
    strip = _drawing("bar", f"0 0 {_WIDE} 1", _spoken(shares), _rects(shares)) if shares else None
    return table_row(
        name,
        element("td", strip or DASH, class_="wide"),
        element("td", percent(shares.busy if shares else None), class_="number"),
        element("td", likely_cause(gpu), class_=None if gpu.now.up else "bad"),
    )


def _head(gpu: GpuView, heading: str) -> Html:
    name = element("small", gpu.now.name or "")
    title = element("h3", f"GPU {label(gpu)}", " ", name, id=heading)
    if gpu.now.up:
        busy = percent(gpu.shares.busy if gpu.shares else None)
        state = element("p", element("b", busy), " busy", class_="busy")
    else:
        state = element("p", element("b", "down"), class_="busy bad")
    return element("div", title, state, class_="head")


def _body(gpu: GpuView, runbooks: str) -> Iterator[Html | None]:
    if gpu.now.up:
        yield element("p", "Held by ", element("bdi", owners(gpu)), class_="owner")
    else:
        down, remedy = gpu.now.down or "see the log", gpu.now.down_remedy or DOWN
        yield _verdict(f"Down: {down}", None, remedy, _link(runbooks, RUNBOOK_OF_DOWN))
        return
    if gpu.shares:
        yield _bar(gpu.shares)
        yield _trend(gpu.trend)
        yield _parts(gpu.shares)
        yield _cause(gpu, gpu.shares, runbooks)
        if gpu.cause and gpu.now.evidence:
            seen = (element("li", element("bdi", text)) for text in gpu.now.evidence)
            yield element("ul", *seen, class_="seen", aria_label="Evidence")
        yield _advice(gpu)
    else:
        yield element("p", "Nothing observed in the last minute.")
    yield _facts(gpu)
    found = notices(gpu.now)
    if found:
        chips = (element("li", text) for text in found)
        yield element("ul", *chips, class_="chips", aria_label="Notices")


def _bar(shares: Shares) -> Html:
    """Busy and waiting shares, side by side."""
    lasted = f"last {duration(shares.seconds)}"
    text = f"The {lasted}: {_spoken(shares)}"
    return _strip(lasted, _drawing("bar", f"0 0 {_WIDE} 1", text, _rects(shares)))


def _rects(shares: Shares) -> list[Html]:
    rects, at = [], 0.0
    for name, part in _all(shares):
        width = part * _WIDE
        place = {"x": f"{at:.1f}", "width": f"{width:.1f}", "height": "1"}
        rects.append(element("rect", class_=f"c-{name}", **place))
        at += width
    return rects


def _strip(caption: str, drawing: Html) -> Html:
    said = element("span", caption, aria_hidden="true")
    return element("div", said, drawing, class_="strip")


def _trend(steps: Sequence[Shares | None]) -> Html | None:
    """The shares over time, one column per step."""
    known = [step for step in steps if step]
    if len(known) < 2:  # noqa: PLR2004 - one column is the bar again
        return None
    paths: dict[str, list[str]] = {}
    for column, step in enumerate(steps[-_COLUMNS:], _COLUMNS - min(len(steps), _COLUMNS)):
        below = 0.0
        for name, part in _all(step) if step else ():
            top, high = _HIGH * (1 - below - part), _HIGH * part
            paths.setdefault(name, []).append(f"M{column} {top:.0f}h1v{high:.0f}h-1z")
            below += part
    mean = sum(step.busy for step in known) / len(known)
    lasted = duration(sum(step.seconds for step in known))
    text = f"Trend of the last {lasted}: {percent(mean)} busy on average"
    drawn = [element("path", d="".join(d), class_=f"c-{name}") for name, d in paths.items()]
    return _strip("last 5 min", _drawing("trend", f"0 0 {_COLUMNS} {_HIGH}", text, drawn))


def _drawing(kind: str, box: str, text: str, shapes: Sequence[Html]) -> Html:
    return element(
        "svg",
        *shapes,
        viewBox=box,
        preserveAspectRatio="none",
        role="img",
        aria_label=text,
        class_=kind,
    )


def _parts(shares: Shares) -> Html:
    items = (
        element("li", element("i", class_=f"c-{name}"), element("span", name), f" {percent(part)}")
        for name, part in _named(shares)
    )
    about = f"Shares of the last {duration(shares.seconds)}"
    return element("ul", *items, class_="parts", aria_label=about)


def _cause(gpu: GpuView, shares: Shares, runbooks: str) -> Html:
    lasted = f" for {duration(gpu.verdict_seconds)}" if gpu.verdict_seconds else ""
    if shares.verdict == KEPT_BUSY:
        return _verdict(f"Kept busy{lasted}")
    if gpu.cause is None:
        return _verdict("What it waits for is unknown")
    meaning, remedy = REMEDIES[gpu.cause]
    runbook = RUNBOOKS.get(gpu.cause)
    link = _link(runbooks, runbook) if runbook else None
    return _verdict(f"Waits: {gpu.cause}{lasted}", meaning, remedy, link)


def _advice(gpu: GpuView) -> Html | None:
    last = outcome(gpu.now.last_change) if gpu.now.last_change else None
    told = {"Prescription": prescription(gpu), "Last change": last}
    pairs = [(name, text) for name, text in told.items() if text]
    return described(pairs, "advice") if pairs else None


def _verdict(
    what: str, meaning: str | None = None, remedy: str | None = None, link: Html | None = None
) -> Html:
    return element(
        "div",
        element("p", element("strong", what), f": {meaning}" if meaning else None),
        element("p", f"Try first: {remedy}. ", link) if remedy else None,
        class_="verdict",
    )


def _link(runbooks: str, name: str) -> Html:
    return element("a", f"Runbook {name}", href=f"{runbooks.rstrip('/')}/{name}.md", rel="noopener")


def _facts(gpu: GpuView) -> Html:
    power, temperature, memory, clock = levels(gpu.now)
    facts = {
        "Power": power,
        "Temperature": temperature,
        "Memory": memory,
        "SMs active": percent(gpu.shares.sm_active if gpu.shares else None),
        "SM clock": clock,
        "Feeders": _feeders(gpu),
    }
    return described(facts.items(), "facts")


def _feeders(gpu: GpuView) -> str:
    if gpu.now.processes is None:
        return DASH
    workers = "" if gpu.now.workers is None else f", workers: {gpu.now.workers:.0f}"
    return f"processes: {gpu.now.processes:.0f}{workers}"


def _all(shares: Shares) -> Iterator[tuple[str, float]]:
    yield KEPT_BUSY, shares.busy
    yield from shares.stalls.items()


def _spoken(shares: Shares) -> str:
    return ", ".join(f"{name} {percent(part)}" for name, part in _named(shares))


def _named(shares: Shares) -> Iterator[tuple[str, float]]:
    return ((name, part) for name, part in _all(shares) if part >= WORTH_NAMING)
