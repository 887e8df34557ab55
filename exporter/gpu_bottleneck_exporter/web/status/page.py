"""The whole page, around the GPUs."""

from __future__ import annotations

from gpu_bottleneck_exporter.markup.html import Html, described, element, filled, join
from gpu_bottleneck_exporter.markup.style import STYLE
from gpu_bottleneck_exporter.nodeview import text as words
from gpu_bottleneck_exporter.nodeview.model import DASH, Node
from gpu_bottleneck_exporter.nodeview.wire import NODE_PATH
from gpu_bottleneck_exporter.web.status.assets import BUILD, PAGE, SCRIPT
from gpu_bottleneck_exporter.web.status.gpu import card, line

_SIMULATED = Html(
    '<p class="notice">These GPUs are <strong>simulated</strong>; '
    "the processes that use them are real. On a busy machine they wait for CPUs, not for what they "
    "are meant to show.</p>"
)


def status_page(node: Node, *, telemetry_path: str, runbooks: str) -> str:
    """The page as HTML. `runbooks`: the base URL of the runbooks."""
    driver = f", driver {node.driver_version}" if node.driver_version else ""
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
            _SIMULATED if node.simulated else None,
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
    bad = [gpu for gpu in worst if words.idle(gpu)]
    cards = element("ul", *(card(gpu, runbooks) for gpu in bad), class_="gpus")
    lines = element("ul", *(line(gpu) for gpu in worst if not words.idle(gpu)), class_="lines")
    span = f"Numbers are of the last {words.duration(node.window_seconds)}, "
    return (
        _section("GPUs that wait, the most idle first", cards) if bad else None,
        _section("Other GPUs", lines) if len(bad) < len(worst) else None,
        element("p", span, "strips of the last 5 min.", class_="span"),
    )


def _none(node: Node) -> Html:
    status, remedy = node.driver_status or "unknown yet", node.driver_remedy
    missing = element("p", element("strong", "No GPU to show: "), f"{status}.")
    fix = element("p", f"To fix it: {remedy}.") if remedy else None
    return element("div", missing, fix, class_="notice bad" if remedy else "notice")


def _section(title: str, *content: Html) -> Html:
    return element("section", element("h2", title), *content)


def _signals(node: Node) -> Html | None:
    """What is lost without each of the missing signals, and how to get it."""
    missing = sorted(name for name, given in node.signals.items() if not given)
    told = described(((name, node.signal_remedies.get(name, DASH)) for name in missing), "signals")
    return _section("Missing signals", told) if missing else None


def _collectors(node: Node) -> Html | None:
    failed = [one for one in node.collectors if not one.success]
    told = "; ".join(f"{one.collector} fails: {one.error or 'see the log'}" for one in failed)
    all_work = told or f"all {len(node.collectors)} work"
    said = element("p", f"Collectors: {all_work}.", class_="span bad" if failed else "span")
    return said if node.collectors else None
