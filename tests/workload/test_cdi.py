"""Claims' files as the DRA driver writes them (after its sources, cdi.go), and as a user might."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from gpu_bottleneck_exporter.driver.nvml import kubernetes
from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.workload.cdi import device_nodes
from gpu_bottleneck_exporter.workload.join import holders
from gpu_bottleneck_exporter.workload.podresources import Allocation, ContainerName
from support.trees import lay

CLAIM = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a"
FILE = f"k8s.gpu.nvidia.com-claim_{CLAIM}"
DEVICE, OTHER = "gpu-1-mig-1g10gb-19-4", "gpu-1-mig-1g10gb-19-5"
NAME = f"k8s.gpu.nvidia.com/claim={CLAIM}-{DEVICE}"
NODES = ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap219", "/dev/nvidia-caps/nvidia-cap220")
MINORS = """config 1
monitor 2
gpu0/gi9/access 84
gpu0/gi9/ci0/access 85
gpu1/gi9/access 219
gpu1/gi9/ci0/access 220
gpu1/gi10/access 228
gpu1/gi10/ci0/access 229
"""


def described(*nodes: str, name: str = DEVICE) -> dict[str, object]:
    values = [{"path": path, "type": "c", "major": 237, "fileMode": 438} for path in nodes]
    return {"name": f"{CLAIM}-{name}", "containerEdits": {"deviceNodes": values}}


SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "k8s.gpu.nvidia.com/claim",
    "devices": [described("/dev/nvidia1", name=OTHER), described(*NODES)],
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]},
}


@pytest.mark.parametrize(
    ("kind", "text"), [("yaml", f"---\n{yaml.safe_dump(SPEC)}"), ("json", json.dumps(SPEC))]
)
def test_a_claimed_device_has_the_nodes_in_its_file(kind: str, text: str, tmp_path: Path) -> None:
    lay(tmp_path, {f"{FILE}.{kind}": text})
    assert device_nodes(tmp_path, NAME) == NODES
    assert device_nodes(tmp_path, NAME[:-1]) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "devices",
        "devices: text",
        "devices: {}",
        "devices: [[]]",
        "a: [" * 5000,
        "\t- &a [*a]",
        "\x00",
        yaml.safe_dump({"devices": [described(*NODES)] * 2}),
        yaml.safe_dump({"devices": [{"name": NAME.partition("=")[2]}]}),
        f"{yaml.safe_dump(SPEC)}more: {'x' * 2**20}",
    ],
)
def test_no_file_is_too_strange(text: str, tmp_path: Path) -> None:
    lay(tmp_path, {f"{FILE}.yaml": text})
    assert device_nodes(tmp_path, NAME) == ()


@pytest.mark.parametrize("name", ["", "gpu-0", NAME.replace("k8s", "../k8s"), f"a/b={DEVICE}"])
def test_a_name_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    lay(tmp_path, {f"{FILE}.yaml": yaml.safe_dump(SPEC)})
    assert device_nodes(tmp_path / "cdi", name) == ()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_files_written_by_a_user_are_not_read(tmp_path: Path) -> None:
    lay(tmp_path, {f"{FILE}.yaml": yaml.safe_dump(SPEC)})
    os.chown(tmp_path / f"{FILE}.yaml", 54321, 54321)
    assert device_nodes(tmp_path, NAME) == ()


def test_instances_of_one_profile_are_distinguished_by_their_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "MIG_MINORS", lay(tmp_path, {"minors": MINORS}) / "minors")
    monkeypatch.setattr(kubernetes, "_instances", {})
    gpus = [
        Identity(at, f"MIG-{at}-{number}", None, None, None, "1g.10gb", "P", number, at)
        for at in range(2)
        for number in (9, 10)
    ]
    allocation = Allocation(
        ContainerName("research", "train-0", "main"), "gpu.nvidia.com", DEVICE, NAME
    )
    both = (*NODES, "/dev/nvidia-caps/nvidia-cap228")
    for nodes, result in (((), []), (NODES, ["MIG-1-9"]), (both, [])):
        held = holders([allocation._replace(nodes=nodes)], gpus, gpus_of_device)
        assert held == dict.fromkeys(result, (allocation.container,))
