"""A server that a test starts, waits for and stops."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.tools import WITH_US
from support.waiting import PATIENCE_SECONDS, until

HOST = "127.0.0.1"
_kept: list[socket.socket] = []


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of one request, without a proxy; status 0 without a listener."""
    return _asked("GET", port, path, None, headers)


def post(port: int, path: str, body: str, kind: str = "text/plain") -> tuple[int, bytes]:
    """The same of one that sends `body`, of that content type."""
    return _asked("POST", port, path, body, {"Content-Type": kind})


def _asked(
    method: str, port: int, path: str, body: str | None, headers: dict[str, str] | None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def silent(port: int, request: bytes) -> socket.socket:
    """A client that sends `request` and does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((HOST, port))
    client.sendall(request)
    return client


def drain(client: socket.socket) -> bytes:
    """Data received until the server closes the connection."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def free_port() -> int:
    """A port without a listener, kept for servers that set SO_REUSEADDR, as they all do.

    It stays bound until this process ends: the kernel gives it to no socket that asks for any port.
    """
    probe = socket.socket()
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((HOST, 0))
    _kept.append(probe)
    return int(probe.getsockname()[1])


@contextmanager
def daemon(
    command: Sequence[str],
    port: int,
    ready: str,
    log: Path,
    variables: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Run `command` until the end of the block; yields its pid once `ready` on `port` answers.

    `variables` are added to its environment.
    """
    environment = {**os.environ, **(variables or {})}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*WITH_US, *command], env=environment, stdout=output, stderr=output
        ) as child,
    ):
        try:
            until(
                lambda: get(port, ready)[0] == http.client.OK,
                lambda: f"{command[0]}: {log.read_text()}",
                unless=lambda: child.poll() is not None,
            )
            yield child.pid
        finally:
            child.kill()
