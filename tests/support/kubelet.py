"""A kubelet's pod-resources API: a real gRPC server on a Unix socket.

The protobuf library builds its messages from the API's field numbers (api.proto in Kubernetes'
kubelet/pkg/apis/podresources/v1), which checks the exporter's own reader against another
implementation.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from support.waiting import PATIENCE_SECONDS

SERVICE = "v1.PodResourcesLister"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {"string": _FIELD.TYPE_STRING, "int64": _FIELD.TYPE_INT64, "uint64": _FIELD.TYPE_UINT64}
# Number, name (with * if repeated) and type of each field: one of these, or a message.
_MESSAGES: Mapping[str, str] = {
    "ListPodResourcesRequest": "",
    "ListPodResourcesResponse": "1 pod_resources* PodResources",
    "PodResources": "1 name string; 2 namespace string; 3 containers* ContainerResources; "
    "4 cpu_ids* int64",
    "ContainerResources": "1 name string; 2 devices* ContainerDevices; 3 cpu_ids* int64; "
    "4 memory* ContainerMemory; 5 dynamic_resources* DynamicResource",
    "ContainerDevices": "1 resource_name string; 2 device_ids* string; 3 topology TopologyInfo",
    "ContainerMemory": "1 memory_type string; 2 size uint64; 3 topology TopologyInfo",
    "TopologyInfo": "1 nodes* NUMANode",
    "NUMANode": "1 ID int64",
    "DynamicResource": "2 claim_name string; 3 claim_namespace string; "
    "4 claim_resources* ClaimResource",
    "ClaimResource": "1 cdi_devices* CDIDevice; 2 driver_name string; 3 pool_name string; "
    "4 device_name string",
    "CDIDevice": "1 name string",
}


def _api() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="api.proto", package="v1", syntax="proto3")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, name, kind in (word.split() for word in fields.split("; ") if word):
            each = described.field.add(name=name.rstrip("*"), number=int(number))
            each.label = _FIELD.LABEL_REPEATED if "*" in name else _FIELD.LABEL_OPTIONAL
            if kind in _MESSAGES:
                each.type, each.type_name = _FIELD.TYPE_MESSAGE, f".v1.{kind}"
            else:
                each.type = _TYPES[kind]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_API = _api()


def message(kind: str, /, **fields: Any) -> Message:  # noqa: ANN401 - what protobuf takes
    """A message of the API."""
    return message_factory.GetMessageClass(_API.FindMessageTypeByName(f"v1.{kind}"))(**fields)


@dataclass(frozen=True)
class Claim:
    """A device of a ResourceClaim; kubelets before 1.34 give CDI names only."""

    device: str = ""
    driver: str = "gpu.nvidia.com"
    cdi: Sequence[str] = ()


@dataclass(frozen=True)
class Container:
    """The devices of a container."""

    name: str = "main"
    devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Device ids by resource."""
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class Pod:
    """A pod on the node."""

    name: str
    namespace: str = "research"
    containers: Sequence[Container] = (Container(),)


def with_gpus(name: str, *devices: str, resource: str = "nvidia.com/gpu") -> Pod:
    """A pod with one container that got `devices`."""
    return Pod(name, containers=(Container(devices={resource: devices}),))


def link_log(folder: Path, pod: str, container_id: str) -> None:
    """Create the link in /var/log/containers for the container of `with_gpus(pod)`."""
    (folder / f"{pod}_research_main-{container_id}.log").symlink_to("/var/log/pods/gone/0.log")


def reply(pods: Iterable[Pod]) -> bytes:
    """The answer to List."""
    values = [
        {
            "name": pod.name,
            "namespace": pod.namespace,
            "containers": [*map(_container, pod.containers)],
            "cpu_ids": [1, 2, 300],
        }
        for pod in pods
    ]
    return message("ListPodResourcesResponse", pod_resources=values).SerializeToString()


def _container(container: Container) -> dict[str, object]:
    node = {"nodes": [{"ID": -1}]}
    claimed = [
        {
            "driver_name": claim.driver,
            "pool_name": "node-1",
            "device_name": claim.device,
            "cdi_devices": [{"name": name} for name in claim.cdi],
        }
        for claim in container.claims
    ]
    return {
        "name": container.name,
        "devices": [
            {"resource_name": resource, "device_ids": ids, "topology": node}
            for resource, ids in container.devices.items()
        ],
        "cpu_ids": [7],
        "memory": [{"memory_type": "memory", "size": 2**40}],
        "dynamic_resources": [{"claim_name": "c", "claim_resources": claimed}] if claimed else [],
    }


class Kubelet:
    """Serves `pods` after `start`; any answer may be slow or a refusal."""

    def __init__(self, path: Path, *pods: Pod, service: str = SERVICE) -> None:
        self.path = path
        self.pods: Sequence[Pod] = pods
        self.answers = threading.Event()
        """Cleared while it keeps callers waiting."""
        self.answers.set()
        self.early: Sequence[Pod] | None = None
        """Answered once in place of `pods`, as by one that has just started."""
        self.refusal: grpc.StatusCode | None = None
        self.raw: bytes | None = None
        """Sent instead of a message."""
        self.asked = 0
        self._service = service
        self._server: grpc.Server | None = None

    def __enter__(self) -> Kubelet:  # noqa: PYI034 - Self needs Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Create a new socket, as a kubelet does."""
        self.path.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(4))
        handler: grpc.RpcMethodHandler[bytes, bytes]
        handler = grpc.unary_unary_rpc_method_handler(self._list)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(self._service, {"List": handler}),)
        )
        server.add_insecure_port(f"unix:{self.path}")
        server.start()
        self._server = server

    def stop(self) -> None:
        """Stop, and remove the socket; a waiting client gets an answer."""
        self.answers.set()
        if self._server is not None:
            self._server.stop(None).wait()
            self._server = None
        self.path.unlink(missing_ok=True)

    def _list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        pods, self.early = (self.pods if self.early is None else self.early), None
        self.asked += 1
        self.answers.wait(PATIENCE_SECONDS)
        if self.refusal is not None:
            context.abort(self.refusal, "not\nnow")
        return reply(pods) if self.raw is None else self.raw
