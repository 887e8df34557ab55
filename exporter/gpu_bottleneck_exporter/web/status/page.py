"""The whole page, around the GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_bottleneck_exporter.nodeview.history import Trends
from gpu_bottleneck_exporter.nodeview.model import DASH, CollectorHealth, Node
from gpu_bottleneck_exporter.nodeview.text import host_memory, memory, number, percent, summary
from gpu_bottleneck_exporter.nodeview.wire import NODE_PATH
from gpu_bottleneck_exporter.web.status.assets import BUILD, PAGE, SCRIPT, STYLE
from gpu_bottleneck_exporter.web.status.gpu import card, row
from gpu_bottleneck_exporter.web.status.html import (
    Html,
    described,
    element,
    filled,
    join,
    table_row,
)

_MANY = 5
"""From this many GPUs on, an overview precedes the cards."""


def status_page(node: Node, trends: Trends, *, telemetry_path: str, runbooks: str) -> str:
    """The page as HTML. `runbooks`: the base URL of the runbooks."""
    driver = f", driver {node.driver_version}" if node.driver_version else ""
    return filled(
        PAGE,
        build=BUILD,
        style=Html(STYLE),
        script=Html(SCRIPT),
        summary=summary(node),
        telemetry_path=telemetry_path,
        node_path=NODE_PATH,
        main=join(
            _simulated(node),
            _section("This node", "node", described(_facts(node), "tiles")),
            _overview(node),
            _section("GPUs", "gpus", _gpus(node, trends, runbooks)),
            _signals(node),
            _collectors(node.collectors),
        ),
        footer=f"Version {node.version}{driver}. {node.driver_status or ''}",
    )


def _section(title: str, id_: str, content: Html) -> Html:
    return element("section", element("h2", title, id=id_), content, aria_labelledby=id_)


def _simulated(node: Node) -> Html | None:
    if not node.simulated:
        return None
    real = "; the processes that feed them are real."
    return element("p", "These GPUs are ", element("strong", "simulated"), real, class_="notice")


def _facts(node: Node) -> Iterator[tuple[str, str]]:
    host, pressure = node.host, node.host.pressure_ratios or {}
    # The idle shares added up: how many GPUs are lost.
    whole = [gpu.busy_ratio for gpu in node.gpus if gpu.mig_profile is None]
    idle = [1 - busy for busy in whole if busy is not None]
    yield "Idle GPUs, summed", f"{sum(idle):.1f} of {len(idle)}" if idle else DASH
    yield "CPU", f"{percent(host.cpu_busy_ratio)} of {number(host.cpus)}" if host.cpus else DASH
    yield "Memory", host_memory(host)
    yield "Shared memory", memory(host.shm_used_bytes, host.shm_size_bytes)
    for name, resource in (("CPU", "cpu"), ("I/O", "io"), ("memory", "memory")):
        yield f"Pressure on {name}", percent(pressure.get(resource))


def _overview(node: Node) -> Html | None:
    """All GPUs on one screen, where their cards would not fit."""
    if len(node.gpus) < _MANY:
        return None
    rows = (row(at, gpu) for at, gpu in enumerate(node.gpus))
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
    if not missing:
        return None
    lost = node.signal_remedies
    rows = (table_row(name, element("td", lost.get(name, DASH))) for name in missing)
    about = "What is lost without each, and how to get it"
    columns = dict.fromkeys(("Signal", "What is lost without it"))
    return _table("Missing signals", about, columns, *rows)


def _collectors(collectors: tuple[CollectorHealth, ...]) -> Html | None:
    if not collectors:
        return None
    about = "Readings of the driver, and how long the last one took on all GPUs"
    columns = {"Collector": None, "State": None, "Took": "number"}
    return _table("Collectors", about, columns, *map(_collector, collectors))


def _collector(found: CollectorHealth) -> Html:
    state = "works" if found.success else f"fails: {found.error or 'see the log'}"
    seconds = found.duration_seconds
    took = DASH if seconds is None else f"{1000 * seconds:.1f} ms"
    return table_row(
        found.collector,
        element("td", state, class_=None if found.success else "bad"),
        element("td", took, class_="number"),
    )


def _table(title: str, about: str, columns: dict[str, str | None], *rows: Html) -> Html:
    """A table under its title; `columns` have their classes, if any."""
    heads = (element("th", name, scope="col", class_=kind) for name, kind in columns.items())
    head, body = element("thead", element("tr", *heads)), element("tbody", *rows)
    table = element("table", element("caption", about), head, body)
    return element("section", element("h2", title), table)
