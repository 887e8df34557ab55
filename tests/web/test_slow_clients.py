"""Limits of clients that do not read, and cost of malformed requests."""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.commands.serve import ExporterContent
from gpu_bottleneck_exporter.driver.nvml.driver import NvmlDriver
from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.jobs.store import Row, Store
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.server import WebServer
from support.daemon import drain, silent
from support.waiting import PATIENCE_SECONDS, eventually

from .conftest import Log, Page, Serve, warned

LIST = b"GET /api/v1/jobs HTTP/1.1\r\nHost: x\r\n\r\n"
PART = b"x" * 20_000


def test_a_part_is_made_when_the_client_has_taken_those_before(serve: Serve, page: Page) -> None:
    made = []

    def rows() -> Iterator[bytes]:
        for number in range(1000):
            made.append(number)
            yield PART

    page.rows = rows()
    running = serve()
    slow = running.connect(LIST)
    eventually(lambda: made)
    # It holds up no client of the same page.
    page.rows = [b"{}"]
    assert running.get("/api/v1/jobs").body == b"{}"
    assert len(made) < 500  # what the kernel takes for both ends
    assert slow.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_in_parts_arrives(serve: Serve, page: Page, version: bytes) -> None:
    page.rows = [b"[", *[b'"%d", ' % number for number in range(1000)], b"0]"]
    running = serve()
    client = running.connect(LIST.replace(b"1.1", version))
    answer = http.client.HTTPResponse(client)
    answer.begin()
    assert len(json.loads(answer.read())) == 1001
    assert answer.getheader("Transfer-Encoding") == ("chunked" if version == b"1.1" else None)
    if version == b"1.1":  # and the connection is in order
        client.sendall(LIST)
        assert client.recv(12) == b"HTTP/1.1 200"
    else:
        assert client.recv(1) == b""


def test_a_body_that_fails_in_the_middle_is_no_whole_one(
    serve: Serve, page: Page, caplog: Log
) -> None:
    def rows() -> Iterator[bytes]:
        yield b"{}"
        raise ZeroDivisionError

    page.rows = rows()
    answer = http.client.HTTPResponse(serve().connect(LIST))
    answer.begin()
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    eventually(lambda: warned(caplog))
    assert warned(caplog) == ["answer failed after its beginning"]


def test_the_time_that_a_part_takes_is_not_the_clients(serve: Serve, page: Page) -> None:
    def rows() -> Iterator[bytes]:
        yield b"1"
        time.sleep(1.5)  # the server looks every half a second whose time is up
        yield b"2"

    page.rows = rows()
    assert serve(response_timeout=0.5).get("/api/v1/jobs").body == b"12"


def test_taking_parts_slowly_wins_no_time(serve: Serve, page: Page) -> None:
    page.rows = iter(lambda: PART, b"")
    running = serve(response_timeout=1)
    client = running.connect(LIST)
    eventually(lambda: running.server.connections)
    with pytest.raises(ConnectionResetError):
        sip(client)


def sip(client: socket.socket) -> None:
    while client.recv(4096):
        time.sleep(0.001)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[int]:
    """The port of a server whose ledger is full of large jobs."""
    file, now = f"{tmp_path / 'jobs'}", time.time()
    body = zlib.compress(json.dumps({"noise": [math.sin(n) for n in range(300)]}).encode())
    rows = [Row(f"slurm-{n}-ada", "ada", now - n, body) for n in range(2000)]
    with closing(Store(file, 2000, 1e9)) as store:
        store.write(rows, now)
    chosen = Settings(jobs_state_file=file, jobs_keep=2000)
    ledger = Ledger(chosen)
    content = ExporterContent.__new__(ExporterContent)
    content._ledger = ledger
    listener = bind("127.0.0.1:0")
    port = listener.getsockname()[1]
    server = WebServer(content, listener)
    thread = threading.Thread(target=server.serve)
    ledger.start(Sampler(NvmlDriver, (), chosen, print))
    thread.start()
    yield port
    server.stop()
    thread.join(PATIENCE_SECONDS)
    ledger.stop()


def test_a_hundred_clients_that_do_not_read_hold_little(full: int) -> None:
    result = b"GET /api/v1/jobs?since=%d HTTP/1.1\r\nHost: x\r\n\r\n"
    process = psutil.Process()
    before = process.memory_info().rss
    clients = [silent(full, result % number) for number in range(100)]
    began = [client.recv(12) for client in clients]
    grown = process.memory_info().rss - before
    for client in clients:
        client.close()
    assert began == [b"HTTP/1.1 200"] * 100
    assert grown < 50 * 2**20


TOKENS = st.sampled_from(
    [
        *(b"GET", b"HEAD", b"POST", b" ", b"  ", b"\t", b"\r", b"\n", b"\r\n", b"\0", b"/", b"//"),
        *(
            b"HTTP/1.1",
            b"HTTP/1.0",
            b"HTTP/0.9",
            b"HTTP/2.0",
            b"HTTP/1.",
            b"http/1.1",
            b"HTTP/1.1.1",
        ),
        *(b"/metrics", b"/api/v1/jobs", b"/api/v1/jobs/", b"/api/v1/node", b"/-/ready", b"*", b"%"),
        *(
            b"?since=",
            b"?",
            b"&",
            b"=",
            b"1e400",
            b"nan",
            b"-1",
            b"9" * 400,
            b"%00",
            b"%ff",
            b"\xff",
        ),
        *(b"Host: x", b"Host:", b"Accept: ", b"Accept-Encoding: ", b"Authorization: Basic ", b":"),
        *(b"gzip;q=", b"*;q=1", b",", b";", b"Content-Length: ", b"Transfer-Encoding: chunked"),
        *(
            b"Connection: keep-alive",
            b"Connection: close",
            b"Expect: 100-continue",
            b"http://",
            b"[",
        ),
    ]
)
REQUESTS = st.lists(st.one_of(TOKENS, st.binary(max_size=30)), max_size=40).map(b"".join)
FRAMED = st.builds(
    b"%b %b%b HTTP/1.%b\r\nHost: x\r\n%b\r\n\r\n".__mod__,
    st.tuples(
        st.sampled_from([b"GET", b"HEAD", b"POST", b"get", b"P" * 100]),
        st.sampled_from([b"/", b"/metrics", b"/api/v1/jobs", b"/api/v1/jobs/x", b"/api/v1/stacks"]),
        REQUESTS.map(lambda text: text.replace(b"\n", b"")),
        st.sampled_from([b"0", b"1"]),
        REQUESTS,
    ),
)


def test_no_request_ends_the_server_or_makes_it_fail(serve: Serve, caplog: Log) -> None:
    running = serve(request_timeout=0.2, keep_alive=0.2, response_timeout=5)

    @settings(
        max_examples=300,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(st.one_of(REQUESTS, FRAMED))
    def check(request: bytes) -> None:
        with closing(running.connect()) as client:
            running.clients.remove(client)
            client.sendall(request)
            client.shutdown(socket.SHUT_WR)
            received = drain(client)
        assert received[:9] in (b"", b"HTTP/1.1 ")
        assert received[9:10] in (b"", b"2", b"4") or received[9:12] == b"505"

    check()
    assert warned(caplog) == []
    eventually(lambda: not running.server.connections)
    assert running.get("/metrics").status == 200
