"""The whole page, around the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_bottleneck_exporter.nodeview.history import Trends
from gpu_bottleneck_exporter.nodeview.model import DASH, CollectorHealth, Node
from gpu_bottleneck_exporter.nodeview.text import host_memory, memory, number, percent, summary
from gpu_bottleneck_exporter.nodeview.wire import NODE_PATH
from gpu_bottleneck_exporter.web.status.assets import BUILD, SCRIPT, STYLE
from gpu_bottleneck_exporter.web.status.gpu import card, row
from gpu_bottleneck_exporter.web.status.html import Html, described, element, join, table_row

_TITLE = "GPU bottleneck exporter"
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'%3E"
    "%3Crect width='8' height='8' rx='2' fill='%23009E73'/%3E"
    "%3Crect x='3' width='5' height='8' rx='1' fill='%23E69F00'/%3E%3C/svg%3E"
)
_MANY = 5
"""From this many GPUs on, an overview precedes the cards."""
_NUMBERS = frozenset({"Busy", "Took"})
_RELOAD_SECONDS = "5"
"""Between reloads if no script runs."""


def status_page(node: Node, trends: Trends, *, telemetry_path: str, runbooks: str) -> str:
    """The page as HTML. `runbooks`: the base URL of the runbooks."""
    head = join(
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("noscript", element("meta", http_equiv="refresh", content=_RELOAD_SECONDS)),
        element("link", rel="icon", href=_ICON),
        element("title", f"{summary(node)} | {_TITLE}"),
        element("style", Html(STYLE)),
    )
    body = join(
        _header(node, telemetry_path),
        element("p", id="link", role="status", class_="notice bad", hidden=""),
        element(
            "main",
            _simulated(node),
            _node(node),
            _overview(node),
            _gpus(node, trends, runbooks),
            _signals(node),
            _collectors(node.collectors),
        ),
        element("footer", _footer(node)),
        element("script", Html(SCRIPT)),
    )
    whole = element(
        "html", element("head", head), element("body", body), lang="en", data_build=BUILD
    )
    return f"<!DOCTYPE html>\n{whole}\n"


def _header(node: Node, telemetry_path: str) -> Html:
    links = [
        ("Metrics", telemetry_path),
        ("JSON", NODE_PATH),
        ("Health", "/-/healthy"),
        ("Readiness", "/-/ready"),
    ]
    return element(
        "header",
        element("h1", _TITLE),
        element("p", summary(node), id="summary"),
        element(
            "nav",
            *(element("a", text, href=path) for text, path in links),
            aria_label="Other pages",
        ),
    )


def _footer(node: Node) -> str:
    driver = f", driver {node.driver_version}" if node.driver_version else ""
    return f"Version {node.version}{driver}. {node.driver_status or ''}"


def _simulated(node: Node) -> Html | None:
    if not node.simulated:
        return None
    real = "; the processes that feed them are real."
    return element("p", "These GPUs are ", element("strong", "simulated"), real, class_="notice")


def _node(node: Node) -> Html:
    return element(
        "section",
        element("h2", "This node", id="node"),
        described(_facts(node), "tiles"),
        aria_labelledby="node",
    )


def _facts(node: Node) -> Iterator[tuple[str, str]]:
    host = node.host
    yield "Idle GPUs, summed", _lost(node)
    yield "CPU", f"{percent(host.cpu_busy_ratio)} of {number(host.cpus)}" if host.cpus else DASH
    yield "Memory", host_memory(host)
    yield "Shared memory", memory(host.shm_used_bytes, host.shm_size_bytes)
    for resource in ("cpu", "io", "memory"):
        name = {"cpu": "CPU", "io": "I/O"}.get(resource, resource)
        yield f"Pressure on {name}", percent((host.pressure_ratios or {}).get(resource))


def _lost(node: Node) -> str:
    """The idle shares of all GPUs added up: how many GPUs are lost."""
    whole = [gpu.busy_ratio for gpu in node.gpus if gpu.mig_profile is None]
    idle = [1 - busy for busy in whole if busy is not None]
    return f"{sum(idle):.1f} of {len(idle)}" if idle else DASH


def _overview(node: Node) -> Html | None:
    """All GPUs on one screen, where their cards would not fit."""
    if len(node.gpus) < _MANY:
        return None
    rows = (row(at, gpu) for at, gpu in enumerate(node.gpus))
    columns = ("GPU", "Busy and waiting", "Busy", "Likely cause")
    return _table("Overview", "The last minute of each GPU", columns, *rows)


def _gpus(node: Node, trends: Trends, runbooks: str) -> Html:
    title = element("h2", "GPUs", id="gpus")
    if node.gpus:
        each = enumerate(node.gpus)
        cards = (card(at, gpu, trends.get(gpu.key, ()), runbooks) for at, gpu in each)
        content = element("ul", *cards, class_="gpus")
    else:
        status, remedy = node.driver_status or "unknown yet", node.driver_remedy
        missing = element("p", element("strong", "No GPU to show: "), f"{status}.")
        fix = element("p", f"To fix it: {remedy}.") if remedy else None
        content = element("div", missing, fix, class_="notice bad")
    return element("section", title, content, aria_labelledby="gpus")


def _signals(node: Node) -> Html | None:
    missing = sorted(name for name, given in node.signals.items() if not given)
    if not missing:
        return None
    lost = node.signal_remedies
    rows = (table_row(name, element("td", lost.get(name, DASH))) for name in missing)
    about = "What is lost without each, and how to get it"
    return _table("Missing signals", about, ("Signal", "What is lost without it"), *rows)


def _collectors(collectors: tuple[CollectorHealth, ...]) -> Html | None:
    if not collectors:
        return None
    about = "Readings of the driver, and how long the last one took on all GPUs"
    return _table("Collectors", about, ("Collector", "State", "Took"), *map(_collector, collectors))


def _collector(found: CollectorHealth) -> Html:
    state = "works" if found.success else f"fails: {found.error or 'see the log'}"
    seconds = found.duration_seconds
    took = DASH if seconds is None else f"{1000 * seconds:.1f} ms"
    return table_row(
        found.collector,
        element("td", state, class_=None if found.success else "bad"),
        element("td", took, class_="number"),
    )


def _table(title: str, about: str, columns: tuple[str, ...], *rows: Html) -> Html:
    heads = (
        element("th", name, scope="col", class_="number" if name in _NUMBERS else None)
        for name in columns
    )
    head, body = element("thead", element("tr", *heads)), element("tbody", *rows)
    table = element("table", element("caption", about), head, body)
    return element("section", element("h2", title), table)
