"""One GPU or MIG instance on the page."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

from gpu_bottleneck_exporter.markup.html import Html, described, element, join, listed
from gpu_bottleneck_exporter.markup.strip import axis, legend, strip
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.history import TREND_STEPS
from gpu_bottleneck_exporter.nodeview.model import GpuStatus
from gpu_bottleneck_exporter.nodeview.wire import STACKS_PATH

_EXPLAINING = ("Workers", "SMs active")
_SINCE = "5 min ago"
"""`TREND_STEPS` of 5 s, as the exporter records them."""
_OTHERS = ("Power", "Temperature", "Memory", "SM clock")


def card(gpu: GpuStatus, runbooks: str) -> Html:
    """A GPU in full."""
    head = element("div", element("h3", *_name(gpu)), _busy(gpu), class_="head")
    known = {"class_": f"c-{gpu.cause or 'unknown'}", "aria_label": f"GPU {words.label(gpu)}"}
    return element(
        "li", element("article", head, *_body(gpu, runbooks), **known), data_key=gpu.uuid
    )


def line(gpu: GpuStatus) -> Html:
    """A GPU of which there is little to say."""
    said = element("p", words.headline(gpu), class_="said")
    who = element("p", _held_by(gpu), class_="owner")
    drawn = _trend(gpu) or element("div", class_="trend")
    return element("li", element("h3", *_name(gpu)), drawn, _busy(gpu), said, who)


def _name(gpu: GpuStatus) -> tuple[str, Html]:
    return f"GPU {words.label(gpu)} ", element("small", gpu.name or "")


def _busy(gpu: GpuStatus) -> Html:
    if not gpu.up:
        return element("p", element("b", "down"), class_="busy bad")
    return element("p", element("b", words.percent(gpu.busy_ratio)), " busy", class_="busy")


def _held_by(gpu: GpuStatus) -> Html:
    processes = ": ".join(filter(None, (words.owners(gpu), words.holders(gpu))))
    return join("Held by ", element("bdi", processes))


def _body(gpu: GpuStatus, runbooks: str) -> Iterator[Html | None]:
    yield _verdict(gpu, runbooks)
    if gpu.up:
        if gpu.evidence:
            yield listed((element("bdi", text) for text in gpu.evidence), "seen", "Evidence")
        yield _code(gpu)
        if drawn := _trend(gpu):
            yield drawn
            yield axis(_SINCE, "now")
        yield legend(gpu.parts)
        yield element("p", _held_by(gpu), class_="owner")
        facts = words.number(gpu.workers), words.percent(gpu.sm_active_ratio)
        yield described(zip(_EXPLAINING, facts, strict=True), "facts")
    if found := words.notices(gpu):
        yield listed(found, "chips", "Notices")
    if gpu.up:
        others = described(zip(_OTHERS, words.levels(gpu), strict=True), "facts")
        # The script closes it.
        yield element("details", element("summary", "Power, memory, clocks"), others, open="")


def _verdict(gpu: GpuStatus, runbooks: str) -> Html:
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


def _code(gpu: GpuStatus) -> Html | None:
    """Which lines of code it waits for; a button that has them found, if nobody looks now."""
    found = gpu.idle_lines
    if found is None or gpu.cause is None:
        return None
    told = described(words.lines_of_code(found), "code") if found.looks else None
    age = f"{words.duration(found.age_seconds)} ago" if found.looks and not found.looking else None
    path = f"{STACKS_PATH}?{urlencode({'gpu': gpu.uuid})}"
    again = "Look again" if found.looks else "Find the line of code"
    button = None if found.looking else element("button", again, type="button", data_post=path)
    return element("div", told, button, f" {age}" if age else None, class_="stacks")


def _trend(gpu: GpuStatus) -> Html | None:
    return strip(gpu.trend[-TREND_STEPS:], TREND_STEPS, "Its last minutes")
