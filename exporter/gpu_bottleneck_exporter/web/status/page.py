"""The status page."""

from __future__ import annotations

from gpu_bottleneck_exporter.markup.html import Html, described, element, filled, join
from gpu_bottleneck_exporter.markup.style import STYLE
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import DASH, Node
from gpu_bottleneck_exporter.nodeview.wire import NODE_PATH
from gpu_bottleneck_exporter.web.status.assets import BUILD, PAGE, SCRIPT
from gpu_bottleneck_exporter.web.status.gpu import card, line


def status_page(node: Node, *, telemetry_path: str, runbooks: str) -> str:
    """The page as HTML, with runbooks under the URL `runbooks`."""
    driver = f", driver {node.driver_version}" if node.driver_version else ""
    simulated = Html(
        '<p class="notice">These GPUs are <strong>simulated</strong>; the processes that use them '
        "are real. On a busy machine they wait for CPUs instead of the demonstrated causes.</p>"
    )
    return filled(
        PAGE,
        build=BUILD,
        style=Html(STYLE),
        script=Html(SCRIPT),
        summary=words.summary(node),
        host=words.host(node),
        telemetry_path=telemetry_path,
        node_path=NODE_PATH,
        main=join(
            simulated if node.simulated else None,
            *_gpus(node, runbooks),
            _signals(node),
            _collectors(node),
            element("pre", "\n".join(words.in_text(node)), id="text", hidden=""),
        ),
        footer=f"Version {node.version}{driver}. {node.driver_status or ''}",
    )


def _gpus(node: Node, runbooks: str) -> tuple[Html | None, ...]:
    if not node.gpus:
        return (_none(node),)
    worst = sorted(node.gpus, key=words.badness, reverse=True)
    idle = [gpu for gpu in worst if words.idle(gpu)]
    cards = element("ul", *(card(gpu, runbooks) for gpu in idle), class_="gpus")
    lines = element("ul", *(line(gpu) for gpu in worst if not words.idle(gpu)), class_="lines")
    span = f"Numbers cover the last {words.duration(node.window_seconds)}, "
    return (
        _section("GPUs that wait, most idle first", cards) if idle else None,
        _section("Other GPUs", lines) if len(idle) < len(worst) else None,
        element("p", span, "strips the last 5 min.", class_="span"),
    )


def _none(node: Node) -> Html:
    status, remedy = node.driver_status or "unknown yet", node.driver_remedy
    missing = element("p", element("strong", "No GPU to show: "), f"{status}.")
    fix = element("p", f"To fix it: {remedy}.") if remedy else None
    return element("div", missing, fix, class_="notice bad" if remedy else "notice")


def _section(title: str, *content: Html) -> Html:
    return element("section", element("h2", title), *content)


def _signals(node: Node) -> Html | None:
    missing = sorted(name for name, available in node.signals.items() if not available)
    remedies = ((name, node.signal_remedies.get(name, DASH)) for name in missing)
    return _section("Missing signals", described(remedies, "signals")) if missing else None


def _collectors(node: Node) -> Html | None:
    if not node.collectors:
        return None
    failed = [health for health in node.collectors if not health.success]
    errors = "; ".join(f"{it.collector} fails: {it.error or 'see the log'}" for it in failed)
    state = errors or f"all {len(node.collectors)} work"
    return element("p", f"Collectors: {state}.", class_="span bad" if failed else "span")
