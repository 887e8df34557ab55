"""Answers of other servers: one deadline and one size for each, whatever they send."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.fetch import Server, gather
from support.beside import HOST
from support.certificates import Authority
from support.talking import CHUNKED, LONG, OK, SLOW, Line, dripping, saying, talking
from support.waiting import PATIENCE_SECONDS, until

SHORT_SECONDS = 0.5
MOST = 1000
SENT_AT_MOST = 2**25
"""Bytes allowed for all answers here, with those that the buffers of both sockets hold."""


@contextmanager
def leaving_no_thread() -> Iterator[None]:
    """Check that the client ends although the server goes on."""
    yield
    until(
        lambda: not any("(work)" in thread.name for thread in threading.enumerate()),
        lambda: f"the end of {threading.enumerate()}",
    )


def refused(port: int, seconds: float = SHORT_SECONDS, scheme: str = "http") -> str:
    """Why there is no answer, in one line."""
    with pytest.raises(ExporterError) as raised:
        Server(f"{scheme}://{HOST}:{port}", timeout_seconds=seconds).get("/x", MOST)
    assert "\n" not in f"{raised.value}"
    assert len(f"{raised.value}") < 400
    return f"{raised.value}"


@pytest.mark.parametrize("talk", SLOW.values(), ids=SLOW)
def test_an_answer_that_never_ends_is_given_up(talk: Callable[[Line], None]) -> None:
    with talking(talk) as (port, _), leaving_no_thread():
        assert "no answer within" in refused(port)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_accepts_nothing_is_given_up(scheme: str) -> None:
    with leaving_no_thread(), socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert "no answer within" in refused(port, scheme=scheme)


def test_a_tls_handshake_that_never_ends_is_given_up() -> None:
    # A record of a handshake, 16 KiB long, of which a byte comes now and then.
    with talking(dripping(b"\x16\x03\x03\x40\x00")) as (port, _), leaving_no_thread():
        assert "no answer within" in refused(port, scheme="https")


def test_an_answer_over_tls_that_never_ends_is_given_up(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with talking(SLOW["body"], context) as (port, lines):
        server = Server(f"https://{HOST}:{port}", authority.cert, timeout_seconds=2)
        with pytest.raises(ExporterError, match="no answer within 2 s"):
            server.get("/x", 10**6)
        assert lines[0].sent_bytes


@pytest.mark.parametrize("talk", LONG.values(), ids=LONG)
def test_an_answer_without_end_is_read_up_to_a_bound(talk: Callable[[Line], None]) -> None:
    with talking(talk) as (port, lines):
        why = refused(port, PATIENCE_SECONDS)
        assert "no answer within" not in why
        assert lines[0].sent_bytes < SENT_AT_MOST


@pytest.mark.parametrize(
    ("pieces", "body"),
    [
        ([OK + b"Content-Length: 2\r\n\r\nab"], b"ab"),
        ([OK + b"\r\n", b"a", b"b"], b"ab"),
        ([CHUNKED, b"1\r\na\r\n", b"1;x=y\r\nb\r\n0\r\nA: b\r\n\r\n"], b"ab"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\nab"], b"ab"),
        ([b"HTTP/1.0 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab"], b"ab"),
        ([CHUNKED, *[b"1\r\nx\r\n"] * MOST, b"0\r\n\r\n"], b"x" * MOST),
        ([OK + b"\r\n" + b"x" * MOST], b"x" * MOST),
    ],
)
def test_answers_that_end_are_whole(pieces: list[bytes], body: bytes) -> None:
    with talking(saying(*pieces)) as (port, _), leaving_no_thread():
        assert Server(f"http://{HOST}:{port}").get("/x", MOST) == body


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"hello\r\n\r\n"],
        [b"\x16\x03\x03"],
        [CHUNKED, b"zz\r\n"],
        [CHUNKED, b"-5\r\nabcde"],
        [CHUNKED, b"1\r\na"],
        [CHUNKED, b"1\r\na\r\n"],
        [OK + b"Content-Length: 3\r\n\r\nab"],
        [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n"],
        [b"HTTP/1.1 99999999999 OK\r\n\r\n"],
        [b"HTTP/1.1 500 " + b"\x1b[31m" * 9000 + b"\r\n\r\n"],
        [OK + b"\r\n" + b"x" * (MOST + 1)],
    ],
)
def test_other_answers_are_one_line(pieces: list[bytes]) -> None:
    with talking(saying(*pieces)) as (port, _):
        assert refused(port, PATIENCE_SECONDS).isprintable()


FRAGMENTS = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/9 0"),
        *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: " + b"9" * 5000),
        *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"A: \xff\xfe\r\n"),
        *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b" folded\r\n", b":\r\n"),
        *(b"\r\n", b"\n", b"\r", b"0\r\n", b"-1\r\n", b"5\r\n", b"ffffffffff\r\n", b";x\r\n"),
        *(b"abcde", b"abcde\r\n", b"\0" * 3, b"x" * 70_000),
    ]
)
BYTES = st.lists(st.one_of(FRAGMENTS, st.binary(max_size=8)), max_size=12).map(b"".join)


def test_any_bytes_are_a_response_or_one_line() -> None:
    answer = b""

    def talk(line: Line) -> None:
        line.receive()
        line.send(answer)

    with talking(talk) as (port, _):
        server = Server(f"http://{HOST}:{port}", timeout_seconds=PATIENCE_SECONDS)

        @settings(max_examples=300)
        @given(BYTES, st.booleans())
        def check(some: bytes, headed: bool) -> None:  # noqa: FBT001
            nonlocal answer
            answer = (OK if headed else b"") + some
            why = ""
            try:
                assert len(server.get("/x", MOST)) <= MOST
            except ExporterError as error:
                why = f"{error}"
            assert why.isprintable()
            assert len(why) < 400

        check()


def test_a_password_is_sent_as_the_bytes_that_were_typed() -> None:
    heads: list[bytes] = []

    def talk(line: Line) -> None:
        heads.append(line.receive())
        line.send(OK + b"\r\n")

    with talking(talk) as (port, _):
        Server(f"http://ad\udce4:p%40\xe4@{HOST}:{port}").get("/x", MOST)
    expected = base64.b64encode(b"ad\xe4:p@\xc3\xa4")
    assert b"Authorization: Basic %b\r\n" % expected in heads[0]


def test_a_name_with_a_silent_address_has_another_one() -> None:
    """`localhost` is both ::1 and 127.0.0.1 on most machines; where it is not, one is enough."""
    with talking(saying(OK + b"\r\nab")) as (port, _):
        assert Server(f"http://localhost:{port}").get("/x", MOST) == b"ab"


def test_calls_that_hang_do_not_keep_the_others_from_their_answers() -> None:
    ended = threading.Event()

    def hanging() -> int:
        ended.wait()
        return 0

    calls = {f"{n}": hanging if n < 40 else int for n in range(1000)}
    answers, missing = gather(calls, 5.0)
    assert {*answers} == {f"{n}" for n in range(40, 1000)}
    assert len(missing) == 40
    with leaving_no_thread():
        ended.set()
    assert len(answers) == 960
