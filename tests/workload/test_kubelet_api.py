"""The kubelet's API as Kubernetes defines it (api.proto): our reader and the tests' kubelet.

The definition is taken from Debian's package of the kubelet's Go library and compiled as it is.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gpu_bottleneck_exporter.workload.podresources import METHOD
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
