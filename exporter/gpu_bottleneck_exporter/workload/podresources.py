"""The kubelet's answer to v1.PodResourcesLister/List: which container was given which device.

One gRPC call over its UNIX socket, with an empty message. Uses h2, which needs a tenth of grpcio's
memory. Each call opens its own connection.

The answer is parsed from protobuf's wire format by hand, as few of its fields are needed. Their
numbers, from the kubelet's podresources/v1/api.proto: pod {name 1, namespace 2, containers 3 {name
1, devices 2 {resource_name 1, device_ids 2}, dynamic_resources 5 {claim_resources 4 {cdi_devices 1,
driver_name 2, device_name 4}}}}.
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
_HEADERS = (
    *((":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "localhost")),
    *(("content-type", "application/grpc"), ("te", "trailers")),
)
_STREAM = 1
"""The first one that a client opens (RFC 9113, 5.1.1)."""
_EMPTY_MESSAGE = bytes(5)
_PREFIX_BYTES = len(_EMPTY_MESSAGE)
"""Before each gRPC message: a flag for compression, and the length in four bytes."""
_MOST_BYTES = 16 * 2**20
"""As the kubelet's own tests allow (test/e2e_node/util.go)."""
_RECEIVED_BYTES = 65_536
"""At once: the first flow control window of HTTP/2."""
_MOST_TEXT = 200
"""Of what a server says when it refuses: enough for a sentence in a log."""
_VARINT, _BYTES = 0, 2
"""Wire types of protobuf, in the low three bits of a field's key."""
_FIXED = {1: 8, 5: 4}
"""Bytes of a value by the other wire types."""
_LONGEST_VARINT = 10
"""Bytes for 64 bits, of seven bits each."""
_MORE = 0x80
"""Set in all bytes of a varint except the last."""
Fields = defaultdict[int, list[bytes]]
"""The values of a message by their field's number."""

UNWELL = "it is retried with growing pauses; if this lasts, see the kubelet's log"
ROOT_ONLY = "root owns the socket: run the exporter as user 0; no capability is needed"
INSTALL = "pip install 'gpu-bottleneck-exporter[kubernetes]'"
UPGRADE = "check that it is the kubelet's socket; the API exists since Kubernetes 1.20"
_REMEDIES = {b"7": ROOT_ONLY, b"12": UPGRADE, b"16": ROOT_ONLY}
"""By gRPC status: permission denied, unimplemented, unauthenticated. 0 is success."""


