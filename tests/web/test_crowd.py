"""Crowds that hold every connection they can, and the scrapers among them."""

from __future__ import annotations

import gc
import http.client
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gpu_bottleneck_exporter.web.protocol import LimitedProtocol
from support.certificates import Authority, client
from support.command import ANY_PORT, serving
from support.daemon import get
from support.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from .conftest import Page, Running, Serve

    Eventually = Callable[[Callable[[], bool]], None]

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
PLACES = 32
FULL = {
    "header": 600,
    "write": 600,
    "keep_alive": 600,
    "grace": 0,
    "connections": PLACES,
    "stay": 0.05,
}
"""Nobody is closed for being slow: what counts is who makes way."""


@pytest.fixture
def secured(tmp_path: Path) -> Path:
    """A web configuration file with TLS; the authority lies beside it."""
    Authority(tmp_path).issue("server")
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: server.pem, key_file: server.key}")
    return file


def hello() -> bytes:
    """The first words of a TLS client."""
    outgoing = ssl.MemoryBIO()
    shaking = client(None).wrap_bio(ssl.MemoryBIO(), outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


def tiny(running: Running, source: str = "127.0.0.1") -> socket.socket:
    """A connection whose ends take little."""
    one = socket.socket()
    running.clients.append(one)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(PATIENCE_SECONDS)
    one.bind((source, 0))
    one.connect(("127.0.0.1", running.port))
    return one


def silent(running: Running) -> None:
    running.connect()


def half_a_head(running: Running) -> None:
    running.connect(GET[:10])


def resting(running: Running) -> None:
    assert running.connect(GET).recv(12) == b"HTTP/1.1 200"


def refused(running: Running) -> None:
    assert running.connect(GET.replace(b"metrics", b"nothing")).recv(12) == b"HTTP/1.1 404"


def unread(running: Running) -> None:
    tiny(running).sendall(GET)


def half_a_hello(running: Running) -> None:
    running.connect(hello()[:50])


def half_a_handshake(running: Running) -> None:
    running.connect(hello())


def shaken_and_silent(running: Running) -> None:
    wrapped = client(None).wrap_socket(running.connect())
    running.clients.append(wrapped)


PLAIN = (silent, half_a_head, resting, refused, unread)
TLS = (silent, half_a_hello, half_a_handshake, shaken_and_silent)


def scrape_beside(
    running: Running, context: ssl.SSLContext | None, come: Callable[..., None]
) -> None:
    """Scrapes on new connections and on one that is kept, while ever more clients come."""

    def connection() -> http.client.HTTPConnection:
        if context is None:
            return http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_SECONDS)
        return http.client.HTTPSConnection(
            "localhost", running.port, timeout=PATIENCE_SECONDS, context=context
        )

    kept = connection()
    ports = set()
    for round_ in range(3 * PLACES):
        come(running)
        if round_ % 4:
            continue
        fresh = connection()
        for one in (kept, fresh):
            one.request("GET", "/metrics")
            response = one.getresponse()
            response.read()
            assert response.status == 200
        fresh.close()
        ports.add(kept.sock.getsockname())
    kept.close()
    assert len(ports) == 1


@pytest.mark.parametrize("come", PLAIN)
def test_scrapes_among_more_clients_than_places(
    serve: Serve, page: Page, come: Callable[..., None], eventually: Eventually
) -> None:
    page.body = b"x" * 8_000_000 if come is unread else page.body
    running = serve(**FULL)
    scrape_beside(running, None, come)
    eventually(lambda: running.server.connections <= PLACES)


@pytest.mark.parametrize("come", TLS)
def test_scrapes_among_more_tls_clients_than_places(
    serve: Serve, secured: Path, come: Callable[..., None], eventually: Eventually
) -> None:
    running = serve(web_config=secured, **FULL)
    scrape_beside(running, client(secured.parent / "ca.pem"), come)
    eventually(lambda: running.server.connections <= PLACES)


