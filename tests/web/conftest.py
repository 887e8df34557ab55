"""A real server per test, on a port of the kernel's choice."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.protocol import Limits
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.server import WebServer

PATIENCE_S = 60
"""How long a test waits for what must come; never a measure of speed."""

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Page:
    """A content whose answers a test sets."""

    def __init__(self) -> None:
        self.body = b"up 1\n" * 2000
        self.page = "<!DOCTYPE html><title>größer</title>".encode()
        self.alive = (True, "All is well.")
        self.fit = (True, "There is data.")
        self.failure: Exception | None = None
        self.accepted: list[str] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def metrics(self, accept: str) -> tuple[bytes, str]:
        self.accepted.append(accept)
        self.entered.release()
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        return self.body, OPENMETRICS if "openmetrics" in accept else TEXT

    def status_page(self) -> bytes:
        if self.failure is not None:
            raise self.failure
        return self.page

    def healthy(self) -> tuple[bool, str]:
        if self.failure is not None:
            raise self.failure
        return self.alive

    def ready(self) -> tuple[bool, str]:
        return self.fit


@dataclass
class Reply:
    """A response that was read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Running:
    """A server in a thread of its own."""

    server: WebServer
    sockets: list[socket.socket]
    port: int
    thread: threading.Thread
    clients: list[socket.socket] = field(default_factory=list)

    def connect(self, first: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
        """A raw connection that has sent `first`; the fixture closes it."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S, (source, 0))
        self.clients.append(client)
        client.sendall(first)
        return client

    def get(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def end(self) -> None:
        """Stops the server and waits until it has ended."""
        self.server.stop()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


Serve = Callable[..., Running]


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that must come true."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[[Callable[[], bool]], None]:
    return wait_until


def read_all(client: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


@pytest.fixture(name="drain")
def drain_fixture() -> Callable[[socket.socket], bytes]:
    return read_all


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def serve(page: Page) -> Iterator[Serve]:
    """Starts servers for `page`; afterwards no thread and no socket is left."""
    threads_before = set(threading.enumerate())
    started: list[Running] = []

    def start(
        telemetry_path: str = "/metrics", web_config: Path | None = None, **limits: float
    ) -> Running:
        file = WebConfigFile(web_config) if web_config else None
        sockets = bind("127.0.0.1:0")
        within = Limits(**limits)  # type: ignore[arg-type]
        server = WebServer(page, sockets, telemetry_path, limits=within, web_config=file)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
        running = Running(server, sockets, sockets[0].getsockname()[1], thread)
        thread.start()
        started.append(running)
        return running

    try:
        yield start
    finally:
        page.gate.set()
        for running in started:
            running.end()
            for client in running.clients:
                client.close()
    for running in started:
        assert running.server.connections == 0
        assert [sock.fileno() for sock in running.sockets] == [-1] * len(running.sockets)
    wait_until(lambda: set(threading.enumerate()) <= threads_before)
