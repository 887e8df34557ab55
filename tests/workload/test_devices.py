"""Device ids as the plugins and drivers make them, and which GPU each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given as example
from hypothesis import strategies as st

from gpu_bottleneck_exporter.driver.nvml.kubernetes import gpus_of_device
from gpu_bottleneck_exporter.driver.readings import Identity
from gpu_bottleneck_exporter.workload.join import MAX_HOLDERS_PER_GPU, holders
from gpu_bottleneck_exporter.workload.podresources import Allocation, ContainerName

A = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
B = "GPU-5f3a9c11-1111-2222-3333-444444444444"
PARENT = "GPU-6a000000-1111-2222-3333-444444444444"
SMALL = "MIG-aaaaaaaa-0d5e-5a5f-8c0f-000000000001"
OTHER = "MIG-bbbbbbbb-0d5e-5a5f-8c0f-000000000002"
LARGE = "MIG-cccccccc-0d5e-5a5f-8c0f-000000000003"
LEGACY = "MIG-GPU-7b000000-1111-2222-3333-444444444444/1/0"
LONE = "MIG-dddddddd-0d5e-5a5f-8c0f-000000000004"


def gpu(index: int, uuid: str, minor: int | None = None) -> Identity:
    return Identity(index, uuid, minor=index if minor is None else minor)


def part(index: int, uuid: str, profile: str, instance: int) -> Identity:
    parent = f"parent of {uuid}"
    return Identity(index, uuid, None, None, None, profile, parent, instance, minor=index)


GPUS = (
    gpu(0, A),
    gpu(1, B),
    gpu(2, PARENT),
    part(2, SMALL, "1g.10gb", 9),
    part(2, OTHER, "1g.10gb", 10),
    part(2, LARGE, "1g.10gb+me", 1),
    part(3, LEGACY, "3g.20gb", 1),
    part(4, LONE, "7g.80gb", 0),
)
PLUGIN, DRIVER = "nvidia.com/gpu", "gpu.nvidia.com"
HOLDER = ContainerName("research", "train-0", "main")

PLAIN: dict[str, str | None] = {
    A: A,
    f"{A}::0": A,
    SMALL: SMALL,
    LEGACY: LEGACY,
    "nvidia0": A,
    "nvidia1": B,
    "nvidia1/vgpu12": B,
    "nvidia2/gi9": SMALL,
    "nvidia2/gi1/vgpu3": LARGE,
    "nvidia2": PARENT,
    "nvidia2/gi5": None,
    "nvidiactl": None,
    "nvidia0/gi": None,
    # Plugins that share a GPU in their own way do not use the one that the kubelet names.
    f"{A}-3": None,
    f"{A}::x": None,
    "gpu-0": None,
    "": None,
}
CLAIM = "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-"
CLAIMED: dict[str, str | None] = {
    "gpu-0": A,
    "gpu-1": B,
    A.lower(): A,
    f"{CLAIM}gpu-1": B,
    "k8s.gpu.nvidia.com/device=gpu-1": B,
    "k8s.gpu.nvidia.com/device=all": None,
    "nvidia.com/gpu=0": None,
    "gpu-2-mig-1g10gb-me-20-0": LARGE,
    "gpu-4-mig-7g80gb-0-0": LONE,
    "gpu-4-mig-0-0-8": LONE,
    f"{CLAIM}gpu-4-mig-7g80gb-0-0": LONE,
    # One of two, which cannot be told apart from here.
    "gpu-2-mig-1g10gb-19-4": None,
    "gpu-2-mig-19-4-1": None,
    "gpu-0-mig-1g10gb-19-4": None,
    "nvidia0": None,
    "": None,
}


def found(
    *devices: Allocation, gpus: Sequence[Identity] = GPUS
) -> dict[str, tuple[ContainerName, ...]]:
    return holders(devices, gpus, gpus_of_device)


@pytest.mark.parametrize(("device", "uuid"), PLAIN.items())
def test_devices_of_plugins(device: str, uuid: str | None) -> None:
    assert found(Allocation(HOLDER, PLUGIN, device)) == ({uuid: (HOLDER,)} if uuid else {})


@pytest.mark.parametrize("source", [DRIVER, ""], ids=["now", "an older kubelet"])
@pytest.mark.parametrize(("device", "uuid"), CLAIMED.items())
def test_claimed_devices(source: str, device: str, uuid: str | None) -> None:
    assert found(Allocation(HOLDER, source, device)) == ({uuid: (HOLDER,)} if uuid else {})


@pytest.mark.parametrize("source", ["rdma/hca", "intel.com/gpu", "compute-domain.nvidia.com"])
def test_devices_of_others_are_no_gpu(source: str) -> None:
    assert not any(found(Allocation(HOLDER, source, device)) for device in (*PLAIN, *CLAIMED))


@pytest.mark.parametrize("device", [(DRIVER, "gpu-0"), (PLUGIN, "nvidia0")])
def test_a_number_is_the_device_nodes(device: tuple[str, str]) -> None:
    by_number = Allocation(HOLDER, *device)
    assert found(by_number, gpus=[gpu(0, A, 1), gpu(1, B, 0)]) == {B: (HOLDER,)}
    assert found(by_number, gpus=[replace(item, minor=None) for item in GPUS]) == {}


def test_each_process_that_shares_a_gpu_is_listed_once() -> None:
    second = ContainerName("research", "train-1", "main")
    replicas = ((second, 2), (HOLDER, 0), (HOLDER, 1))
    values = (Allocation(holder, PLUGIN, f"{A}::{number}") for holder, number in replicas)
    assert found(*values) == {A: (HOLDER, second)}


def test_holders_are_not_without_end() -> None:
    many = [Allocation(ContainerName("n", f"{at:04}", "c"), PLUGIN, A) for at in range(500)]
    assert len(found(*many)[A]) == MAX_HOLDERS_PER_GPU


def test_a_gpu_without_a_uuid_is_nobodys() -> None:
    unknown = Identity(index=0, uuid="")
    assert found(Allocation(HOLDER, PLUGIN, ""), gpus=[unknown]) == {}


@example(st.text(), st.sampled_from([PLUGIN, DRIVER, ""]))
def test_no_device_is_too_strange(device: str, source: str) -> None:
    assert len(found(Allocation(HOLDER, source, device))) <= 1
