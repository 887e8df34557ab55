"""One GPU or MIG instance on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.history import Shares
from gpu_bottleneck_exporter.nodeview.model import DASH, KEPT_BUSY, Gpu, Parts, named, parts_of
from gpu_bottleneck_exporter.web.status.html import Html, described, element, join, listed, row

_WIDE, _HIGH = 1000, 100
"""Of the drawings, in their own units; CSS scales them."""
_COLUMNS = 60
"""Columns of a trend: 5 s each, 5 min in all; the last one is now."""
_FACTS = ("Power", "Temperature", "Memory", "SM clock", "SMs active", "Feeders")


def card(at: int, gpu: Gpu, trend: Sequence[Shares | None], runbooks: str) -> Html:
    """The GPU at position `at`, with its shares per step."""
    heading = f"gpu-{at}"
    colour = f"c-{gpu.cause or KEPT_BUSY}" if gpu.up and gpu.parts else "c-unknown"
    title = element("h3", f"GPU {words.label(gpu)} ", element("small", gpu.name or ""), id=heading)
    share = element("b", words.percent(gpu.busy_ratio) if gpu.up else "down")
    unit, kind = (" busy", "busy") if gpu.up else (None, "busy bad")
    head = element("div", title, element("p", share, unit, class_=kind), class_="head")
    body = _body(gpu, trend, runbooks)
    return element("li", element("article", head, *body, aria_labelledby=heading, class_=colour))


def overview(at: int, gpu: Gpu) -> Html:
    """The same GPU in one line, with a link to its card."""
    parts = gpu.parts
    return row(
        element("a", words.label(gpu), href=f"#gpu-{at}"),
        element("td", _bar(parts, _spoken(parts)) if parts else DASH, class_="wide"),
        element("td", words.percent(gpu.busy_ratio), class_="number"),
        element("td", words.likely_cause(gpu), class_=None if gpu.up else "bad"),
    )


def _body(gpu: Gpu, trend: Sequence[Shares | None], runbooks: str) -> Iterator[Html | None]:
    if not gpu.up:
        yield _verdict(gpu, f"Down: {gpu.down_reason or 'see the log'}", runbooks)
        return
    yield element("p", "Held by ", element("bdi", words.owners(gpu)), class_="owner")
    if gpu.parts:
        last = f"last {words.duration(gpu.observed_seconds or 0)}"
        yield _strip(last, _bar(gpu.parts, f"The {last}: {_spoken(gpu.parts)}"))
        yield _trend(trend)
        yield _parts(gpu.parts, last)
        yield _verdict(gpu, _waits(gpu), runbooks)
        if gpu.evidence:
            yield listed((element("bdi", text) for text in gpu.evidence), "seen", "Evidence")
        yield _advice(gpu)
    else:
        yield element("p", "Nothing observed in the last minute.")
    facts = (*words.levels(gpu), words.percent(gpu.sm_active_ratio), words.feeders(gpu))
    yield described(zip(_FACTS, facts, strict=True), "facts")
    if found := words.notices(gpu):
        yield listed(found, "chips", "Notices")


def _bar(parts: Parts, text: str) -> Html:
    """Busy and waiting shares, side by side; `text` says the same."""
    rects, at = [], 0.0
    for name, part in parts.items():
        width = part * _WIDE
        place = {"x": f"{at:.1f}", "width": f"{width:.1f}", "height": "1"}
        rects.append(element("rect", class_=f"c-{name}", **place))
        at += width
    return _drawing("bar", f"0 0 {_WIDE} 1", text, rects)


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
        parts = parts_of(step.busy_ratio, step.stall_ratios) if step else {}
        for name, part in parts.items():
            top, high = _HIGH * (1 - below - part), _HIGH * part
            paths.setdefault(name, []).append(f"M{column} {top:.0f}h1v{high:.0f}h-1z")
            below += part
    mean = sum(step.busy_ratio for step in known) / len(known)
    last = words.duration(sum(step.observed_seconds for step in known))
    text = f"Trend of the last {last}: {words.percent(mean)} busy on average"
    drawn = [element("path", d="".join(d), class_=f"c-{name}") for name, d in paths.items()]
    return _strip("last 5 min", _drawing("trend", f"0 0 {_COLUMNS} {_HIGH}", text, drawn))


def _drawing(kind: str, box: str, text: str, shapes: Sequence[Html]) -> Html:
    how = {"viewBox": box, "preserveAspectRatio": "none", "role": "img", "aria_label": text}
    return element("svg", *shapes, class_=kind, **how)


def _parts(parts: Parts, last: str) -> Html:
    items = (
        join(element("i", class_=f"c-{name}"), element("span", name), f" {words.percent(part)}")
        for name, part in named(parts).items()
    )
    return listed(items, "parts", f"Shares of the {last}")


def _waits(gpu: Gpu) -> str:
    if gpu.verdict == KEPT_BUSY:
        return f"Kept busy{words.lasted(gpu)}"
    return f"Waits: {gpu.cause}{words.lasted(gpu)}" if gpu.cause else "What it waits for is unknown"


def _verdict(gpu: Gpu, what: str, runbooks: str) -> Html:
    name = gpu.runbook
    link = f"{runbooks.rstrip('/')}/{name}.md"
    book = element("a", f"Runbook {name}", href=link, rel="noopener") if name else None
    said = element("p", element("strong", what), f": {gpu.meaning}" if gpu.meaning else None)
    remedy = element("p", f"Try first: {gpu.remedy}. ", book) if gpu.remedy else None
    return element("div", said, remedy, class_="verdict")


def _advice(gpu: Gpu) -> Html | None:
    last = gpu.last_change and words.outcome(gpu.last_change)
    pairs = {"Prescription": words.prescription(gpu), "Last change": last}
    known = [(name, text) for name, text in pairs.items() if text]
    return described(known, "advice") if known else None


def _spoken(parts: Parts) -> str:
    return ", ".join(f"{name} {words.percent(part)}" for name, part in named(parts).items())
