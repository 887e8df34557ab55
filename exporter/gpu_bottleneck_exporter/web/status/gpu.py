"""One GPU or MIG instance on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_bottleneck_exporter.nodeview.model import (
    DASH,
    KEPT_BUSY,
    GpuView,
    Shares,
    likely_cause,
    notices,
)
from gpu_bottleneck_exporter.nodeview.text import (
    duration,
    label,
    memory,
    of,
    owners,
    percent,
)
from gpu_bottleneck_exporter.remedies import OF_DOWN, REMEDIES, RUNBOOK_OF_DOWN, RUNBOOKS
from gpu_bottleneck_exporter.web.status.html import Html, element

_WORTH_NAMING = 0.005
_WIDE, _HIGH = 1000, 100
_COLUMNS = 60
"""Of a trend: 5 s each, so 5 min; the last one is now."""
_MEGA = 1e6


def card(at: int, gpu: GpuView, runbooks: str) -> Html:
    """The GPU that stands at place `at`."""
    heading = f"gpu-{at}"
    return element(
        "li",
        element(
            "article",
            _head(gpu, heading),
            *_body(gpu, runbooks),
            aria_labelledby=heading,
            class_=f"c-{gpu.cause or KEPT_BUSY}" if gpu.now.up and gpu.shares else "c-unknown",
        ),
    )


def row(at: int, gpu: GpuView) -> Html:
    """The same GPU in one line, with a link to its card."""
    name = element("a", label(gpu), href=f"#gpu-{at}")
    shares = gpu.shares
    strip = _drawing("bar", f"0 0 {_WIDE} 1", _spoken(shares), _rects(shares)) if shares else None
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", strip or DASH, class_="wide"),
        element("td", percent(shares.busy if shares else None), class_="number"),
        element("td", likely_cause(gpu), class_=None if gpu.now.up else "bad"),
    )


def _head(gpu: GpuView, heading: str) -> Html:
    busy = percent(gpu.shares.busy) if gpu.shares else DASH
    return element(
        "div",
        element("h3", f"GPU {label(gpu)}", " ", element("small", gpu.now.name or ""), id=heading),
        element("p", element("b", busy), " busy", class_="busy")
        if gpu.now.up
        else element("p", element("b", "down"), class_="busy bad"),
        class_="head",
    )


def _body(gpu: GpuView, runbooks: str) -> Iterator[Html | None]:
    if gpu.now.up:
        yield element("p", "Held by ", element("bdi", owners(gpu)), class_="owner")
    else:
        yield _verdict(
            f"Down: {gpu.now.down or 'the log says why'}",
            None,
            gpu.now.down_remedy or OF_DOWN,
            _link(runbooks, RUNBOOK_OF_DOWN),
        )
        return
    if gpu.shares:
        yield _bar(gpu.shares)
        yield _trend(gpu.trend)
        yield _parts(gpu.shares)
        yield _cause(gpu, gpu.shares, runbooks)
        if gpu.cause and gpu.now.evidence:
            seen = (element("li", element("bdi", text)) for text in gpu.now.evidence)
            yield element("ul", *seen, class_="seen", aria_label="Seen behind the waiting")
    else:
        yield element("p", "Nothing was observed in the last minute.")
    yield _facts(gpu)
    found = notices(gpu.now)
    if found:
        yield element(
            "ul", *(element("li", text) for text in found), class_="chips", aria_label="Notices"
        )


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
    """The same, one column a step."""
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
    text = f"Course of the last {lasted}: {percent(mean)} busy on average"
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
        for name, part in _all(shares)
        if part >= _WORTH_NAMING
    )
    return element(
        "ul", *items, class_="parts", aria_label=f"Shares of the last {duration(shares.seconds)}"
    )


def _cause(gpu: GpuView, shares: Shares, runbooks: str) -> Html:
    lasted = f" for {duration(gpu.verdict_seconds)}" if gpu.verdict_seconds else ""
    if shares.verdict == KEPT_BUSY:
        return _verdict(f"Kept busy{lasted}", None, None, None)
    if gpu.cause is None:
        return _verdict("What it waits for is not known", None, None, None)
    meaning, remedy = REMEDIES[gpu.cause]
    runbook = RUNBOOKS.get(gpu.cause)
    return _verdict(
        f"Waits: {gpu.cause}{lasted}",
        meaning,
        remedy,
        _link(runbooks, runbook) if runbook else None,
    )


def _verdict(what: str, meaning: str | None, remedy: str | None, link: Html | None) -> Html:
    return element(
        "div",
        element("p", element("strong", what), f": {meaning}" if meaning else None),
        element("p", f"Try first: {remedy}. ", link) if remedy else None,
        class_="verdict",
    )


def _link(runbooks: str, name: str) -> Html:
    return element("a", f"Runbook {name}", href=f"{runbooks.rstrip('/')}/{name}.md", rel="noopener")


def _facts(gpu: GpuView) -> Html:
    now = gpu.now
    clock = None if now.sm_clock is None else now.sm_clock / _MEGA
    highest = None if now.sm_clock_max is None else now.sm_clock_max / _MEGA
    facts = {
        "Power": of(now.power_watts, now.power_limit_watts, " W"),
        "Temperature": of(now.temperature, now.slowdown_temperature, " °C"),
        "Memory": memory(now.memory_used_bytes, now.memory_total_bytes),
        "SMs active": percent(gpu.shares.sm_active if gpu.shares else None),
        "SM clock": of(clock, highest, " MHz"),
        "Feeders": _feeders(gpu),
    }
    pairs = (
        element("div", element("dt", name), element("dd", text)) for name, text in facts.items()
    )
    return element("dl", *pairs, class_="facts")


def _feeders(gpu: GpuView) -> str:
    if gpu.now.processes is None:
        return DASH
    workers = "" if gpu.now.workers is None else f", workers: {gpu.now.workers:.0f}"
    return f"on it: {gpu.now.processes:.0f}{workers}"


def _all(shares: Shares) -> Iterator[tuple[str, float]]:
    yield KEPT_BUSY, shares.busy
    yield from shares.stalls.items()


def _spoken(shares: Shares) -> str:
    named = [f"{name} {percent(part)}" for name, part in _all(shares) if part >= _WORTH_NAMING]
    return ", ".join(named)
