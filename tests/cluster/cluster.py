"""The cluster in KUBECONFIG, through kubectl."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.discovered import targets, tell
from cluster.manifests import NAMESPACE, namespace
from helm.chart import Object
from support.beside import repeated
from support.daemon import HOST, daemon, free_port
from support.tools import require

PATIENCE = "300s"
_LOOK_SECONDS = 1.0
HOW = (
    "no cluster: KUBECONFIG=… make test-cluster; with kind: kind create cluster && make image && "
    "kind load docker-image gpu-bottleneck-exporter:VERSION && "
    "CLUSTER_IMAGE=gpu-bottleneck-exporter:VERSION KUBECONFIG=~/.kube/config make test-cluster"
)
CUSTOM = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
"""Kinds that only a cluster with the Prometheus Operator has."""


@dataclass(frozen=True)
class Cluster:
    """What kubectl reaches."""

    program: str

    @classmethod
    def named(cls) -> Cluster:
        """The cluster in KUBECONFIG; without one, the test is skipped."""
        if not os.environ.get("KUBECONFIG"):
            pytest.skip(HOW)
        return cls(require("kubectl", "kubernetes-client"))

    def __call__(self, *arguments: str, told: str | None = None) -> str:
        """The output of kubectl; raises CalledProcessError with its errors."""
        done = subprocess.run(
            [self.program, *arguments], input=told, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    @property
    def version(self) -> str:
        """The version of the API server."""
        return str(json.loads(self("version", "--output=json"))["serverVersion"]["gitVersion"])

    def get(self, kind: str, *arguments: str) -> Any:  # noqa: ANN401 - any object
        space = f"--namespace={NAMESPACE}"
        return json.loads(self("get", kind, *arguments, space, "--output=json"))

    @contextmanager
    def applied(self, objects: Iterable[Object]) -> Iterator[None]:
        """`objects` on the cluster, with their DaemonSets rolled out; removed afterwards."""
        known = [found for found in objects if found["kind"] not in CUSTOM]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
        # Strict: a field that this cluster does not know is an error.
        self("apply", "--server-side", "--validate=strict", "--filename=-", told=text)
        try:
            for found in known:
                if found["kind"] == "DaemonSet":
                    self.await_rollout(found["metadata"]["name"])
            yield
        finally:
            self("delete", "--ignore-not-found", "--wait", "--filename=-", told=text)

    @contextmanager
    def namespace(self) -> Iterator[None]:
        """The tests' namespace, which must not exist yet; removed with everything in it."""
        self("create", "--filename=-", told=json.dumps(namespace()))
        try:
            yield
        finally:
            self("delete", "namespace", NAMESPACE, "--wait")

    def await_rollout(self, name: str) -> None:
        """Wait until all pods of a DaemonSet are ready and up to date."""
        space = f"--namespace={NAMESPACE}"
        self("rollout", "status", f"daemonset/{name}", space, f"--timeout={PATIENCE}")

    @contextmanager
    def proxy(self, log: Path) -> Iterator[int]:
        """A port on this machine where the API server answers without credentials."""
        port = free_port()
        command = [self.program, "proxy", f"--port={port}", f"--address={HOST}"]
        with daemon(command, port, "/readyz", log):
            yield port


THROUGH_THE_API_SERVER = {
    "source_labels": ["__meta_kubernetes_pod_name", "__meta_kubernetes_pod_container_port_number"],
    "regex": "(.+);(.+)",
    "target_label": "__metrics_path__",
    "replacement": f"/api/v1/namespaces/{NAMESPACE}/pods/$1:$2/proxy/metrics",
}
"""A relabeling step: the way to a pod from outside the cluster."""


@contextmanager
def kept_told(cluster: Cluster, address: str, file: Path) -> Iterator[None]:
    """Keep `file` up to date with the release's pods, which are scraped at `address`."""
    tell(file, [])

    def watch() -> None:
        with contextlib.suppress(AssertionError):  # the API server may be unreachable
            tell(file, targets(cluster.get("pods")["items"], address))

    with repeated(watch, _LOOK_SECONDS):
        yield


def restart_kubelet(node: Mapping[str, Any]) -> None:
    """Restart the kubelet of a kind node, a container; on any other node, the test skips."""
    name = node["metadata"]["name"]
    docker = shutil.which("docker")
    inspect = [docker or "false", "inspect", "--format={{.State.Running}}", name]
    if subprocess.run(inspect, capture_output=True, check=False).stdout.strip() != b"true":
        pytest.skip(f"the node {name} is no container of kind's: its kubelet is out of reach")
    subprocess.run(["docker", "exec", name, "systemctl", "restart", "kubelet"], check=True)
