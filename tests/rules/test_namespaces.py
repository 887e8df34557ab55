"""Alerts in a cluster that goes by the label `namespace`, as kube-prometheus-stack does.

Its default inhibition rules are in a real Alertmanager; alerts have the labels that a real
Prometheus gives them with `--workload-namespace`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gpu_bottleneck_exporter.commands.rules import Wanted, printed
from rules.parsed import rules
from support.alertmanager import alertmanager_with, inhibited, post
from support.prometheus import prometheus
from support.waiting import until

SAME = ["namespace", "alertname"]
DEFAULTS = {
    "route": {"receiver": "null"},
    "receivers": [{"name": "null"}],
    "inhibit_rules": [
        {
            "source_matchers": ["severity = critical"],
            "target_matchers": ["severity =~ warning|info"],
            "equal": SAME,
        },
        {
            "source_matchers": ["severity = warning"],
            "target_matchers": ["severity = info"],
            "equal": SAME,
        },
        {
            "source_matchers": ["alertname = InfoInhibitor"],
            "target_matchers": ["severity = info"],
            "equal": ["namespace"],
        },
    ],
}
"""Of kube-prometheus-stack 75."""
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
    config.write_text(json.dumps(DEFAULTS))  # JSON is YAML
    with alertmanager_with(config) as port:
        made = folder / "made.yml"
        made.write_text(
            json.dumps({"groups": [{"name": "made", "interval": "1s", "rules": as_rules()}]})
        )
        with prometheus(folder, [], [made]) as server:
            until(
                lambda: len(server.query('ALERTS{alertstate="firing"}')) == len(POSTED),
                "all alerts",
            )
            fired = [
                {k: v for k, v in labels.items() if k not in ("__name__", "alertstate")}
                for labels, _ in server.query('ALERTS{alertstate="firing"}')
            ]
        # Alertmanager takes alerts in their order, and mutes by them a moment after it has them:
        # once the last one is muted, all have been considered.
        last = [LAST | {"severity": severity} for severity in ("warning", "info")]
        post(port, [{"labels": labels} for labels in [*fired, *last]])
        seen: dict[tuple[str, str, str], bool] = {}

        def considered() -> bool:
            seen.update({of(labels): muted for labels, muted in inhibited(port)})
            return seen.pop(of(last[1]), False)

        until(considered, "the end of the last alert's way")
        del seen[of(last[0])]
        return seen


def as_rules() -> list[dict[str, object]]:
    """Alerts with the labels of the pack, which fire at once."""
    pack = [rule for rule in rules({"": printed(Wanted(workload_namespace=True))}) if rule.is_alert]
    found: list[dict[str, object]] = []
    for one in POSTED:
        labels = next(
            rule.labels
            for rule in pack
            if (rule.name, rule.labels["severity"]) == (one["alert"], one["is"])
        )
        expr = "vector(1)"
        for name, text in one.items():
            if name not in ("alert", "is"):
                expr = f'label_replace({expr}, "{name}", "{text}", "", "")'
        found.append({"alert": one["alert"], "expr": expr, "labels": dict(labels)})
    return found


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
