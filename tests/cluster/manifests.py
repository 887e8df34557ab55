"""What is installed on a cluster: the chart, a virtual GPU on each node, and what loads a node.

The GPU is the same stand-in for NVIDIA's library as in the other tests, on a virtual board that a
job on the node creates, holds and uses. Everything else is the cluster's own.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from gpu_bottleneck_exporter import __version__
from helm.chart import Object

IMAGE = f"ghcr.io/gpu-bottleneck-exporter/gpu-bottleneck-exporter:{__version__}"
NAMESPACE = "gpu-bottleneck-exporter-test"
"""Created for the tests, and removed: used by nothing else."""
BOARD = "/run/gpu-bottleneck-exporter-test"
"""A folder on the node, in memory."""
BURNERS = 10
"""Processes that want a CPU: a load of ten."""
_DRIVER = "virtual-driver"
_JOB = """
import os, signal, sys, time
from pathlib import Path
from gpu_bottleneck_exporter.demo.board.create import create
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
board = create(Path("/board/board"))
gpu = board.gpus[0]
gpu.hold(os.getpid(), 2**30)
try:
    while True:
        gpu.run(0.02)
        time.sleep(0.02)
finally:
    board.path.unlink()
"""
_BURN = f"""
import os
for _ in range({BURNERS} - 1):
    if os.fork() == 0:
        break
while True:
    pass
"""
_VOLUMES = [
    {"name": "driver", "configMap": {"name": _DRIVER}},
    {"name": "board", "hostPath": {"path": BOARD, "type": "DirectoryOrCreate"}},
]


def values(image: str) -> dict[str, Any]:
    """Chart values: all nodes, and the stand-in instead of NVIDIA's runtime."""
    repository, _, tag = image.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag},
        "gpu": {"runtimeClassName": ""},
        "gpuNodeLabels": [],
        "podMonitor": {"enabled": True},
        "tests": {"enabled": False},
        "exporter": {
            "extraEnv": [
                {"name": "LD_LIBRARY_PATH", "value": "/driver"},
                {"name": "FAKE_NVML_BOARD", "value": "/board/board"},
            ]
        },
        "extraVolumes": _VOLUMES,
        "extraVolumeMounts": [
            {"name": "driver", "mountPath": "/driver", "readOnly": True},
            {"name": "board", "mountPath": "/board"},
        ],
    }


def namespace() -> Object:
    """The release's namespace, which may have privileged pods."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    metadata = {"name": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def driver(library: Path) -> Object:
    """The stand-in, for the exporter's container."""
    data = base64.b64encode(library.read_bytes()).decode()
    metadata = {"name": _DRIVER, "namespace": NAMESPACE}
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    return {**found, "binaryData": {library.name: data}}


def job(image: str) -> Object:
    """Creates the board of each node, and holds its GPU."""
    return _on_each_node("job", image, _JOB, _VOLUMES[1:], "50m")


def load(image: str) -> Object:
    """Takes all CPUs of each node, with a higher share than a pod without requests."""
    return _on_each_node("load", image, _BURN, [], "250m")


def _on_each_node(name: str, image: str, code: str, volumes: list[Object], cpu: str) -> Object:
    labels = {"app": f"gpu-test-{name}"}
    container = {
        "name": "main",
        "image": image,
        "command": ["python", "-c", code],
        "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}},
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": v["name"], "mountPath": f"/{v['name']}"} for v in volumes],
    }
    pod = {
        "hostPID": True,  # the board lists holders by the node's pids
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": volumes,
    }
    metadata = {"name": f"gpu-test-{name}", "namespace": NAMESPACE, "labels": labels}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec}
