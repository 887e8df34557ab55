"""Alerts in a cluster that goes by the label `namespace`, as kube-prometheus-stack does.

Its default inhibition rules are in a real Alertmanager; alerts have the labels that a real
Prometheus gives them with `--workload-namespace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpu_bottleneck_exporter.commands.rules import Wanted, printed
from rules.fired import fired, vector
from rules.parsed import rules
from support.alertmanager import alertmanager_with, inhibited, post
from support.waiting import until

DEFAULTS = Path(__file__).with_name("kube_prometheus_stack.yml")
EXPORTERS = {"job": "gpu", "instance": "node-1", "namespace": "monitoring"}
"""What the operator gives to every series of the exporter, but for what the chart drops."""
LAST = {"alertname": "Last", "namespace": "none"}
Seen = Mapping[tuple[str, str, str], bool]
"""Name, severity and namespace of an alert: whether it is inhibited."""


def gpu(name: str, index: int, severity: str, namespace: str) -> dict[str, str]:
    """Labels of the series of an alert, and what makes it this one of its variants."""
    owner = {"workload_namespace": namespace} if namespace else {}
    return {"alert": name, "is": severity, "gpu": f"{index}", **EXPORTERS, **owner}


POSTED = (
    gpu("GpuCheckpointStall", 0, "warning", "nlp"),
    gpu("GpuCheckpointStall", 1, "info", "nlp"),
    gpu("GpuCheckpointStall", 2, "info", "vision"),
    gpu("GpuThermalThrottle", 3, "info", "vision"),
    gpu("GpuHostLoopBound", 4, "warning", ""),
)


def seen_by_alertmanager(folder: Path) -> Seen:
    """What it makes of them."""
    config = folder / "alertmanager.yml"
    config.write_text(DEFAULTS.read_text())
    with alertmanager_with(config) as port:
        alerts = [one["labels"] for one in fired(folder, as_rules(), len(POSTED))]
        # Alertmanager takes alerts in their order, and mutes by them a moment after it has them:
        # once the last one is muted, all have been considered.
        last = [LAST | {"severity": severity} for severity in ("warning", "info")]
        post(port, [{"labels": labels} for labels in [*alerts, *last]])
        seen: dict[tuple[str, str, str], bool] = {}

        def considered() -> bool:
            seen.update({of(labels): muted for labels, muted in inhibited(port)})
            return seen.pop(of(last[1]), False)

        until(considered, "the end of the last alert's way")
        del seen[of(last[0])]
        return seen


def as_rules() -> list[dict[str, object]]:
    """Alerts with the labels of the pack, which fire at once."""
    pack = rules({"": printed(Wanted(workload_namespace=True))})
    given = {(rule.name, rule.labels.get("severity")): rule.labels for rule in pack}
    return [
        {
            "alert": one["alert"],
            "expr": vector({name: of for name, of in one.items() if name not in ("alert", "is")}),
            "labels": given[one["alert"], one["is"]],
        }
        for one in POSTED
    ]


def of(labels: Mapping[str, str]) -> tuple[str, str, str]:
    return labels["alertname"], labels["severity"], labels.get("namespace", "")


def test_an_alert_of_a_job_is_in_the_namespace_of_its_pod(tmp_path: Path) -> None:
    """Without a pod, and of the platform, it is the exporter's; inhibition keeps to a namespace."""
    assert seen_by_alertmanager(tmp_path) == {
        ("GpuCheckpointStall", "warning", "nlp"): False,
        ("GpuCheckpointStall", "info", "nlp"): True,
        ("GpuCheckpointStall", "info", "vision"): False,
        ("GpuThermalThrottle", "info", "monitoring"): False,
        ("GpuHostLoopBound", "warning", "monitoring"): False,
    }
