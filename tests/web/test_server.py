"""Limits of a client, responses to malformed requests, and the end of the server."""

from __future__ import annotations

import concurrent.futures
import http.client
import re
import select
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from gpu_bottleneck_exporter.web import routes
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.server import MAX_HEAD_BYTES, WebServer
from support.daemon import drain
from support.rows import rows
from support.waiting import PATIENCE_SECONDS, eventually

from .conftest import BIG, GET, Log, Page, Serve, Site, warned

HALF = b"GET /metr"


def test_scrapes_are_rendered_one_by_one_and_hold_up_no_page(serve: Serve, page: Page) -> None:
    running = serve()
    page.gate.clear()
    clients = [running.connect(GET) for _ in range(20)]
    eventually(lambda: len(running.server.connections) == 20)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    assert [running.get(path).status for path in ("/", "/-/healthy", "/-/ready")] == [200] * 3
    assert len(page.accepted) == 1
    page.gate.set()
    assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 20


def statuses(received: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.1 (\d+)", received)


@rows(
    "rest, sent, answers",
    {
        "nothing": (1, b"", []),
        "half a line": (1, HALF, []),
        "half a head": (1, b"GET / HTTP/1.1\r\n", []),
        "half a header": (1, b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: ", []),
        "half a second line": (600, GET + HALF, [b"200"]),
        "no second request": (0.3, GET, [b"200"]),
        "an absent page": (600, GET.replace(b"metrics", b"nothing"), [b"404"]),
    },
)
def test_a_client_that_stops_sending_is_closed(
    serve: Serve, rest: float, sent: bytes, answers: list[bytes]
) -> None:
    assert statuses(drain(serve(request_timeout=1, keep_alive=rest).connect(sent))) == answers


def drip(client: socket.socket) -> None:
    while True:
        client.sendall(b"x")
        time.sleep(0.05)


def test_a_dripping_request_does_not_win_time(serve: Serve) -> None:
    client = serve(request_timeout=1).connect(HALF)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        drip(client)


@pytest.mark.parametrize("how", ["kept", "closed", "TLS"])
def test_a_client_that_does_not_read_is_closed(
    serve: Serve, page: Page, site: Site, how: str
) -> None:
    page.body = BIG
    running = serve(response_timeout=0.5, web_config=site.configure() if how == "TLS" else None)
    client = running.shake(site.client()) if how == "TLS" else running.connect()
    client.sendall(GET[:-2] + (b"Connection: close\r\n\r\n" if how == "closed" else b"\r\n"))
    eventually(lambda: len(page.accepted) == 1)
    eventually(lambda: len(running.server.connections) == 0)
    # The kernel keeps nothing for it. A client that reads before that gets it all.
    reset = select.poll()
    reset.register(client, 0)
    assert reset.poll(PATIENCE_SECONDS * 1000)
    if how != "TLS":  # which takes it for an end
        with pytest.raises(ConnectionResetError):
            read_on(client)


def read_on(client: socket.socket) -> None:
    while client.recv(65536):
        pass


def test_taking_a_little_now_and_then_wins_no_time(serve: Serve, page: Page) -> None:
    page.body = BIG
    client = serve(response_timeout=1).connect(GET)
    taken = 0
    with suppress(ConnectionError):
        while piece := client.recv(4096):
            taken += len(piece)
            time.sleep(0.002)
    assert taken < len(page.body)


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}])
@pytest.mark.parametrize("tls", [False, True])
def test_a_big_body_arrives(
    serve: Serve, page: Page, site: Site, headers: dict[str, str], *, tls: bool
) -> None:
    page.body = bytes(range(256)) * 40_000
    port = serve(web_config=site.configure() if tls else None).port
    connection = http.client.HTTPConnection("localhost", port, timeout=PATIENCE_SECONDS)
    if tls:
        connection = http.client.HTTPSConnection("localhost", port, context=site.client())
    with closing(connection):
        for _ in range(2):
            connection.request("GET", "/metrics", headers=headers)
            assert connection.getresponse().read() == page.body


def test_a_connection_serves_many_requests(serve: Serve, page: Page) -> None:
    running = serve(request_timeout=1)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_SECONDS)
    connection.connect()
    port = connection.sock.getsockname()
    for rest_seconds in (0.0, 0.0, 1.5, 0.0):  # the limit for heads does not count a rest
        time.sleep(rest_seconds)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read() == page.body
        assert connection.sock.getsockname() == port
    connection.close()


LENGTH, CHUNKED = b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"
LENGTHS = (LENGTH + CHUNKED, CHUNKED + b"X: y\r\n" + LENGTH)


def with_two_lengths(method: bytes, both: bytes) -> bytes:
    return method + b" /metrics HTTP/1.1\r\nHost: x\r\n" + both + b"\r\n0\r\n\r\n" + GET


