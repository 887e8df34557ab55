from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import logging
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.server import WebServer
from support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Page, Running, Serve

    Eventually = Callable[[Callable[[], bool]], None]
    Drain = Callable[[socket.socket], bytes]

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /metr"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_health_answers_while_a_scrape_hangs(serve: Serve, page: Page) -> None:
    running = serve()
    page.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        scrape = pool.submit(running.get, "/metrics")
        assert page.entered.acquire(timeout=PATIENCE_SECONDS)
        assert running.get("/-/healthy").status == 200
        assert running.get("/-/ready").status == 200
        assert running.get("/").status == 200
        assert not scrape.done()
        page.gate.set()
        assert scrape.result(PATIENCE_SECONDS).status == 200


def test_concurrent_scrapes_queue_in_one_thread(
    serve: Serve, page: Page, eventually: Eventually
) -> None:
    running = serve()
    page.gate.clear()
    running.connect(GET)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    threads = threading.active_count()
    clients = [running.connect(GET) for _ in range(20)]
    eventually(lambda: running.owed == 21)
    assert running.get("/-/healthy").status == 200
    assert threading.active_count() <= threads
    assert len(page.accepted) == 1
    page.gate.set()
    assert [client.recv(12) for client in clients] == [b"HTTP/1.1 200"] * 20


def test_a_client_that_went_away_leaves_the_queue(
    serve: Serve, page: Page, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve()
    page.gate.clear()
    running.connect(GET)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    leaving = [running.connect(GET) for _ in range(10)]
    eventually(lambda: running.owed == 11)
    for client in leaving:
        client.close()
    eventually(lambda: running.server.connections == 1)
    for _ in range(3):  # round trips, in which the loop takes the jobs off the queue
        assert running.get("/-/healthy").status == 200
    page.gate.set()
    assert running.get("/metrics").status == 200
    assert len(page.accepted) == 2
    assert errors(caplog) == []


def test_half_open_clients_disturb_nobody_and_are_closed(
    serve: Serve, page: Page, drain: Drain, eventually: Eventually
) -> None:
    running = serve(header=600)
    assert running.get("/metrics").body == page.body
    threads = threading.active_count()
    clients = [running.connect(HALF) for _ in range(200)]
    assert [running.get("/metrics").body == page.body for _ in range(20)] == [True] * 20
    assert threading.active_count() <= threads
    running.later(600)
    assert [drain(client) for client in clients] == [b""] * 200
    eventually(lambda: running.server.connections == 0)


@pytest.mark.parametrize(
    "first", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX-Endless: "]
)
def test_a_client_that_never_ends_its_head_is_closed(
    serve: Serve, drain: Drain, first: bytes
) -> None:
    assert drain(serve(header=0.3).connect(first)) == b""


def drip(running: Running, client: socket.socket) -> None:
    while True:
        client.sendall(b"x")
        time.sleep(0.05)
        running.later(60)


def test_a_dripping_head_does_not_win_time(serve: Serve) -> None:
    running = serve(header=600)
    client = running.connect(HALF)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        drip(running, client)


def test_a_dripping_body_does_not_win_time(serve: Serve) -> None:
    running = serve(header=600)
    client = running.connect(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert client.recv(12) == b"HTTP/1.1 405"
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        drip(running, client)


def test_a_half_request_on_a_kept_connection_is_closed(serve: Serve, drain: Drain) -> None:
    running = serve(header=600, keep_alive=6000)
    client = running.connect(GET)
    assert client.recv(12) == b"HTTP/1.1 200"
    client.sendall(HALF)
    for _ in range(3):  # round trips, in which the loop takes it
        assert running.get("/-/healthy").status == 200
    running.later(600)
    drain(client)


def test_a_client_that_does_not_read_is_closed(
    serve: Serve, page: Page, eventually: Eventually
) -> None:
    page.body = b"x" * 50_000_000  # more than the kernel takes for both ends
    running = serve(write=0.5)
    for close in (b"", b"Connection: close\r\n"):
        running.connect(GET[:-2] + close + b"\r\n")
    eventually(lambda: len(page.accepted) == 2)
    eventually(lambda: running.server.connections == 0)


def test_a_big_body_arrives(serve: Serve, page: Page) -> None:
    page.body = bytes(range(256)) * 40_000
    assert serve().get("/metrics").body == page.body


def test_a_connection_serves_many_requests(serve: Serve, page: Page) -> None:
    running = serve(header=60, keep_alive=600)
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=PATIENCE_SECONDS)
    connection.connect()
    port = connection.sock.getsockname()
    for rest_seconds in (0, 0, 120, 0):
        # The limit for heads must not count while a connection rests.
        running.later(rest_seconds)
        connection.request("GET", "/metrics")
        assert connection.getresponse().read() == page.body
        assert connection.sock.getsockname() == port
    connection.close()


def test_a_resting_connection_is_closed_in_the_end(serve: Serve, drain: Drain) -> None:
    client = serve(keep_alive=1).connect(GET)
    assert drain(client).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000,
    ],
)
def test_nonsense_gets_400_and_leaves_no_log(
    serve: Serve, drain: Drain, caplog: pytest.LogCaptureFixture, nonsense: bytes
) -> None:
    running = serve()
    assert drain(running.connect(nonsense)).startswith(b"HTTP/1.1 400")
    assert running.get("/-/healthy").status == 200
    assert errors(caplog) == []


