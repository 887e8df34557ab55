"""How the Prometheus Operator scrapes a PodMonitor: as a scrape configuration.

The operator's own steps are those that its configuration generator writes for a PodMonitor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Step = dict[str, Any]


def relabelings(monitor: Mapping[str, Any]) -> list[Step]:
    """The operator's own steps, followed by those of the monitor."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    return [
        *_selected(monitor["spec"]["selector"]["matchLabels"], endpoint["port"]),
        _copied("__meta_kubernetes_namespace", "namespace"),
        _copied("__meta_kubernetes_pod_container_name", "container"),
        _copied("__meta_kubernetes_pod_name", "pod"),
        _copied(f"__meta_kubernetes_pod_label_{label_name(monitor['spec']['jobLabel'])}", "job"),
        {"target_label": "endpoint", "replacement": endpoint["port"]},
        *({_snake(key): value for key, value in step.items()} for step in endpoint["relabelings"]),
    ]


def _selected(labels: Mapping[str, str], port: str) -> Iterator[Step]:
    for name, value in labels.items():
        yield _kept(f"__meta_kubernetes_pod_label_{label_name(name)}", value)
    yield _kept("__meta_kubernetes_pod_container_port_name", port)


def _kept(source: str, value: str) -> Step:
    return {"action": "keep", "source_labels": [source], "regex": re.escape(value)}


def _copied(source: str, target: str) -> Step:
    return {"source_labels": [source], "target_label": target}


def label_name(label: str) -> str:
    """As service discovery writes it."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)
