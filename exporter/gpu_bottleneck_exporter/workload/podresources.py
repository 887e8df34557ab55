"""Device allocations of containers, from the kubelet's v1.PodResourcesLister/List.

A gRPC call over its UNIX socket, by h2, which takes a tenth of grpcio's memory. Field numbers in
the kubelet's podresources/v1/api.proto: pod {name 1, namespace 2, containers 3 {name 1, devices 2
{resource_name 1, device_ids 2}, dynamic_resources 5 {claim_resources 4 {cdi_devices 1, driver_name
2, device_name 4}}}}.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable

METHOD = "/v1.PodResourcesLister/List"
_PREFIX_BYTES = 5
"""Prefix of a gRPC message: compression flag, length in four bytes."""
_MAX_RESPONSE_BYTES = 16 * 2**20
"""Bound of the kubelet's own tests (test/e2e_node/util.go)."""
_LENGTH_DELIMITED = 2
"""Protobuf's wire type of strings and messages."""
_FIXED_BYTES = {1: 8, 5: 4}
MessageFields = defaultdict[int, list[bytes]]
"""Values of a message by field number."""

UNWELL = "it is retried with growing pauses; if this lasts, see the kubelet's log"
ROOT_ONLY = "root owns the socket: run the exporter as user 0; no capability is needed"
UPGRADE = "check that it is the kubelet's socket; the API exists since Kubernetes 1.20"


class KubeletTrouble(Exception):  # noqa: N818 - usually a restart, no error
    """A sentence on missing allocations or names, and its remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy


def call(path: Path, deadline_seconds: float) -> bytes:
    """The response at `path` to `METHOD`.

    Raises KubeletTrouble, after `deadline_seconds` at the latest.
    """
    deadline = time.monotonic() + deadline_seconds
    try:
        from h2.exceptions import H2Error  # noqa: PLC0415 - takes memory; only in Kubernetes
    except ImportError as error:
        remedy = "pip install 'gpu-bottleneck-exporter[kubernetes]'"
        raise KubeletTrouble("the package h2 is not installed", remedy) from error
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(_left(deadline))
            channel.connect(f"{path}")
            headers, body = _exchange(channel, deadline)
    except TimeoutError as error:
        sentence = f"{path} has not answered within {deadline_seconds:g} s"
        raise KubeletTrouble(sentence, UNWELL) from error
    except OSError as error:
        remedy = ROOT_ONLY if isinstance(error, PermissionError) else UNWELL
        raise KubeletTrouble(f"{path}: {error.strerror or error}", remedy) from error
    except H2Error as error:
        raise KubeletTrouble(f"{path} does not speak HTTP/2", UPGRADE) from error
    return _message(path, headers, body)


def _exchange(channel: socket.socket, deadline: float) -> tuple[dict[bytes, bytes], bytearray]:
    from h2 import config, connection, events  # noqa: PLC0415

    http = connection.H2Connection(config.H2Configuration(client_side=True, header_encoding=None))
    http.initiate_connection()
    stream = 1  # a client's first (RFC 9113, 5.1.1)
    request = (
        *((":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "localhost")),
        *(("content-type", "application/grpc"), ("te", "trailers")),
    )
    http.send_headers(stream, request)
    http.send_data(stream, bytes(_PREFIX_BYTES), end_stream=True)
    headers: dict[bytes, bytes] = {}
    body = bytearray()
    while True:
        # The deadline is for the whole call, not for each receive.
        channel.settimeout(_left(deadline))
        if pending := http.data_to_send():
            channel.sendall(pending)
        received = channel.recv(65_536)  # the first flow control window of HTTP/2
        if not received:
            raise ConnectionError("it closed the connection")
        for event in http.receive_data(received):
            if isinstance(event, events.StreamEnded):
                return headers, body
            if isinstance(event, events.StreamReset | events.ConnectionTerminated):
                raise ConnectionError(f"it cancelled the call ({event.error_code!s})")
            if isinstance(event, events.ResponseReceived | events.TrailersReceived):
                headers.update(event.headers or ())
            if isinstance(event, events.DataReceived):
                body += event.data or b""
                if len(body) > _MAX_RESPONSE_BYTES:
                    raise ConnectionError(f"its answer exceeds {_MAX_RESPONSE_BYTES} bytes")
                # Reopens the flow control window for a long response.
                size = event.flow_controlled_length or 0
                http.acknowledge_received_data(size, event.stream_id)


def _message(path: Path, headers: Mapping[bytes, bytes], body: bytearray) -> bytes:
    status = headers.get(b"grpc-status")
    if status is None:
        raise KubeletTrouble(f"{path} does not speak gRPC", UPGRADE)
    if status != b"0":
        message = headers.get(b"grpc-message", b"")
        reason = b"gRPC status %b: %b" % (status[:200], message[:200])
        sentence = f"{path} refuses ({printable(reason.decode('ascii', 'replace'))})"
        # Permission denied, unimplemented, unauthenticated.
        remedies = {b"7": ROOT_ONLY, b"12": UPGRADE, b"16": ROOT_ONLY}
        raise KubeletTrouble(sentence, remedies.get(status, UNWELL))
    prefix, message = body[:_PREFIX_BYTES], bytes(body[_PREFIX_BYTES:])
    if prefix != b"\0" + len(message).to_bytes(4, "big"):
        raise KubeletTrouble(f"{path} answered with no gRPC message", UPGRADE)
    return message


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class ContainerName(NamedTuple):
    """The names of a container."""

    namespace: str
    pod: str
    container: str


class Allocation(NamedTuple):
    """A device allocated to a container."""

    container: ContainerName
    source: str
    """Device plugin's resource, DRA driver, or "" if unknown."""
    device: str
    cdi: str = ""
    """Name in CDI files, if different."""
    nodes: tuple[str, ...] = ()
    """Device nodes, from such a file."""


