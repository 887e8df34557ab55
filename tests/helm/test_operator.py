"""The chart's PodMonitor as the Prometheus operator reads it, in a real Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter.demo.board.board import Board
from helm import chart
from helm.chart import Object, rendered
from support.board_exporter import over_board
from support.prometheus import prometheus
from support.waiting import until

META = "__meta_kubernetes_"


def label_name(label: str) -> str:
    """Labels as service discovery writes them."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def discovered(found: chart.Rendered) -> dict[str, str]:
    """Labels of Kubernetes for a pod of the release."""
    template = found.one("DaemonSet")["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    fields = {
        "namespace": chart.NAMESPACE,
        "pod_name": "gpu-abc",
        "pod_node_name": "node-1",
        "pod_container_name": found.container["name"],
        "pod_container_port_name": found.container["ports"][0]["name"],
        **{f"pod_label_{label_name(key)}": value for key, value in labels},
    }
    return {f"{META}{key}": value for key, value in fields.items()}


def relabelings(monitor: Object) -> Iterator[dict[str, Any]]:
    """The operator's own steps for a PodMonitor, followed by those of the monitor."""
    spec, (endpoint,) = monitor["spec"], monitor["spec"]["podMetricsEndpoints"]
    fields = {f"pod_label_{label_name(k)}": v for k, v in spec["selector"]["matchLabels"].items()}
    for name, value in {**fields, "pod_container_port_name": endpoint["port"]}.items():
        yield {"action": "keep", "source_labels": [META + name], "regex": re.escape(value)}
    job = f"pod_label_{label_name(spec['jobLabel'])}"
    copied = {"namespace": "namespace", "container": "pod_container_name", "pod": "pod_name"}
    for target, name in {**copied, "job": job}.items():
        yield {"source_labels": [META + name], "target_label": target}
    yield {"target_label": "endpoint", "replacement": endpoint["port"]}
    for step in endpoint["relabelings"]:
        yield {re.sub("[A-Z]", lambda c: f"_{c[0].lower()}", key): v for key, v in step.items()}


def test_no_series_names_its_pod(tmp_path: Path, make_board: Callable[..., Board]) -> None:
    """The series continues when a rollout replaces the pod."""
    result, pods = rendered(podMonitor={"enabled": True}), tmp_path / "pods.json"
    settings = {
        "static_configs": [],
        "file_sd_configs": [{"files": [f"{pods}"]}],
        "relabel_configs": [*relabelings(result.one("PodMonitor"))],
    }
    with over_board(make_board().path) as exporter:
        pods.write_text(json.dumps([{"targets": [exporter.target], "labels": discovered(result)}]))
        with prometheus(tmp_path, [("gpu", "", 0.5)], access={"gpu": settings}) as server:
            ((labels, _),) = until(lambda: server.query("gpu_exporter_build_info"), "a scrape")
    fields = {key: labels[key] for key in labels.keys() - {"__name__", "version", "python_version"}}
    assert fields == {
        "instance": "node-1",
        "job": "gpu-bottleneck-exporter",
        "namespace": chart.NAMESPACE,
        "node": "node-1",
    }
