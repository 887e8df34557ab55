"""A scrape every second while a thousand clients hold connections in bad ways.

    PYTHONPATH=exporter:tests python tests/bench/flood.py [KIND …]

The server runs in one process, the clients in another; a client that is closed reconnects at once.
All share one address. Two scrapers: one connects anew each time, one keeps its connection and asks
again on a new one if it was closed meanwhile, as Prometheus does. Prints a Markdown table; failures
and counts carry over to other machines, milliseconds and MiB roughly.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import os
import select
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

import psutil

from gpu_bottleneck_exporter.commands.serve import ExporterContent
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.server import WebServer
from support.certificates import Authority, client
from support.daemon import HOST, free_port

CLIENTS = 1000
BODY = b"up 1\n" * 28_000
SCRAPE_TIMEOUT_SECONDS = 10.0  # Prometheus' own
SPAWN = multiprocessing.get_context("spawn")
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Kind(NamedTuple):
    """A way to hold a connection."""

    says: bytes = b""
    """First bytes of a client."""
    drips: bool = False
    """Whether it then sends a byte every second."""
    reads: bool = True
    tls: bool = False


def client_hello() -> bytes:
    """The first flight of a TLS client."""
    outgoing = ssl.MemoryBIO()
    shaking = client(None).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


PLAIN = {
    "silent": Kind(),
    "half a head": Kind(GET[:-2]),
    "half a head, a byte a second": Kind(GET[:-2] + b"X: ", drips=True),
    "resting after a scrape": Kind(GET),
    "never reading": Kind(GET * 50, reads=False),  # more than the kernel takes for both ends
}
TLS = {
    "TLS, silent": Kind(tls=True),
    "TLS, half a hello": Kind(client_hello()[:100], tls=True),
    "TLS, half a handshake": Kind(client_hello(), tls=True),
}
KINDS = {
    **{name: (kind,) for name, kind in (PLAIN | TLS).items()},
    "a fifth each": tuple(PLAIN.values()),
    "TLS, a third each": tuple(TLS.values()),
}


class Content(ExporterContent):
    """One body of 140 kB: no other is requested."""

    def __init__(self) -> None:
        pass

    def metrics(self, accept: str) -> tuple[bytes, str]:
        del accept
        return BODY, "text/plain"


def serve(port: int, config: Path | None) -> None:
    file = WebConfigFile(config) if config else None
    WebServer(Content(), bind(f"{HOST}:{port}"), web_config=file).serve()


class Crowd:
    """A thousand clients, each with a connection."""

    def __init__(self, name: str, port: int) -> None:
        self._kinds = KINDS[name]
        self._port = port
        self._epoll = select.epoll()
        self._clients: dict[int, tuple[int, socket.socket]] = {}

    def _kind(self, number: int) -> Kind:
        return self._kinds[number % len(self._kinds)]

    def come(self, number: int) -> None:
        """Connect the client of this number, or reconnect it."""
        kind, item = self._kind(number), socket.socket()
        if not kind.reads:
            item.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        item.settimeout(SCRAPE_TIMEOUT_SECONDS)
        with contextlib.suppress(OSError):
            item.connect((HOST, self._port))
            item.sendall(kind.says)
        self._clients[item.fileno()] = number, item
        self._epoll.register(item, select.EPOLLRDHUP | (select.EPOLLIN if kind.reads else 0))

    def stay(self, came: Event) -> None:
        """Hold connections for ever."""
        for number in range(CLIENTS):
            self.come(number)
        came.set()
        dripped = time.monotonic()
        while True:
            for descriptor, event in self._epoll.poll(0.2):
                if event != select.EPOLLIN or not self._read(descriptor):
                    number, item = self._clients.pop(descriptor)
                    item.close()
                    self.come(number)
            if time.monotonic() > dripped + 1:
                dripped = time.monotonic()
                self._drip()

    @staticmethod
    def _read(descriptor: int) -> bool:
        """Whether the connection is still open, after reading what has arrived."""
        with contextlib.suppress(OSError):
            return bool(os.read(descriptor, 65536))
        return False

    def _drip(self) -> None:
        for number, item in self._clients.values():
            if self._kind(number).drips:
                with contextlib.suppress(OSError):
                    item.send(b"x")


class Scraper:
    """Scrapes every second, each time on a new connection or on one that it `keeps`."""

    def __init__(self, connection: http.client.HTTPConnection, *, keeps: bool) -> None:
        self.connection, self._keeps = connection, keeps
        self.lost = 0
        self.longest_seconds = 0.0

    def run(self, seconds: float) -> None:
        """Scrape for this time."""
        began = time.monotonic()
        for second in range(int(seconds)):
            time.sleep(max(0.0, began + second - time.monotonic()))
            result, outcome = time.monotonic(), self.connection.sock is not None
            self.lost += not (self.once() or (outcome and self.once()))
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - result)

    def once(self) -> bool:
        """Whether one request succeeds."""
        try:
            self.connection.request("GET", "/metrics")
            good = self.connection.getresponse().read() == BODY
        except (OSError, http.client.HTTPException):
            good = False
        if not good or not self._keeps:
            self.connection.close()
        return good


def connection(port: int, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """One that connects when it is used, and anew after it was closed."""
    timeout = SCRAPE_TIMEOUT_SECONDS
    if context is None:
        return http.client.HTTPConnection(HOST, port, timeout=timeout)
    return http.client.HTTPSConnection("localhost", port, timeout=timeout, context=context)


def hold(name: str, port: int, came: Event) -> None:
    Crowd(name, port).stay(came)


@contextlib.contextmanager
def running(work: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Work in a process of its own; yields its pid."""
    process = SPAWN.Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield process.pid or 0
    finally:
        process.kill()
        process.join()


def mib(process: psutil.Process) -> str:
    return f"{process.memory_info().rss / 2**20:.0f}"


def measure(name: str, seconds: float) -> tuple[int, str]:
    """Number of scrapes lost in this time while the crowd is there, and a row about it."""
    port, tls = free_port(), KINDS[name][0].tls
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = Path(folder) / "web.yml" if tls else None
        if config:
            Authority(Path(folder)).issue("server")
            pair = {"cert_file": "server.pem", "key_file": "server.key"}
            config.write_text(json.dumps({"tls_server_config": pair}))
        process = psutil.Process(stack.enter_context(running(serve, port, config)))
        context = client(Path(folder) / "ca.pem") if tls else None
        new, result = (Scraper(connection(port, context), keeps=keeps) for keeps in (False, True))
        stack.callback(result.connection.close)
        while not new.once():  # it starts
            time.sleep(0.1)
        before, used = mib(process), sum(process.cpu_times()[:2])
        came = SPAWN.Event()
        stack.enter_context(running(hold, name, port, came))
        came.wait()
        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            runs = [pool.submit(item.run, seconds) for item in (new, result)]
            time.sleep(seconds / 2)
            resident, threads = mib(process), process.num_threads()
        for run in runs:
            run.result()
        cores = (sum(process.cpu_times()[:2]) - used) / (time.monotonic() - began)
    cells = [
        f"{item.lost} of {int(seconds)} | {item.longest_seconds:.1f} s" for item in (new, result)
    ]
    cells += [f"{threads} | {before} → {resident} | {cores:.0%}"]
    return new.lost + result.lost, f"| {CLIENTS}: {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    print(
        "| clients | lost, on new connections | longest | lost, on a kept one | longest "
        f"| threads | RSS MiB before → during | of a core |\n|---|{7 * '---:|'}",
    )
    for name in sys.argv[1:] or KINDS:
        print(measure(name, 60)[1], flush=True)
