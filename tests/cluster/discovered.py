"""Pods as Prometheus' own service discovery reports them, in a file for Prometheus.

Debian's Prometheus is built without discovery in Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cluster.monitored import label_name

Pod = Mapping[str, Any]
"""As the API server has it."""


def targets(pods: Iterable[Pod], address: str) -> Iterator[dict[str, Any]]:
    """One target for each port of each pod with an IP address, all scraped at `address`."""
    for pod in pods:
        if not pod.get("status", {}).get("podIP"):
            continue
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                told = {**_of_pod(pod), **_of_port(container, port)}
                labels = {f"__meta_kubernetes_{key}": value for key, value in told.items()}
                yield {"targets": [address], "labels": labels}


def _of_pod(pod: Pod) -> dict[str, str]:
    labels = pod["metadata"].get("labels", {})
    return {
        "namespace": pod["metadata"]["namespace"],
        "pod_name": pod["metadata"]["name"],
        "pod_node_name": pod["spec"]["nodeName"],
        **{f"pod_label_{label_name(key)}": value for key, value in labels.items()},
    }


def _of_port(container: Mapping[str, Any], port: Mapping[str, Any]) -> dict[str, str]:
    return {
        "pod_container_name": container["name"],
        "pod_container_port_name": port.get("name", ""),
        "pod_container_port_number": str(port["containerPort"]),
    }


def tell(file: Path, found: Iterable[Mapping[str, Any]]) -> None:
    """Write what Prometheus must scrape, atomically."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps([*found]))
    new.rename(file)


def scraped(file: Path, steps: list[dict[str, Any]]) -> dict[str, object]:
    """Prometheus' settings for the targets in `file`."""
    return {
        "static_configs": [],
        "file_sd_configs": [{"files": [f"{file}"], "refresh_interval": "1s"}],
        "relabel_configs": steps,
    }
