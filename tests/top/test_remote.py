"""Other people's servers, real ones, and all they may answer."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import MAX_DOCUMENT_BYTES, NODE_PATH, document
from gpu_bottleneck_exporter.top.source import Feed, Remote
from support.beside import Reply, Request, answering
from support.certificates import Authority
from support.daemon import free_port
from support.nodes import node
from support.states import mixed_state
from support.talking import OK, SLOW, Line, saying, talking
from support.waiting import until

GOOD = dumps(document(replace(node(mixed_state()), version="9"))).encode()
PAIR = base64.b64encode(b"alice:p:w@d").decode()
PAGES = {
    "": Reply(GOOD),
    "/proxied": Reply(GOOD),
    "/html": Reply(b"<!DOCTYPE html><title>x</title>{"),
    "/other": Reply(b'{"gpus": 4}'),
    "/metrics": Reply(b"node_load1 1\n"),
    "/away": Reply(status=302, headers={"Location": NODE_PATH}),
    "/long": Reply(b"[" + MAX_DOCUMENT_BYTES * b" " + b"]"),
}


def answers(request: Request) -> Reply:
    prefix = request.path.removesuffix(NODE_PATH)
    if prefix == "/secret":
        return Reply(GOOD, 200 if request.headers["Authorization"] == f"Basic {PAIR}" else 401)
    return PAGES.get(prefix, Reply(status=404))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with answering(answers) as result:
        yield result


@pytest.mark.parametrize(
    "path", ["", "/", "/metrics", NODE_PATH, f"{NODE_PATH}/", "/proxied", "/proxied/metrics"]
)
def test_the_path_may_be_left_out_or_that_of_the_metrics(port: int, path: str) -> None:
    assert Remote(f"http://127.0.0.1:{port}{path}").read().version == "9"


def test_all_that_is_known_there_is_known_here(port: int) -> None:
    assert Remote(f"http://127.0.0.1:{port}").read().gpus == node(mixed_state()).gpus


def test_a_password_in_the_address_is_sent_and_not_shown(port: int) -> None:
    source = Remote(f"http://alice:p%3Aw%40d@127.0.0.1:{port}/secret")
    assert source.read().version == "9"
    assert source.name == f"127.0.0.1:{port}"
    with pytest.raises(ExporterError, match=r"secret/api/v1/node answers 401") as raised:
        Remote(f"http://alice:wrong@127.0.0.1:{port}/secret").read()
    assert "wrong" not in f"{raised.value}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("{}/html", "serves no node of this exporter"),
        ("{}/other", "serves no node of this exporter"),
        ("{}/away", "answers 302"),
        ("{}/missing", "answers 404 Not Found"),
        ("{}/long", "answers with more than 16 MiB"),
        *((url, "cannot read") for url in ("http://a..b", "{}/größe", "http://x/a b")),
    ],
)
def test_answers_that_do_not_help(port: int, url: str, said: str) -> None:
    with pytest.raises(ExporterError, match=said) as raised:
        Remote(url.format(f"http://127.0.0.1:{port}")).read()
    assert "\n" not in f"{raised.value}"


def test_no_server_listens() -> None:
    with pytest.raises(ExporterError, match="connection refused"):
        Remote(f"http://127.0.0.1:{free_port()}").read()


def test_tls_by_an_authority_of_ones_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    with answering(answers, context) as port:
        assert Remote(f"https://127.0.0.1:{port}", authority.cert).read().version == "9"
        with pytest.raises(ExporterError, match=r"certificate .*\(see --ca-file\)"):
            Remote(f"https://127.0.0.1:{port}").read()


def test_a_file_without_certificates(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("nothing\n")
    with pytest.raises(ExporterError, match="--ca-file: cannot use"):
        Remote("https://127.0.0.1", file)


def test_a_feed_keeps_the_last_view_for_a_while_and_reports_the_error(port: int) -> None:
    class Gone(Remote):
        broken = False

        def read(self) -> Node:
            if self.broken:
                raise ExporterError("it is gone")
            return super().read()

    source = Gone(f"http://127.0.0.1:{port}")
    feed = Feed(source, 1)

    def read() -> tuple[bool, str | None]:
        feed.read()
        return feed.node is not None, feed.error

    assert read() == (True, None)
    source.broken = True
    assert read() == (True, "it is gone")
    since = feed.error_since
    feed._read_at -= 60
    assert read() == (False, "it is gone")
    assert feed.error_since == since
    source.broken = False
    assert read() == (True, None)


def test_figures_are_not_shown_once_the_peer_sends_a_byte_now_and_then() -> None:
    good = OK + b"\r\n" + GOOD

    def talk(line: Line) -> None:
        (saying(good) if len(lines) == 1 else SLOW["body"])(line)

    with talking(talk) as (port, lines):
        source = Remote(f"http://127.0.0.1:{port}")
        feed = Feed(source, 0.01)
        feed.read()
        assert feed.node

        def gone() -> bool:
            feed.read()
            return feed.node is None

        until(gone, "the end of old figures")
        assert feed.error == f"cannot read http://{source.name}{NODE_PATH}: no answer within 5 s"


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "NaN", '"\\ud800"', "[" * 100_000])
def test_a_number_that_is_none_is_one_line(number: str) -> None:
    text = b'{"time_seconds": 0, "window_seconds": %b, "version": "9"}' % number.encode()
    with (
        answering(lambda _: Reply(text)) as port,
        pytest.raises(ExporterError, match="serves no node of this exporter"),
    ):
        Remote(f"http://127.0.0.1:{port}").read()
