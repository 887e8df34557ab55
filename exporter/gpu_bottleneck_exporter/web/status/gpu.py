"""A GPU or MIG instance on the page."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from gpu_bottleneck_exporter.markup.html import Html, described, element, listed
from gpu_bottleneck_exporter.markup.strip import axis, legend, strip
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.history import TREND_STEPS
from gpu_bottleneck_exporter.nodeview.model import GpuStatus
from gpu_bottleneck_exporter.nodeview.wire import STACKS_PATH


def card(gpu: GpuStatus, runbooks: str) -> Html:
    """All details of a GPU."""
    head = element("div", element("h3", *_name(gpu)), _busy(gpu), class_="head")
    attributes = {"class_": f"c-{gpu.cause or 'unknown'}", "aria_label": f"GPU {words.label(gpu)}"}
    return element(
        "li", element("article", head, *_body(gpu, runbooks), **attributes), data_key=gpu.uuid
    )


def line(gpu: GpuStatus) -> Html:
    """A one-line summary of a GPU."""
    headline = element("p", words.headline(gpu), class_="said")
    trend = _trend(gpu) or element("div", class_="trend")
    name = element("h3", *_name(gpu))
    return element("li", name, trend, _busy(gpu), headline, _held_by(gpu), data_key=gpu.uuid)


def _name(gpu: GpuStatus) -> tuple[str, Html]:
    return f"GPU {words.label(gpu)} ", element("small", gpu.name or "")


def _busy(gpu: GpuStatus) -> Html:
    if not gpu.up:
        return element("p", element("b", "down"), class_="busy bad")
    return element("p", element("b", words.percent(gpu.busy_ratio)), " busy", class_="busy")


def _held_by(gpu: GpuStatus) -> Html:
    processes = ": ".join(filter(None, (words.owners(gpu), words.holders(gpu))))
    serving = words.serving(gpu)
    server = f". Serves {serving}." if serving else ""
    held = element("p", "Held by ", element("bdi", processes), server, class_="owner")
    tenants = [element("bdi", text) for text in words.tenants(gpu)]
    if not tenants:
        return held
    shared = element("p", "Shared, in the last 5 min:")
    return element("div", held, shared, listed(tenants, "tenants", "Tenants"), class_="owner")


def _body(gpu: GpuStatus, runbooks: str) -> Iterator[Html | None]:
    yield _verdict(gpu, runbooks)
    if gpu.up:
        if gpu.evidence:
            yield listed((element("bdi", text) for text in gpu.evidence), "seen", "Evidence")
        yield _code(gpu)
        if trend := _trend(gpu):
            yield trend
            yield axis("5 min ago", "now")
        yield legend(gpu.parts)
        yield _held_by(gpu)
        facts = words.number(gpu.workers), words.percent(gpu.sm_active_ratio)
        yield described(zip(("Workers", "SMs active"), facts, strict=True), "facts")
    if notices := words.notices(gpu):
        yield listed(notices, "chips", "Notices")
    if gpu.up:
        names = "Power", "Temperature", "Memory", "SM clock"
        levels = described(zip(names, words.levels(gpu), strict=True), "facts")
        # The script closes it.
        yield element("details", element("summary", "Power, memory, clocks"), levels, open="")


def _verdict(gpu: GpuStatus, runbooks: str) -> Html:
    name, recommendation, runbook = gpu.runbook, words.recommendation(gpu), None
    if name:
        link = f"{runbooks.rstrip('/')}/{name}.md"
        runbook = element("a", f"Runbook {name}", href=link, rel="noopener")
    meaning = f": {gpu.meaning}." if gpu.meaning else "."
    verdict = element("p", element("strong", words.headline(gpu)), meaning)
    remedy = element("p", element("b", "Try: "), element("bdi", recommendation), " ", runbook)
    change = gpu.last_change and f"Last change: {words.outcome(gpu.last_change)}"
    last = element("p", change, class_="last") if change else None
    return element("div", verdict, remedy if recommendation else None, last, class_="verdict")


def _code(gpu: GpuStatus) -> Html | None:
    idle = gpu.idle_lines
    if idle is None or gpu.cause is None:
        return None
    lines = described(words.lines_of_code(idle), "code") if idle.looks else None
    age = f"{words.duration(idle.age_seconds)} ago" if idle.looks and not idle.looking else None
    path = f"{STACKS_PATH}?{urlencode({'gpu': gpu.uuid})}"
    label = "Sample again" if idle.looks else "Find the line of code"
    button = None if idle.looking else element("button", label, type="button", data_post=path)
    return element("div", lines, button, f" {age}" if age else None, class_="stacks")


def _trend(gpu: GpuStatus) -> Html | None:
    return strip(gpu.trend[-TREND_STEPS:], TREND_STEPS, "Its last minutes")
