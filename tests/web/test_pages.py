from __future__ import annotations

import gzip

import pytest

from support.daemon import drain

from .conftest import OPENMETRICS, TEXT, Page, Serve, warned

PATHS = ["/", "/metrics", "/api/v1/node", "/-/healthy", "/-/ready"]
PLAIN = "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "content", "content_type"),
    [
        ("/", "page", "text/html; charset=utf-8"),
        ("/api/v1/node", "document", "application/json"),
        ("/metrics?ignored=1", "body", TEXT),
    ],
)
def test_pages(serve: Serve, page: Page, path: str, content: str, content_type: str) -> None:
    reply = serve().get(path)
    assert (reply.status, reply.body) == (200, getattr(page, content))
    assert reply.headers["content-type"] == content_type
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "server" not in reply.headers
    policy = reply.headers.get("content-security-policy", "")
    for part in ("default-src 'none'", "frame-ancestors 'none'"):
        assert (part in policy) is (path == "/")


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", OPENMETRICS),
    ],
)
def test_metrics_pass_the_accept_header_and_the_content_type_through(
    serve: Serve, page: Page, accept: str | None, content_type: str
) -> None:
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": "10"} | ({"Accept": accept} if accept else {})
    reply = serve().get("/metrics", headers=headers)
    assert reply.headers["content-type"] == content_type
    assert reply.headers["vary"] == "Accept, Accept-Encoding"
    assert page.accepted == [accept or ""]


def test_repeated_accept_headers_count_as_one_list(serve: Serve, page: Page) -> None:
    client = serve().connect(
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
        b"Accept: a/b\r\nAccept: c/d\r\nConnection: close\r\n\r\n"
    )
    assert client.recv(12) == b"HTTP/1.1 200"
    assert page.accepted == ["a/b, c/d"]


@pytest.mark.parametrize(
    ("encodings", "packed"),
    [("gzip", True), ("*", True), ("br, gzip;q=0.3", True), ("gzip;q=0", False), ("br", False)],
)
def test_gzip_is_negotiated(serve: Serve, page: Page, encodings: str, packed: bool) -> None:  # noqa: FBT001 - a parameter of the case
    reply = serve().get("/metrics", headers={"Accept-Encoding": encodings})
    assert reply.headers.get("content-encoding") == ("gzip" if packed else None)
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert (gzip.decompress(reply.body) if packed else reply.body) == page.body
    assert reply.headers["vary"] == "Accept, Accept-Encoding"


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready"])
@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 503)])
def test_health(serve: Serve, page: Page, path: str, good: bool, status: int) -> None:  # noqa: FBT001 - a parameter of the case
    page.alive = page.fit = (good, "The driver says so.")
    reply = serve().get(path)
    assert (reply.status, reply.body) == (status, b"The driver says so.\n")
    assert reply.headers["content-type"] == PLAIN


@pytest.mark.parametrize("path", [*PATHS, "/missing"])
def test_head_has_the_headers_of_get_and_no_body(serve: Serve, path: str) -> None:
    running = serve()
    got, head = running.get(path), running.get(path, "HEAD")
    assert head.body == b""
    assert (head.status, head.headers["content-length"]) == (got.status, str(len(got.body)))
    assert head.headers.keys() == got.headers.keys()


@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_what_fits_into_a_packet_is_not_compressed(serve: Serve, page: Page, path: str) -> None:
    page.body, page.page = b"up 1\n", b"up"
    reply = serve().get(path, headers={"Accept-Encoding": "gzip"})
    assert reply.headers.get("content-encoding") is None


def test_the_connection_is_in_order_after_a_head(serve: Serve) -> None:
    client = serve().connect(
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET /-/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    received = drain(client)
    assert received.count(b"HTTP/1.1 200") == 2
    assert received.endswith(b"\r\n\r\nThere is data.\n")


@pytest.mark.parametrize("path", ["/missing", "/metrics/", "/-/", "/%00", "/../etc"])
def test_404(serve: Serve, path: str) -> None:
    reply = serve().get(path)
    assert (reply.status, reply.headers["content-type"]) == (404, PLAIN)
    assert path.encode() not in reply.body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize("path", PATHS)
def test_405(serve: Serve, method: str, path: str) -> None:
    reply = serve().get(path, method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/node", "/-/healthy"])
def test_a_failing_page_says_so_and_the_server_goes_on(
    serve: Serve, page: Page, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    running = serve()
    page.failure = ZeroDivisionError("the secret cause")
    reply = running.get(path)
    assert (reply.status, reply.headers["content-type"]) == (500, PLAIN)
    assert b"secret" not in reply.body
    assert warned(caplog) == [f"The page {path} failed."]
    assert "ZeroDivisionError: the secret cause" in caplog.text
    page.failure = None
    assert running.get(path).status == 200
