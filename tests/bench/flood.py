"""Scrapes while a thousand clients of one kind hold connections, and what that costs in memory.

    PYTHONPATH=tests python tests/bench/flood.py [KIND …] [--scrapes 200]

The server runs in one process, the clients in another; a client that is closed reconnects at once.
The clients share the address of the scrapes: ten at a time on new connections, by users who are new
too, and one after the other on a connection that is kept. Prints a Markdown table; failures and
counts carry over to other machines, MiB roughly.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import json
import os
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import psutil

from bench.http_servers import SOURCES, BenchContent, free_port
from support.certificates import Authority, client

SCRAPE_TIMEOUT_S = 10.0  # Prometheus' own
SETTLE_S = 5.0
SCRAPES_BEFORE = 5  # on the kept connection, which is known before the crowd comes
SMALL_BYTES = 4096
BODY_STARTS = b"HTTP/1.1 401"  # a response arrives in two pieces: the last one counts
GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
PASSWORD, COST = "right", 10
MANY, SOME = 1000, 50
AT_ONCE = 10


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def client_hello() -> bytes:
    """The first flight of a TLS client."""
    outgoing = ssl.MemoryBIO()
    shaking = client(None).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


@dataclass(frozen=True)
class Kind:
    """A way to hold a connection.

    Attributes:
        says: What the n-th client sends first.
        drips: Whether it then sends a byte every second.
        reads: Whether it reads responses.
        users: Whether the server requires a password, which the scrapes know.
        again: Whether it asks again as soon as it is answered.
        clients: How many there are.
    """

    says: Callable[[int], bytes]
    drips: bool = False
    reads: bool = True
    users: bool = False
    again: bool = False
    clients: int = MANY


def wrong(number: int) -> bytes:
    password = f"wrong {number} {time.time_ns()}"
    return GET + f"Authorization: {basic('user0', password)}\r\n\r\n".encode()


PLAIN = {
    "silent": Kind(lambda _: b""),
    "half a head": Kind(lambda _: GET),
    "half a head, a byte a second": Kind(lambda _: GET + b"X: ", drips=True),
    "resting after a scrape": Kind(lambda _: GET + b"\r\n"),
    "never reading": Kind(lambda _: GET + b"\r\n", reads=False),
    "wrong passwords": Kind(wrong, users=True, again=True, clients=SOME),
}
TLS = {
    "TLS, silent": Kind(lambda _: b""),
    "TLS, half a hello": Kind(lambda _: client_hello()[:100]),
    "TLS, half a handshake": Kind(lambda _: client_hello()),
}
KINDS = PLAIN | TLS


class Crowd:
    """Clients of one kind, each with a connection."""

    def __init__(self, name: str, port: int) -> None:
        self._kind = KINDS[name]
        self._port = port
        self._hello = self._kind.says(0) if name in TLS else None
        self._selector = selectors.DefaultSelector()
        self._deaf: list[socket.socket] = []

    def come(self, number: int) -> None:
        """Connect the n-th client, or reconnect it."""
        one = socket.socket()
        if not self._kind.reads:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
        one.settimeout(SCRAPE_TIMEOUT_S)
        with contextlib.suppress(OSError):
            one.connect(("127.0.0.1", self._port))
            one.sendall(self._kind.says(number) if self._hello is None else self._hello)
        if self._kind.reads:
            self._selector.register(one, selectors.EVENT_READ, number)
        else:
            self._deaf.append(one)

    def stay(self) -> None:
        """Holds connections forever."""
        dripped = time.monotonic()
        while True:
            for key, _ in self._selector.select(1.0):
                if not self._take(key.fd, key.data):
                    self._selector.unregister(key.fileobj)
                    assert isinstance(key.fileobj, socket.socket)
                    key.fileobj.close()
                    self.come(key.data)
            if self._kind.drips and time.monotonic() > dripped + 1:
                dripped = time.monotonic()
                for key in list(self._selector.get_map().values()):
                    with contextlib.suppress(OSError):
                        os.write(key.fd, b"x")

    def _take(self, descriptor: int, number: int) -> bool:
        """Whether the connection is still open, after reading what has arrived."""
        try:
            came = os.read(descriptor, 65536)
            if came and self._kind.again and BODY_STARTS not in came:
                os.write(descriptor, self._kind.says(number))
        except OSError:
            return False
        return bool(came)


def crowd(name: str, port: int) -> None:
    """Hold connections until killed; reports on stdout when all have connected once."""
    clients = Crowd(name, port)
    for number in range(KINDS[name].clients):
        clients.come(number)
    print("all came", flush=True)
    clients.stay()


def serve(port: int, config: str) -> None:
    import asyncio  # noqa: PLC0415 - only in its process

    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415 - only in its process
    from gpu_bottleneck_exporter.web.reload import WebConfigFile  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.server import WebServer  # noqa: PLC0415

    file = WebConfigFile(Path(config)) if config else None
    server = WebServer(BenchContent(), bind(f"127.0.0.1:{port}"), web_config=file)
    asyncio.run(server.serve())


def configure(folder: Path, kind: Kind, users: int, *, tls: bool) -> str:
    """The server's web configuration file; "" for none."""
    config: dict[str, object] = {}
    if tls:
        Authority(folder).issue("server")
        config["tls_server_config"] = {"cert_file": "server.pem", "key_file": "server.key"}
    if kind.users:
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(COST)).decode()
        config["basic_auth_users"] = {f"user{number}": hashed for number in range(users)}
    (folder / "web.yml").write_text(json.dumps(config))
    return str(folder / "web.yml") if config else ""


