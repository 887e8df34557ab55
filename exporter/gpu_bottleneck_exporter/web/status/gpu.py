"""One GPU or MIG instance on the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.history import STEPS
from gpu_bottleneck_exporter.nodeview.model import Gpu, Parts, named
from gpu_bottleneck_exporter.web.status.html import Html, described, element, join, listed

_HIGH = 100
"""Of a drawing, in its own units; CSS scales it."""
_FACTS = ("Power", "Temperature", "Memory", "SM clock", "SMs active", "Workers")


def card(gpu: Gpu, runbooks: str) -> Html:
    """A GPU in full."""
    head = element("div", element("h3", *_name(gpu)), _busy(gpu), class_="head")
    known = {"class_": f"c-{gpu.cause or 'unknown'}", "aria_label": f"GPU {words.label(gpu)}"}
    return element("li", element("article", head, *_body(gpu, runbooks), **known))


def line(gpu: Gpu) -> Html:
    """A GPU of which there is little to say."""
    said = element("p", words.headline(gpu), class_="said")
    who = element("p", _held_by(gpu), class_="owner")
    strip = _trend(gpu.trend) or element("div", class_="trend")
    return element("li", element("h3", *_name(gpu)), strip, _busy(gpu), said, who)


def _name(gpu: Gpu) -> tuple[str, Html]:
    return f"GPU {words.label(gpu)} ", element("small", gpu.name or "")


def _busy(gpu: Gpu) -> Html:
    if not gpu.up:
        return element("p", element("b", "down"), class_="busy bad")
    return element("p", element("b", words.percent(gpu.busy_ratio)), " busy", class_="busy")


def _held_by(gpu: Gpu) -> Html:
    processes = ": ".join(filter(None, (words.owners(gpu), words.holders(gpu))))
    return join("Held by ", element("bdi", processes))


def _body(gpu: Gpu, runbooks: str) -> Iterator[Html | None]:
    yield _verdict(gpu, runbooks)
    if gpu.up:
        if gpu.evidence:
            yield listed((element("bdi", text) for text in gpu.evidence), "seen", "Evidence")
        yield _trend(gpu.trend)
        yield _legend(gpu.parts)
        yield element("p", _held_by(gpu), class_="owner")
        facts = (*words.levels(gpu), words.percent(gpu.sm_active_ratio), words.number(gpu.workers))
        yield described(zip(_FACTS, facts, strict=True), "facts")
    if found := words.notices(gpu):
        yield listed(found, "chips", "Notices")


def _verdict(gpu: Gpu, runbooks: str) -> Html:
    name, tried, book = gpu.runbook, words.recommendation(gpu), None
    if name:
        link = f"{runbooks.rstrip('/')}/{name}.md"
        book = element("a", f"Runbook {name}", href=link, rel="noopener")
    meaning = f": {gpu.meaning}." if gpu.meaning else "."
    said = element("p", element("strong", words.headline(gpu)), meaning)
    remedy = element("p", element("b", "Try "), element("bdi", tried), ". ", book)
    change = gpu.last_change and f"Last change: {words.outcome(gpu.last_change)}."
    last = element("p", change, class_="last") if change else None
    return element("div", said, remedy if tried else None, last, class_="verdict")


def _trend(steps: Sequence[Parts]) -> Html | None:
    """The shares over time, one column per step; the last one is now."""
    if not any(steps):
        return None
    paths: dict[str, list[str]] = {}
    for column, step in enumerate(steps[-STEPS:], STEPS - min(len(steps), STEPS)):
        below = 0.0
        for name, part in step.items():
            top, high = _HIGH * (1 - below - part), _HIGH * part
            paths.setdefault(name, []).append(f"M{column} {top:.0f}h1v{high:.0f}h-1z")
            below += part
    drawn = [element("path", d="".join(d), class_=f"c-{name}") for name, d in paths.items()]
    how = {"viewBox": f"0 0 {STEPS} {_HIGH}", "preserveAspectRatio": "none", "role": "img"}
    return element("svg", *drawn, class_="trend", aria_label="Its last minutes", **how)


def _legend(parts: Parts) -> Html | None:
    items = (
        join(element("i", class_=f"c-{name}"), element("span", name), f" {words.percent(part)}")
        for name, part in named(parts).items()
    )
    return listed(items, "parts", "Shares of the time") if parts else None