LENGTH, CHUNKED = b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("both", [LENGTH + CHUNKED, CHUNKED + b"X: y\r\n" + LENGTH])
def test_a_request_with_two_lengths_is_refused_and_nothing_after_it_is_read(
    serve: Serve, page: Page, drain: Drain, method: bytes, both: bytes
) -> None:
    smuggling = method + b" /metrics HTTP/1.1\r\nHost: x\r\n" + both + b"\r\n0\r\n\r\n" + GET
    received = drain(serve().connect(smuggling))
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1
    assert b"connection: close" in received.lower()
    assert page.accepted == []


@pytest.mark.parametrize("length", [LENGTH, CHUNKED])
def test_a_request_with_one_length_is_answered(serve: Serve, drain: Drain, length: bytes) -> None:
    body = b"0\r\n\r\n" if length is CHUNKED else b"12345"
    last = GET[:-2] + b"Connection: close\r\n\r\n"
    received = drain(serve().connect(GET[:-2] + length + b"\r\n" + body + last))
    assert received.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("blocked", [False, True])
def test_a_broken_body_leaves_no_log(
    serve: Serve,
    page: Page,
    drain: Drain,
    caplog: pytest.LogCaptureFixture,
    blocked: bool,  # noqa: FBT001 - a parameter of the case
) -> None:
    running = serve()
    if blocked:
        page.gate.clear()
    head = b"%s /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = running.connect(head % (b"GET" if blocked else b"POST"))
    if blocked:
        assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    else:
        assert client.recv(12) == b"HTTP/1.1 405"
    client.sendall(b"no chunk\r\n")
    drain(client)
    page.gate.set()
    assert running.get("/metrics").status == 200
    assert errors(caplog) == []


def test_an_upgrade_request_is_a_plain_request(
    serve: Serve, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Connection": "upgrade", "Upgrade": "websocket"}
    assert serve().get("/metrics", headers=headers).body == page.body
    assert errors(caplog) == []


def test_two_servers_in_one_process(serve: Serve) -> None:
    first, second = serve("/one"), serve("/two")
    assert first.port != second.port
    first.end()
    assert second.get("/two").status == 200


def closed(running: Running) -> bool:
    """Tell whether connections are refused.

    A reset is a connection that the kernel had taken before the socket was
    closed: the next one tells.
    """
    try:
        socket.create_connection(("127.0.0.1", running.port), PATIENCE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_stop_from_another_thread(serve: Serve, drain: Drain, eventually: Eventually) -> None:
    running = serve()
    half, resting = running.connect(HALF), running.connect(GET)
    assert resting.recv(12) == b"HTTP/1.1 200"
    stopper = threading.Thread(target=running.server.stop)
    stopper.start()
    running.thread.join(PATIENCE_SECONDS)
    stopper.join(PATIENCE_SECONDS)
    assert not running.thread.is_alive()
    assert drain(half) == b""
    assert drain(resting).endswith(b"up 1\n")
    eventually(lambda: closed(running))


def test_stop_before_serve_ends_it(page: Page) -> None:
    sockets = bind("127.0.0.1:0")
    server = WebServer(page, sockets)
    server.stop()
    asyncio.run(server.serve())
    assert sockets[0].fileno() == -1


def test_stop_lets_a_scrape_end(serve: Serve, page: Page) -> None:
    running = serve(grace=60)
    page.gate.clear()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        scrape = pool.submit(running.get, "/metrics")
        assert page.entered.acquire(timeout=PATIENCE_SECONDS)
        running.server.stop()
        while not closed(running):
            time.sleep(0.01)
        page.gate.set()
        assert scrape.result(PATIENCE_SECONDS).body == page.body


def test_stop_does_not_wait_for_a_hanging_scrape(
    serve: Serve, page: Page, drain: Drain, eventually: Eventually
) -> None:
    running = serve(grace=1)
    page.gate.clear()
    client = running.connect(GET)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    queued = running.connect(GET)
    eventually(lambda: running.owed == 2)
    running.end()
    for waiting in (client, queued):
        assert drain(waiting).startswith(b"HTTP/1.1 503")
    assert not page.gate.is_set()


def test_stop_does_not_wait_for_a_client_that_does_not_read(
    serve: Serve, page: Page, eventually: Eventually
) -> None:
    page.body = b"x" * 50_000_000
    running = serve(grace=1)
    running.connect(GET[:-2] + b"Connection: close\r\n\r\n")
    eventually(lambda: len(page.accepted) == 1)
    running.end()
    assert running.server.connections == 0


def test_cancelling_serve_closes_everything(page: Page) -> None:
    sockets = bind("127.0.0.1:0")
    port = sockets[0].getsockname()[1]
    server = WebServer(page, sockets)

    async def cancel_it() -> None:
        task = asyncio.create_task(server.serve())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /-/ready HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await reader.read()).endswith(b"There is data.\n")
        writer.close()

    asyncio.run(cancel_it())
    assert server.connections == 0
    assert sockets[0].fileno() == -1


def test_signal_handlers_stay_the_programs_own(page: Page) -> None:
    server = WebServer(page, bind("127.0.0.1:0"))

    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def look() -> None:
        before = handlers()
        task = asyncio.create_task(server.serve())
        await asyncio.sleep(0.05)
        during = handlers()
        server.stop()
        await task
        assert during == before == handlers()

    asyncio.run(look())


def test_the_environment_does_not_change_the_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "many")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert serve().get("/-/healthy").status == 200
