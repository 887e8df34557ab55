"""A real server per test, on a port of the kernel's choice."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.web import reload
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.server import Limits, WebServer
from support.certificates import Authority, Pair, client
from support.logged import logged
from support.waiting import PATIENCE_SECONDS, until

Log = pytest.LogCaptureFixture
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
BIG = b"x" * 50_000_000
"""More than the kernel takes for both ends."""


def warned(caplog: Log) -> list[str]:
    return logged(caplog, logging.WARNING)


class Gate:
    """Notes who comes, and holds them up while it is closed."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def enter(self) -> None:
        self.entered.release()
        assert self.gate.wait(PATIENCE_SECONDS)


class Page(Gate):
    """A content whose answers a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.body = b"up 1\n" * 2000
        self.page = "<!DOCTYPE html><title>größer</title>".encode()
        self.document = b'{"gpus": []}\n'
        self.all_jobs = b'{"since": 0}\n'
        self.rows: Iterable[bytes] | None = None
        self.alive = (True, "All is well.")
        self.fit = (True, "There is data.")
        self.failure: Exception | None = None
        self.accepted: list[str] = []
        self.looked_at: list[str] = []

    def metrics(self, accept: str) -> tuple[bytes, str]:
        self.accepted.append(accept)
        self.enter()
        self._fail()
        return self.body, OPENMETRICS if "openmetrics" in accept else TEXT

    def status_page(self) -> bytes:
        self._fail()
        return self.page

    def node(self) -> bytes:
        self._fail()
        return self.document

    def sample_stacks(self, uuid: str) -> str | None:
        self._fail()
        self.looked_at.append(uuid)
        return None if uuid == "GPU-a" else "There is no such GPU."

    def jobs(self, since: float) -> Iterator[bytes]:
        self._fail()
        yield from (f'{{"since": {since:g}'.encode(), b"}\n") if self.rows is None else self.rows

    def job(self, name: str) -> bytes | None:
        return f'{{"job": "{name}"}}\n'.encode() if name == "slurm-7" else None

    def healthy(self) -> tuple[bool, str]:
        self._fail()
        return self.alive

    def ready(self) -> tuple[bool, str]:
        return self.fit

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


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
    listening: socket.socket
    file: WebConfigFile | None
    clients: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port: int = self.listening.getsockname()[1]
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def connect(self, first: bytes = b"") -> socket.socket:
        """A raw connection that has sent `first`; the fixture closes it."""
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)
        self.clients.append(client)
        client.sendall(first)
        return client

    def shake(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """A connection after its handshake; the fixture closes it."""
        wrapped = context.wrap_socket(self.connect(), server_hostname="localhost")
        self.clients.append(wrapped)
        return wrapped

    def get(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        with closing(connection):
            connection.request(method, path, headers=headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())

    def end(self) -> None:
        """Stops the server and waits until it has ended."""
        self.server.stop()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()
        if self.file is not None:
            self.file.close()


Serve = Callable[..., Running]
PAIR = {"cert_file": "server.pem", "key_file": "server.key"}


@dataclass(frozen=True)
class Site:
    """Files of a server in a folder, and the authorities that know it and its clients."""

    folder: Path
    authority: Authority
    other: Authority

    @property
    def file(self) -> Path:
        return self.folder / "web.yml"

    def configure(self, **tls: object) -> Path:
        """Write the file, with relative names."""
        return self.write(tls_server_config={**PAIR, **tls})

    def write(self, **sections: object) -> Path:
        """JSON is YAML."""
        self.file.write_text(json.dumps(sections))
        return self.file

    def client(
        self, pair: Pair | None = None, version: ssl.TLSVersion | None = None
    ) -> ssl.SSLContext:
        return client(self.authority.cert, pair, (version, version) if version else None)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    authority = Authority(tmp_path / "site")
    authority.issue("server")
    return Site(authority.folder, authority, Authority(tmp_path / "other"))


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed files are noticed at once."""
    monkeypatch.setattr(reload, "CHECK_INTERVAL_SECONDS", 0.02)


@pytest.fixture
def page() -> Page:
    return Page()


@pytest.fixture
def serve(page: Page) -> Iterator[Serve]:
    """Starts servers for `page`; afterwards no thread and no socket is left."""
    threads_before = set(threading.enumerate())
    started: list[Running] = []

    def start(
        telemetry_path: str = "/metrics",
        web_config: Path | None = None,
        patience: float = PATIENCE_SECONDS,
        **limits: float,
    ) -> Running:
        file = WebConfigFile(web_config, patience) if web_config else None
        listening = bind("127.0.0.1:0")
        within = Limits(**limits)  # type: ignore[arg-type]
        server = WebServer(page, listening, telemetry_path, limits=within, web_config=file)
        started.append(Running(server, listening, file))
        return started[-1]

    try:
        yield start
    finally:
        page.gate.set()
        for running in started:
            running.end()
            for client in running.clients:
                client.close()
    for running in started:
        until(lambda: len(running.server.connections) == 0, "the end of its connections")  # noqa: B023
        assert running.listening.fileno() == -1
    until(lambda: set(threading.enumerate()) <= threads_before, "the end of its threads")
