"""The whole page, around the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.history import Trends
from gpu_bottleneck_exporter.nodeview.model import DASH, Node
from gpu_bottleneck_exporter.nodeview.wire import NODE_PATH
from gpu_bottleneck_exporter.web.status.assets import BUILD, PAGE, SCRIPT, STYLE
from gpu_bottleneck_exporter.web.status.gpu import card, overview
from gpu_bottleneck_exporter.web.status.html import Html, described, element, filled, join, row

_MANY = 5
"""From this many GPUs on, an overview precedes the cards: four fill a screen."""
_SIMULATED = Html(
    '<p class="notice">These GPUs are <strong>simulated</strong>; '
    "the processes that feed them are real.</p>"
)


def status_page(node: Node, trends: Trends, *, telemetry_path: str, runbooks: str) -> str:
    """The page as HTML. `runbooks`: the base URL of the runbooks."""
    driver = f", driver {node.driver_version}" if node.driver_version else ""
    return filled(
        PAGE,
        build=BUILD,
        style=Html(STYLE),
        script=Html(SCRIPT),
        summary=words.summary(node),
        telemetry_path=telemetry_path,
        node_path=NODE_PATH,
        main=join(
            _SIMULATED if node.simulated else None,
            _section("This node", "node", described(_facts(node), "tiles")),
            _overview(node),
            _section("GPUs", "gpus", _gpus(node, trends, runbooks)),
            _signals(node),
            _collectors(node),
        ),
        footer=f"Version {node.version}{driver}. {node.driver_status or ''}",
    )


def _section(title: str, id_: str, content: Html) -> Html:
    return element("section", element("h2", title, id=id_), content, aria_labelledby=id_)


def _facts(node: Node) -> Iterator[tuple[str, str]]:
    host, pressure = node.host, node.host.pressure_ratios or {}
    # The idle shares added up: how many GPUs are lost.
    whole = [gpu.busy_ratio for gpu in node.gpus if gpu.mig_profile is None]
    idle = [1 - busy for busy in whole if busy is not None]
    busy = f"{words.percent(host.cpu_busy_ratio)} of {words.number(host.cpus)}"
    yield "Idle GPUs, summed", f"{sum(idle):.1f} of {len(idle)}" if idle else DASH
    yield "CPU", busy if host.cpus else DASH
    yield "Memory", words.host_memory(host)
    yield "Shared memory", words.memory(host.shm_used_bytes, host.shm_size_bytes)
    for name, resource in (("CPU", "cpu"), ("I/O", "io"), ("memory", "memory")):
        yield f"Pressure on {name}", words.percent(pressure.get(resource))


def _overview(node: Node) -> Html | None:
    """All GPUs on one screen, where their cards would not fit."""
    if len(node.gpus) < _MANY:
        return None
    rows = (overview(at, gpu) for at, gpu in enumerate(node.gpus))
    columns = {"GPU": None, "Busy and waiting": None, "Busy": "number", "Likely cause": None}
    return _table("Overview", "The last minute of each GPU", columns, *rows)


def _gpus(node: Node, trends: Trends, runbooks: str) -> Html:
    if node.gpus:
        each = enumerate(node.gpus)
        cards = (card(at, gpu, trends.get(gpu.key, ()), runbooks) for at, gpu in each)
        return element("ul", *cards, class_="gpus")
    status, remedy = node.driver_status or "unknown yet", node.driver_remedy
    missing = element("p", element("strong", "No GPU to show: "), f"{status}.")
    fix = element("p", f"To fix it: {remedy}.") if remedy else None
    return element("div", missing, fix, class_="notice bad")


def _signals(node: Node) -> Html | None:
    missing = sorted(name for name, given in node.signals.items() if not given)
    rows = (row(name, element("td", node.signal_remedies.get(name, DASH))) for name in missing)
    about = "What is lost without each, and how to get it"
    columns = dict.fromkeys(("Signal", "What is lost without it"))
    return _table("Missing signals", about, columns, *rows)


def _collectors(node: Node) -> Html | None:
    about = "Readings of the driver, and how long the last one took on all GPUs"
    columns = {"Collector": None, "State": None, "Took": "number"}
    rows = []
    for found in node.collectors:
        state = "works" if found.success else f"fails: {found.error or 'see the log'}"
        seconds = found.duration_seconds
        took = DASH if seconds is None else f"{1000 * seconds:.1f} ms"
        cell = element("td", state, class_=None if found.success else "bad")
        rows.append(row(found.collector, cell, element("td", took, class_="number")))
    return _table("Collectors", about, columns, *rows)


def _table(title: str, about: str, columns: dict[str, str | None], *rows: Html) -> Html | None:
    """A table under its title, if it has rows; `columns` have their classes, if any."""
    if not rows:
        return None
    heads = (element("th", name, scope="col", class_=kind) for name, kind in columns.items())
    head, body = element("thead", element("tr", *heads)), element("tbody", *rows)
    table = element("table", element("caption", about), head, body)
    return element("section", element("h2", title), table)