class KubeletTrouble(Exception):  # noqa: N818 - mostly not an error: a kubelet restarts
    """Why allocations or names from the kubelet are missing, in one plain sentence; its remedy."""

    def __init__(self, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.remedy = remedy


def call(path: Path, deadline_seconds: float) -> bytes:
    """The message with which the server at `path` answers `METHOD`.

    Raises KubeletTrouble, after `deadline_seconds` at the latest, however slowly it answers.
    """
    deadline = time.monotonic() + deadline_seconds
    try:
        from h2.exceptions import H2Error  # noqa: PLC0415 - takes memory; only in Kubernetes
    except ImportError as error:
        raise KubeletTrouble("the package h2 is not installed", INSTALL) from error
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(_left(deadline))
            channel.connect(f"{path}")
            headers, body = _converse(channel, deadline)
    except TimeoutError as error:
        sentence = f"{path} has not answered within {deadline_seconds:g} s"
        raise KubeletTrouble(sentence, UNWELL) from error
    except OSError as error:
        remedy = ROOT_ONLY if isinstance(error, PermissionError) else UNWELL
        raise KubeletTrouble(f"{path}: {error.strerror or error}", remedy) from error
    except H2Error as error:
        raise KubeletTrouble(f"{path} does not speak HTTP/2", UPGRADE) from error
    return _message(path, headers, body)


def _converse(channel: socket.socket, deadline: float) -> tuple[dict[bytes, bytes], bytearray]:
    """Headers with trailers, and body of the reply."""
    from h2 import config, connection, events  # noqa: PLC0415

    http = connection.H2Connection(config.H2Configuration(client_side=True, header_encoding=None))
    http.initiate_connection()
    http.send_headers(_STREAM, _HEADERS)
    http.send_data(_STREAM, _EMPTY_MESSAGE, end_stream=True)
    headers: dict[bytes, bytes] = {}
    body = bytearray()
    while True:
        # The deadline is that of the whole call, however slowly its bytes arrive.
        channel.settimeout(_left(deadline))
        if waiting := http.data_to_send():
            channel.sendall(waiting)
        received = channel.recv(_RECEIVED_BYTES)
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
                if len(body) > _MOST_BYTES:
                    raise ConnectionError(f"its answer exceeds {_MOST_BYTES} bytes")
                # Reopens the window of HTTP/2's flow control, or a long reply would stall.
                size = event.flow_controlled_length or 0
                http.acknowledge_received_data(size, event.stream_id)


def _message(path: Path, headers: Mapping[bytes, bytes], body: bytearray) -> bytes:
    status = headers.get(b"grpc-status")
    if status is None:
        raise KubeletTrouble(f"{path} does not speak gRPC", UPGRADE)
    if status != b"0":
        said = headers.get(b"grpc-message", b"")
        told = b"gRPC status %b: %b" % (status[:_MOST_TEXT], said[:_MOST_TEXT])
        sentence = f"{path} refuses ({printable(told.decode('ascii', 'replace'))})"
        raise KubeletTrouble(sentence, _REMEDIES.get(status, UNWELL))
    prefix, message = body[:_PREFIX_BYTES], bytes(body[_PREFIX_BYTES:])
    if prefix != b"\0" + len(message).to_bytes(4, "big"):
        raise KubeletTrouble(f"{path} answered with no gRPC message", UPGRADE)
    return message


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class Holder(NamedTuple):
    """A container that was given a GPU."""

    namespace: str
    pod: str
    container: str


class Given(NamedTuple):
    """A device by the kubelet's name for it."""

    holder: Holder
    source: str
    """A device plugin's resource, a DRA driver, or "" for a claim without a driver's name."""
    device: str
    cdi: str = ""
    """Its name in CDI's files, if it has another one."""
    nodes: tuple[str, ...] = ()
    """Its device nodes, where such a file tells them."""


def given(reply: bytes) -> Iterator[Given]:
    """The devices in `reply`, GPUs or not, with their holders. Raises ValueError if malformed."""
    for pod in map(_fields, _fields(reply)[1]):
        name, namespace = _text(pod, 1), _text(pod, 2)
        for container in map(_fields, pod[3]):
            holder = Holder(namespace, name, _text(container, 1))
            if all(holder):
                yield from (Given(holder, *found) for found in _devices(container))
                yield from (Given(holder, *found) for found in _claimed(container))


def _devices(container: Fields) -> Iterator[tuple[str, str]]:
    for device in map(_fields, container[2]):
        if resource := _text(device, 1):
            yield from ((resource, name.decode()) for name in device[2])


def _claimed(container: Fields) -> Iterator[tuple[str, str, str]]:
    """Drivers, names and CDI names of claimed devices; an older kubelet sends only the last."""
    for claim in map(_fields, container[5]):
        for resource in map(_fields, claim[4]):
            driver, device = _text(resource, 2), _text(resource, 4)
            names = [_text(_fields(cdi), 1) for cdi in resource[1]]
            if driver and device:
                own = (name for name in names if name.endswith(f"-{device}"))
                yield driver, device, next(own, "")
            elif not driver:
                yield from (("", name, "") for name in names)


def _text(message: Fields, number: int) -> str:
    """The last value of field `number`, which counts in protobuf; empty if there is none."""
    return message[number][-1].decode() if message[number] else ""


def _fields(message: bytes) -> Fields:
    """Strings and messages in `message` by their field's number. Raises ValueError."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, end = _varint(message, at)
        elif kind == _BYTES:
            length, at = _varint(message, at)
            end = at + length
        elif kind in _FIXED:
            end = at + _FIXED[kind]
        else:
            raise ValueError(f"unknown wire type: {kind}")
        if end > len(message):
            raise ValueError("the message is truncated")
        if kind == _BYTES:
            found[key >> 3].append(message[at:end])
        at = end
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. Raises ValueError."""
    number = 0
    for place, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        number |= (byte & ~_MORE) << 7 * place
        if byte < _MORE:
            return number, at + place + 1
    raise ValueError("a number is missing")
