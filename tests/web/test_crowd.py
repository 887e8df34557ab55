"""Crowds that hold every connection they can, and the scrapers among them."""

from __future__ import annotations

import http.client
import socket
import time
from pathlib import Path

import pytest

from bench.flood import measure
from gpu_bottleneck_exporter.web.server import Phase
from support.command import ANY_PORT, serving
from support.daemon import drain, get
from support.waiting import PATIENCE_SECONDS, eventually

from .conftest import GET, Page, Running, Serve

PATIENT = {
    "request_timeout": 600,
    "response_timeout": 600,
    "keep_alive": 600,
    "shutdown_grace": 0,
    "connections": 4,
    "min_lifetime": 0.05,
}
"""No client is closed for being slow: the test is about evictions."""


@pytest.mark.parametrize("kind", ["a fifth each", "TLS, a third each"])
def test_no_scrape_is_lost_among_a_thousand_bad_clients(kind: str) -> None:
    lost, row = measure(kind, seconds=6)
    assert lost == 0, row


def scrape(client: socket.socket) -> None:
    """A scrape on a connection that is kept."""
    client.sendall(GET)
    response = http.client.HTTPResponse(client)
    response.begin()
    assert (response.status, response.read()) == (200, b"up 1\n" * 2000)


def resting(running: Running) -> socket.socket:
    client = running.connect()
    scrape(client)
    return client


def test_the_connection_without_a_request_for_longest_is_evicted(serve: Serve) -> None:
    running = serve(**PATIENT)
    first = resting(running)
    silent, half = running.connect(), running.connect(GET[:10])
    eventually(lambda: len(running.server.connections) == 3)
    second = resting(running)
    scrape(first)  # it has asked since the others came
    third = resting(running)
    assert drain(silent) == b""
    fourth = resting(running)
    assert drain(half) == b""
    for client in (first, second, third, fourth):
        scrape(client)


def test_a_connection_that_waits_for_the_exporter_stays(serve: Serve, page: Page) -> None:
    running = serve(**PATIENT)
    page.gate.clear()
    scraper = running.connect(GET)
    assert page.entered.acquire(timeout=PATIENCE_SECONDS)
    for _ in range(8):
        assert running.get("/-/healthy").status == 200
        running.connect()
    page.gate.set()
    assert scraper.recv(12) == b"HTTP/1.1 200"


def test_an_answer_that_took_long_has_its_moment_too(serve: Serve, page: Page) -> None:
    page.body = bytes(2**26)  # more than the kernel takes of it
    running = serve(**PATIENT)
    running.connect(GET)
    eventually(
        lambda: [
            connection
            for connection in running.server.connections
            if connection.phase is Phase.SENDING
        ]
    )
    (item,) = running.server.connections
    assert not item.is_evictable(item.ready - 0.001)
    assert item.is_evictable(item.ready)


def test_clients_that_ask_all_the_time_make_way_all_the_same(serve: Serve) -> None:
    running = serve(**{**PATIENT, "min_lifetime": 600})
    others = [resting(running) for _ in range(4)]
    scrape(running.connect())
    assert drain(others[0]) == b""
    scrape(others[-1])


def test_every_connection_stays_for_a_moment(serve: Serve) -> None:
    running = serve(**{**PATIENT, "min_lifetime": 0.5})
    began = time.monotonic()
    for _ in range(4):
        running.connect()
    assert running.get("/-/healthy").status == 200
    assert time.monotonic() - began >= 0.5


def test_a_crowd_does_not_take_all_files(tmp_path: Path) -> None:
    limited = ("sh", "-c", 'ulimit -n 128; exec "$@"', "sh")
    with serving(tmp_path, "serve", *ANY_PORT, way=limited) as server:
        port = server.port
        there = ("127.0.0.1", port)
        crowd = [socket.create_connection(there, PATIENCE_SECONDS) for _ in range(120)]
        statuses = [get(port, "/metrics")[0] for _ in range(10)]
        for item in crowd:
            item.close()
        assert statuses == [200] * 10
        assert "Traceback" not in server.said
        assert "Cannot accept" not in server.said
