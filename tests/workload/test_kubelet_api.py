"""The kubelet's API as Kubernetes defines it (api.proto): our reader and the tests' kubelet.

The definition is taken from Debian's package of the kubelet's Go library and compiled as it is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given as example
from hypothesis import strategies as st

from gpu_bottleneck_exporter.workload.podresources import METHOD, Given, Holder, given
from support import fetched, kubelet

pytest.importorskip("grpc_tools", reason="pip install grpcio-tools")

API = "k8s.io/kubelet/pkg/apis/podresources/v1/api.proto"
OPTIONS = "github.com/gogo/protobuf/gogoproto/gogo.proto"
"""Imported by it."""
PACKAGES = {API: "golang-github-kubernetes-kubelet-dev", OPTIONS: "golang-github-gogo-protobuf-dev"}

NEWER = {"PodResources": (4,)}
"""Numbers of fields that Debian's version may not have yet: CPUs of a whole pod."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> descriptor_pool.DescriptorPool:
    """Kubernetes' definition, compiled by protoc."""
    folder = tmp_path_factory.mktemp("api")
    for path, package in PACKAGES.items():
        target = folder / path
        target.parent.mkdir(parents=True)
        target.write_bytes(fetched.go_source(package, path).read_bytes())
    compiled = folder / "set"
    protoc = [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{folder}"]
    subprocess.run(
        [*protoc, f"--descriptor_set_out={compiled}", "--include_imports", API], check=True
    )
    return _pool(compiled)


def _pool(compiled: Path) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file:
        pool.Add(file)
    return pool


def fields(found: Descriptor) -> Mapping[int, tuple[str, int, bool, str]]:
    """Name, type, whether it is repeated, and the message that it is, by number."""
    return {
        field.number: (field.name, field.type, field.is_repeated, _kind(field))
        for field in found.fields
    }


def _kind(field: FieldDescriptor) -> str:
    return field.message_type.full_name if field.message_type else ""


def test_the_method_is_the_services(api: descriptor_pool.DescriptorPool) -> None:
    service, _, name = METHOD.strip("/").partition("/")
    method = api.FindServiceByName(service).methods_by_name[name]
    assert service == kubelet.SERVICE
    assert (method.client_streaming, method.server_streaming) == (False, False)
    # An empty message is what the exporter sends.
    assert method.input_type.fields == []
    assert method.output_type.full_name == "v1.ListPodResourcesResponse"


@pytest.mark.parametrize("name", kubelet._MESSAGES)
def test_the_tests_kubelet_speaks_it(api: descriptor_pool.DescriptorPool, name: str) -> None:
    theirs = fields(api.FindMessageTypeByName(f"v1.{name}"))
    ours = fields(kubelet._API.FindMessageTypeByName(f"v1.{name}"))
    newer = {number: ours[number] for number in NEWER.get(name, ()) if number not in theirs}
    assert ours == {**theirs, **newer}


def test_no_message_that_is_answered_with_is_left_out(api: descriptor_pool.DescriptorPool) -> None:
    seen: set[str] = set()
    waiting = [api.FindMessageTypeByName("v1.ListPodResourcesResponse")]
    while waiting:
        found = waiting.pop()
        if found.name not in seen:
            seen.add(found.name)
            waiting += [field.message_type for field in found.fields if field.message_type]
    assert seen == kubelet._MESSAGES.keys() - {"ListPodResourcesRequest"}


NAMES = st.sampled_from(["", "main", "train-0", "claim-main", "größer", "x" * 200])
RESOURCES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "rdma/hca", ""])
DRIVERS = st.sampled_from(["gpu.nvidia.com", "", "tpu.google.com"])
TOPOLOGY: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"nodes": st.lists(st.builds(dict, ID=st.integers(-1, 7)), max_size=2)}
)
CLAIMED = st.fixed_dictionaries(
    {
        "cdi_devices": st.lists(st.builds(dict, name=NAMES), max_size=2),
        "driver_name": DRIVERS,
        "pool_name": NAMES,
        "device_name": NAMES,
    }
)
CONTAINER = st.fixed_dictionaries(
    {
        "name": NAMES,
        "devices": st.lists(
            st.fixed_dictionaries(
                {"resource_name": RESOURCES, "device_ids": st.lists(NAMES, max_size=3)},
                optional={"topology": TOPOLOGY},
            ),
            max_size=3,
        ),
        "cpu_ids": st.lists(st.integers(0, 2**40), max_size=4),
        "memory": st.lists(
            st.builds(dict, memory_type=NAMES, size=st.integers(0, 2**64 - 1), topology=TOPOLOGY),
            max_size=2,
        ),
        "dynamic_resources": st.lists(
            st.builds(
                dict,
                claim_name=NAMES,
                claim_namespace=NAMES,
                claim_resources=st.lists(CLAIMED, max_size=3),
            ),
            max_size=2,
        ),
    }
)
PODS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(dict, name=NAMES, namespace=NAMES, containers=st.lists(CONTAINER, max_size=3)),
    max_size=3,
)


@example(pods=PODS)
def test_what_is_read_is_what_it_says(
    api: descriptor_pool.DescriptorPool, pods: list[dict[str, Any]]
) -> None:
    kind = message_factory.GetMessageClass(api.FindMessageTypeByName("v1.ListPodResourcesResponse"))
    reply = kind(pod_resources=pods)
    assert list(given(reply.SerializeToString())) == list(told(reply))


def told(reply: Any) -> Iterator[Given]:  # noqa: ANN401 - a message of the API
    """What a client of the API that has its messages would take from them."""
    for pod in reply.pod_resources:
        for container in pod.containers:
            holder = Holder(pod.namespace, pod.name, container.name)
            if all(holder):
                yield from (Given(holder, *names) for names in plugged(container))
                yield from (Given(holder, *names) for names in claimed(container))


def plugged(container: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - likewise
    for device in container.devices:
        if device.resource_name:
            yield from ((device.resource_name, name) for name in device.device_ids)


def claimed(container: Any) -> Iterator[tuple[str, str, str]]:  # noqa: ANN401 - likewise
    for resource in (r for d in container.dynamic_resources for r in d.claim_resources):
        if resource.driver_name and resource.device_name:
            own = (cdi.name for cdi in resource.cdi_devices)
            described = (name for name in own if name.endswith(f"-{resource.device_name}"))
            yield resource.driver_name, resource.device_name, next(described, "")
        elif not resource.driver_name:
            yield from (("", cdi.name, "") for cdi in resource.cdi_devices)


def test_a_message_of_another_kind_is_told_apart(api: descriptor_pool.DescriptorPool) -> None:
    """The comparison can fail: this answer's only field is a pod, no list of them."""
    other: type[Message] = message_factory.GetMessageClass(
        api.FindMessageTypeByName("v1.GetPodResourcesResponse")
    )
    pod = {"name": "train-0", "namespace": "r", "containers": [{"name": "main"}]}
    assert list(given(other(pod_resources=pod).SerializeToString())) == []