def connect(port: int, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    if context is None:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=SCRAPE_TIMEOUT_S)
    return http.client.HTTPSConnection("localhost", port, timeout=SCRAPE_TIMEOUT_S, context=context)


def succeeds(connection: http.client.HTTPConnection, user: str) -> bool:
    try:
        connection.request("GET", "/metrics", headers={"Authorization": basic(user, PASSWORD)})
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return False
    return response.status == http.client.OK


@dataclass
class Seen:
    """The outcome of the scrapes."""

    failed: int = 0
    failed_on_kept: int = 0
    reconnected: int = 0
    longest_s: float = 0.0

    def scrape(
        self,
        count: int,
        kept: http.client.HTTPConnection,
        new: Callable[[], http.client.HTTPConnection],
    ) -> None:
        """Ten scrapers at a time make `count` scrapes, and a kept connection as many."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            users = [f"user{number}" for number in range(1, count + 1)]
            asked = [pool.submit(scrape_once, new, user) for user in users]
            for future in asked:
                good, seconds = future.result()
                self.failed += not good
                self.longest_s = max(self.longest_s, seconds)
                before = kept.sock
                self.failed_on_kept += not succeeds(kept, "user0")
                self.reconnected += kept.sock is not before


def scrape_once(new: Callable[[], http.client.HTTPConnection], user: str) -> tuple[bool, float]:
    """Whether it succeeded, and how long it took in seconds."""
    began, one = time.monotonic(), new()
    good = succeeds(one, user)
    one.close()
    return good, time.monotonic() - began


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    paths = f"{SOURCES}:{Path(__file__).parents[1]}"
    environment = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def measure(name: str, count: int) -> str:
    """One row of the table."""
    kind, port, tls = KINDS[name], free_port(), name in TLS
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        config = configure(Path(folder), kind, count + 1, tls=tls)
        server = stack.enter_context(running("--serve", str(port), "--config", config))
        context = client(Path(folder) / "ca.pem") if tls else None
        kept = connect(port, context)
        while not succeeds(kept, "user0"):
            time.sleep(0.1)
        for _ in range(SCRAPES_BEFORE):
            succeeds(kept, "user0")
        process, seen = psutil.Process(server.pid), Seen()
        resident = [process.memory_info().rss]
        with running("--crowd", name, "--port", str(port)) as flood:
            assert flood.stdout is not None
            flood.stdout.readline()
            time.sleep(SETTLE_S)
            seen.scrape(count, kept, lambda: connect(port, context))
            resident.append(process.memory_info().rss)
            files, threads = process.num_fds(), process.num_threads()
        time.sleep(SETTLE_S)
        resident.append(process.memory_info().rss)
    return (
        f"| {kind.clients}: {name} | {seen.failed} of {count} | {seen.longest_s:.1f} "
        f"| {seen.failed_on_kept} of {count}, {seen.reconnected} reconnected | {files} | {threads} "
        f"| {' → '.join(f'{size / 2**20:.0f}' for size in resident)} |"
    )


def main() -> None:
    """Print the table or, in its own subprocesses, be the server or the crowd."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--scrapes", type=int, default=200)
    for own in ("--serve", "--port", "--config", "--crowd"):
        parser.add_argument(own, default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(int(given.serve), given.config)
    elif given.crowd:
        crowd(given.crowd, int(given.port))
    else:
        print(
            "| clients | scrapes failed | longest s | on a kept connection | files | threads "
            "| MiB before → during → after |\n|---|---:|---:|---:|---:|---:|---:|"
        )
        for name in given.kinds or KINDS:
            print(measure(name, given.scrapes), flush=True)


if __name__ == "__main__":
    main()
