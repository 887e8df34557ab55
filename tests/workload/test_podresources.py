"""The kubelet's answer, encoded by protobuf, and whatever else may come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as example
from hypothesis import strategies as st

from gpu_bottleneck_exporter.workload.podresources import Allocation, ContainerName, allocations
from support.kubelet import Claim, Container, Pod, reply
from support.rows import rows

GPU = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
NAME = "k8s.gpu.nvidia.com/claim=dab5ab50-d59a-42a6-af16-cfd4628c0f7a-gpu-0"
OTHER = NAME.replace("gpu-0", "gpu-1")
HOLDER = ContainerName("research", "train-0", "main")
REFUSED = "wire type|truncated|a number is missing|decode"


def told(*containers: Container) -> list[Allocation]:
    return list(allocations(reply([Pod("train-0", containers=containers)])))


@rows(
    "claim, expected",
    {
        "a GPU": (Claim("gpu-0"), [("gpu.nvidia.com", "gpu-0")]),
        "described": (Claim("gpu-0", cdi=(OTHER, NAME)), [("gpu.nvidia.com", "gpu-0", NAME)]),
        "of an older kubelet": (Claim(driver="", cdi=(NAME,)), [("", NAME)]),
        "another's": (Claim("tpu-0", driver="tpu.google.com"), [("tpu.google.com", "tpu-0")]),
        "nothing": (Claim(), []),
    },
)
def test_claimed_devices(claim: Claim, expected: list[tuple[Any, ...]]) -> None:
    assert told(Container(claims=[claim])) == [Allocation(HOLDER, *names) for names in expected]


def test_a_container_without_a_name_is_left_out() -> None:
    assert told(Container("", {"nvidia.com/gpu": [GPU]})) == []


FULL = Container(devices={"nvidia.com/gpu": [GPU] * 9}, claims=[Claim("gpu-0")])
WHOLE = reply([Pod("größe" * 40, containers=[FULL])])


def test_a_message_that_is_cut_short_is_refused() -> None:
    for end in range(1, len(WHOLE)):
        with pytest.raises(ValueError, match=REFUSED):
            list(allocations(WHOLE[:end]))


@pytest.mark.parametrize(
    "bad",
    [
        b"\x0b",  # a group, which has been unused for long
        b"\x0c",
        b"\x0f",
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0a\x03\x0a\x01\xff",
        b"<html>",
    ],
)
def test_a_malformed_message_is_refused(bad: bytes) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        list(allocations(bad))


def test_fields_of_later_versions_are_passed_over() -> None:
    later = b"\x9a\x06\x02hi" + b"\x18\x07" + b"\x21" + bytes(8) + b"\x2d" + bytes(4)
    pod = reply([Pod("train-0", containers=[Container(devices={"nvidia.com/gpu": [GPU]})])])
    assert list(allocations(later + pod + later)) == [Allocation(HOLDER, "nvidia.com/gpu", GPU)]


@example(st.binary() | st.binary(max_size=40).map(lambda tail: WHOLE[:60] + tail))
def test_no_bytes_are_too_strange(data: bytes) -> None:
    try:
        values = list(allocations(data))
    except ValueError:
        return
    assert all(all(each.container) for each in values)


TEXT = st.text(min_size=1, max_size=20)
RESOURCES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "rdma/hca", ""])
IDS = st.lists(st.text(max_size=20), max_size=3)
CONTAINERS = st.builds(Container, TEXT, st.dictionaries(RESOURCES, IDS, max_size=2))
PODS = st.lists(st.builds(Pod, TEXT, TEXT, st.lists(CONTAINERS, max_size=3)), max_size=3)


@example(PODS)
def test_an_encoded_message_is_decoded_unchanged(pods: list[Pod]) -> None:
    assert list(allocations(reply(pods))) == [
        Allocation(ContainerName(pod.namespace, pod.name, container.name), resource, device)
        for pod in pods
        for container in pod.containers
        for resource, devices in container.devices.items()
        for device in devices
        if resource
    ]