@rows(
    "sent, status",
    {
        "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        "no host": (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        "no version": (b"GET /\r\n\r\n", b"400"),
        "no colon": (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", b"400"),
        "blank": (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello", b"400"),
        "a long path": (b"GET /" + b"y" * 100_000, b"414"),
        "a long header": (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000, b"431"),
        "many headers": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000, b"431"),
        "HTTP/2.0": (b"GET / HTTP/2.0\r\n\r\n", b"505"),
        **{
            f"{method!r} {both!r}": (with_two_lengths(method, both), b"400")
            for method in (b"GET", b"POST")
            for both in LENGTHS
        },
    },
)
def test_nonsense_is_refused_and_nothing_after_it_is_read(
    serve: Serve, page: Page, caplog: Log, sent: bytes, status: bytes
) -> None:
    running = serve()
    received = drain(running.connect(sent))
    assert statuses(received) == [status]
    assert b"connection: close" in received.lower()
    assert running.get("/-/healthy").status == 200
    assert (page.accepted, warned(caplog)) == ([], [])


@rows("more, answers", {"just": (0, [b"200"]), "too much": (1, [b"431"])})
def test_how_long_a_head_may_be(serve: Serve, more: int, answers: list[bytes]) -> None:
    head, end = GET.removesuffix(b"\r\n") + b"Connection: close\r\nX: ", b"\r\n\r\n"
    filler = b"y" * (MAX_HEAD_BYTES - len(head) - len(end) + more)
    assert statuses(drain(serve().connect(head + filler + end))) == answers


@rows(
    "headers, body, answers",
    {
        "empty": (b"Content-Length: 0\r\n", b"", 2),
        "short": (LENGTH, b"12345", 1),
        "expected": (LENGTH + b"Expect: 100-continue\r\n", b"", 1),
        "of two lengths": (LENGTH + b"Content-Length: 6\r\n", b"123456", 1),
        "chunked": (CHUNKED, b"0\r\n\r\n", 1),
        "long": (b"Content-Length: 9999999\r\n", b"x" * 9_999_999, 1),
    },
)
def test_bodies_are_not_read(serve: Serve, headers: bytes, body: bytes, answers: int) -> None:
    last = GET[:-2] + b"Connection: close\r\n\r\n"
    client = serve().connect(GET[:-2] + headers + b"\r\n" + body + last)
    assert drain(client).count(b"HTTP/1.1 200") == answers


@pytest.mark.parametrize("tls", [False, True])
def test_stop_waits_for_no_client(serve: Serve, site: Site, caplog: Log, *, tls: bool) -> None:
    running = serve(
        web_config=site.configure() if tls else None,
        request_timeout=600,
        keep_alive=600,
        shutdown_grace=600,
    )
    silent, half = running.connect(), running.connect(b"\x16\x03\x01" if tls else HALF)
    resting = running.shake(site.client()) if tls else running.connect()
    resting.sendall(GET)
    assert resting.recv(12) == b"HTTP/1.1 200"
    eventually(lambda: len(running.server.connections) == 3)
    running.end()
    assert drain(silent) == drain(half) == b""
    assert drain(resting).endswith(b"up 1\n")
    assert warned(caplog) == []


def test_stop_waits_for_no_client_that_has_its_answer(serve: Serve, page: Page) -> None:
    running = serve(shutdown_grace=600)
    page.gate.clear()
    client = running.connect(GET)
    eventually(lambda: page.accepted)
    running.server.stop()
    eventually(lambda: running.listening.fileno() == -1)
    page.gate.set()
    running.end()
    assert drain(client).endswith(b"up 1\n")


def test_the_watchdog_learns_that_the_accept_loop_has_stalled(serve: Serve) -> None:
    running = serve()
    assert running.server.standstill(PATIENCE_SECONDS) is None
    running.end()
    time.sleep(0.01)
    assert running.server.standstill(0.01) == "the accept loop has stalled"


def test_without_a_thread_for_it_a_client_is_closed_and_the_next_one_answered(
    serve: Serve, caplog: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, start, refused = serve(), threading.Thread.start, list[str]()

    def first_fails(thread: threading.Thread) -> None:
        if thread.name == "web" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", first_fails)
    assert drain(running.connect(GET)) == b""
    assert not running.server.connections
    assert running.get("/metrics").status == 200
    assert warned(caplog) == ["cannot accept a connection err=can't start new thread"]


def test_a_page_that_is_never_ready_reports_so(
    serve: Serve, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_RENDER_TIMEOUT_SECONDS", 0.05)
    running = serve()
    page.gate.clear()
    first = running.connect(GET)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    assert running.get("/metrics").status == 503
    page.gate.set()
    assert first.recv(12) == b"HTTP/1.1 200"


def test_stop_before_serve_ends_it(page: Page) -> None:
    listening = bind("127.0.0.1:0")
    server = WebServer(page, listening)
    server.stop()
    server.serve()
    assert listening.fileno() == -1


def test_stop_lets_a_scrape_end(serve: Serve, page: Page) -> None:
    running = serve(shutdown_grace=60)
    page.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        scrape = pool.submit(running.get, "/metrics")
        assert page.entered.acquire(timeout=PATIENCE_SECONDS)
        idle = running.connect()
        eventually(lambda: len(running.server.connections) == 2)
        running.server.stop()
        assert drain(idle) == b"", "who asks nothing is not waited for"
        eventually(lambda: running.listening.fileno() == -1)
        page.gate.set()
        reply = scrape.result(PATIENCE_SECONDS)
    assert (reply.body, reply.headers["connection"]) == (page.body, "close")


@pytest.mark.parametrize("hangs", [True, False])
def test_stop_waits_for_no_scrape_and_no_client(serve: Serve, page: Page, *, hangs: bool) -> None:
    page.body = BIG
    running = serve(shutdown_grace=0.5)
    if hangs:
        page.gate.clear()
    client = running.connect(GET)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    running.end()
    assert not hangs or drain(client) == b""
    assert page.gate.is_set() is not hangs