def allocations(reply: bytes) -> Iterator[Allocation]:
    """All devices in `reply`, GPUs or not. Raises ValueError if malformed."""
    for pod in map(_fields, _fields(reply)[1]):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in map(_fields, pod[3]):
            names = ContainerName(namespace, name, _text(container, 1))
            if all(names):
                yield from (Allocation(names, *device) for device in _devices(container))
                yield from (Allocation(names, *device) for device in _claimed(container))


def _devices(container: MessageFields) -> Iterator[tuple[str, str]]:
    for device in map(_fields, container[2]):
        if resource := _text(device, 1):
            yield from ((resource, name.decode()) for name in device[2])


def _claimed(container: MessageFields) -> Iterator[tuple[str, str, str]]:
    """Drivers, names and CDI names; only the last from older kubelets."""
    for claim in map(_fields, container[5]):
        for resource in map(_fields, claim[4]):
            driver, device = _text(resource, 2), _text(resource, 4)
            names = [_text(_fields(cdi), 1) for cdi in resource[1]]
            if driver and device:
                own = (name for name in names if name.endswith(f"-{device}"))
                yield driver, device, next(own, "")
            elif not driver:
                yield from (("", name, "") for name in names)


def _text(message: MessageFields, number: int) -> str:
    """The last value of field `number`, as protobuf prescribes, or empty."""
    return message[number][-1].decode() if message[number] else ""


def _fields(message: bytes) -> MessageFields:
    """Strings and messages in `message` by field number. Raises ValueError."""
    fields: MessageFields = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:  # a varint
            _, end = _varint(message, at)
        elif kind == _LENGTH_DELIMITED:
            length, at = _varint(message, at)
            end = at + length
        elif kind in _FIXED_BYTES:
            end = at + _FIXED_BYTES[kind]
        else:
            raise ValueError(f"unknown wire type: {kind}")
        if end > len(message):
            raise ValueError("the message is truncated")
        if kind == _LENGTH_DELIMITED:
            fields[key >> 3].append(message[at:end])
        at = end
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The 64-bit varint at `at`, and its end. Raises ValueError."""
    number = 0
    for place, byte in enumerate(message[at : at + 10]):
        number |= (byte & 127) << 7 * place
        if not byte & 128:
            return number, at + place + 1
    raise ValueError("a number is missing")
