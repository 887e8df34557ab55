"""One gRPC call over a UNIX socket, without arguments: the request is an empty message.

Uses h2, which needs a tenth of grpcio's memory. Each call opens its own connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.errors import printable

if TYPE_CHECKING:
    from h2.connection import H2Connection
    from h2.events import Event

MOST_BYTES = 16 * 2**20
_EMPTY_MESSAGE = b"\0\0\0\0\0"
_PREFIX_BYTES = 5
"""Before each gRPC message: a flag for compression, and the length in four bytes."""
_ROOM = 65536
_MOST_TEXT = 200

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


def call(path: Path, method: str, deadline_seconds: float, most_bytes: int = MOST_BYTES) -> bytes:
    """The message with which the server at `path` answers `method`.

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
            headers, body = _converse(channel, method, deadline, most_bytes)
    except TimeoutError as error:
        sentence = f"{path} has not answered within {deadline_seconds:g} s"
        raise KubeletTrouble(sentence, UNWELL) from error
    except OSError as error:
        remedy = ROOT_ONLY if isinstance(error, PermissionError) else UNWELL
        raise KubeletTrouble(f"{path}: {error.strerror or error}", remedy) from error
    except H2Error as error:
        raise KubeletTrouble(f"{path} does not speak HTTP/2", UPGRADE) from error
    return _message(path, headers, body)


def _converse(
    channel: socket.socket, method: str, deadline: float, most_bytes: int
) -> tuple[dict[bytes, bytes], bytearray]:
    """Headers with trailers, and body of the reply."""
    from h2 import events  # noqa: PLC0415

    connection = _request(method)
    headers: dict[bytes, bytes] = {}
    body = bytearray()
    while True:
        for event in _events(channel, connection, deadline):
            if isinstance(event, events.StreamEnded):
                return headers, body
            if isinstance(event, events.StreamReset | events.ConnectionTerminated):
                raise ConnectionError(f"it cancelled the call ({event.error_code!s})")
            if isinstance(event, events.ResponseReceived | events.TrailersReceived):
                headers.update(event.headers or ())
            if isinstance(event, events.DataReceived):
                body += event.data or b""
                if len(body) > most_bytes:
                    raise ConnectionError(f"its answer exceeds {most_bytes} bytes")
                # Reopens the window of HTTP/2's flow control, or a long reply would stall.
                if event.flow_controlled_length:
                    connection.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )


def _events(channel: socket.socket, connection: H2Connection, deadline: float) -> list[Event]:
    """What comes next, after all that waits has been sent."""
    # The deadline is that of the whole call, however slowly its bytes arrive.
    channel.settimeout(_left(deadline))
    if waiting := connection.data_to_send():
        channel.sendall(waiting)
    received = channel.recv(_ROOM)
    if not received:
        raise ConnectionError("it closed the connection")
    return connection.receive_data(received)


def _request(method: str) -> H2Connection:
    from h2.config import H2Configuration  # noqa: PLC0415
    from h2.connection import H2Connection  # noqa: PLC0415

    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    stream = connection.get_next_available_stream_id()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    connection.send_headers(stream, list(headers.items()))
    connection.send_data(stream, _EMPTY_MESSAGE, end_stream=True)
    return connection


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