def test_a_crowd_from_one_address_does_not_disturb_another(
    serve: Serve, eventually: Eventually
) -> None:
    running = serve(**FULL)
    slow = running.connect(GET[:10])
    eventually(lambda: running.server.connections == 1)
    for _ in range(3 * PLACES):
        tiny(running, "127.0.0.2").sendall(GET[:10])
    eventually(lambda: running.server.connections == PLACES)
    slow.sendall(GET[10:])
    assert slow.recv(12) == b"HTTP/1.1 200"


def test_who_got_nothing_rests_for_a_short_time_only(
    serve: Serve, drain: Callable[[socket.socket], bytes], eventually: Eventually
) -> None:
    running = serve(header=60, keep_alive=600)
    scraper = running.connect(GET)
    assert scraper.recv(12) == b"HTTP/1.1 200"
    lost = running.connect(GET.replace(b"metrics", b"nothing"))
    assert lost.recv(12) == b"HTTP/1.1 404"
    running.later(60)
    drain(lost)
    eventually(lambda: running.server.connections == 1)
    scraper.sendall(GET)
    assert scraper.recv(12)


@pytest.mark.parametrize("secure", [False, True])
def test_what_a_client_does_not_read_is_not_kept_for_it(
    serve: Serve,
    page: Page,
    secured: Path,
    eventually: Eventually,
    secure: bool,  # noqa: FBT001 - a parameter of the case
) -> None:
    page.body = b"x" * 20_000_000
    running = serve(web_config=secured if secure else None, write=600, grace=0)
    for _ in range(4):
        one = tiny(running)
        if secure:
            one = client(None).wrap_socket(one)
            running.clients.append(one)
        one.sendall(GET)
    eventually(lambda: len(page.accepted) == 4)
    arrivals = list(running.server._arrivals.open)
    eventually(lambda: all(arrival.http and arrival.http.unread for arrival in arrivals))
    unsent = [arrival.transport.get_write_buffer_size() for arrival in arrivals]
    assert max(unsent) < 1_000_000


def test_a_client_that_takes_a_little_now_and_then_does_not_win_time(
    serve: Serve, page: Page
) -> None:
    page.body = b"x" * 20_000_000
    one = tiny(serve(write=1))
    one.sendall(GET)
    taken = 0
    with suppress(ConnectionError):
        while piece := one.recv(4096):
            taken += len(piece)
            time.sleep(0.002)
    assert taken < len(page.body)


def test_nothing_is_left_of_a_connection_that_was_reset(
    serve: Serve, eventually: Eventually
) -> None:
    running = serve(keep_alive=600)
    for _ in range(20):
        one = running.connect(GET)
        assert one.recv(12) == b"HTTP/1.1 200"
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
    eventually(lambda: running.server.connections == 0)

    def left() -> int:
        gc.collect()
        return sum(isinstance(thing, LimitedProtocol) for thing in gc.get_objects())

    eventually(lambda: left() == 0)


def test_memory_comes_back_after_a_crowd(tmp_path: Path, secured: Path) -> None:
    first, handshakes = hello(), 300
    with serving(tmp_path, "serve", *ANY_PORT, "--web.config.file", str(secured)) as server:
        port = server.port
        process = psutil.Process(server.process.pid)
        crowd = []
        for _ in range(handshakes):
            crowd.append(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS))
            crowd[-1].sendall(first)
        most = 0  # the first have ten seconds: on a busy machine they may go before the last come
        for one in crowd:
            assert one.recv(1)
            most = max(most, process.memory_info().rss)
        for one in crowd:
            one.close()
        enough = handshakes * 20 * 1024  # each took about 70 KiB
        until(lambda: most - process.memory_info().rss > enough, "memory")


def test_a_crowd_does_not_take_all_files(tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 128; exec "$@"', "sh")
    with serving(tmp_path, "serve", *ANY_PORT, way=limited) as server:
        port = server.port
        crowd = [
            socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) for _ in range(120)
        ]
        statuses = [get(port, "/metrics")[0] for _ in range(10)]
        for one in crowd:
            one.close()
        assert statuses == [200] * 10
        assert "Traceback" not in server.said
