from __future__ import annotations

import gzip

import pytest

from support.daemon import drain
from support.rows import rows

from .conftest import OPENMETRICS, TEXT, Log, Page, Serve, warned

PLAIN, HTML, JSON = "text/plain; charset=utf-8", "text/html; charset=utf-8", "application/json"
PAGES = {
    "/": ("page", HTML),
    "/metrics": ("body", TEXT),
    "/metrics?ignored=1": ("body", TEXT),
    "/api/v1/node": ("document", JSON),
    "/api/v1/jobs": ("all_jobs", JSON),
}
HEALTH = ("/-/healthy", "/-/ready")


@pytest.mark.parametrize("path", PAGES)
def test_pages(serve: Serve, page: Page, path: str) -> None:
    content, content_type = PAGES[path]
    reply = serve().get(path)
    assert (reply.status, reply.body) == (200, getattr(page, content))
    assert reply.headers["content-type"] == content_type
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "server" not in reply.headers
    policy = reply.headers.get("content-security-policy", "")
    for part in ("default-src 'none'", "frame-ancestors 'none'"):
        assert (part in policy) is (path == "/")
    assert (reply.headers.get("referrer-policy") == "no-referrer") is (path == "/")


OPEN = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
GZIP = {"gzip": True, "*": True, "br, gzip;q=0.3": True, "gzip;q=0": False, "br": False}


@rows(
    "headers, content_type, packed",
    {
        "nothing": ({}, TEXT, False),
        "text": ({"Accept": "text/plain"}, TEXT, False),
        "OpenMetrics": ({"Accept": OPEN}, OPENMETRICS, False),
        **{text: ({"Accept-Encoding": text}, TEXT, packed) for text, packed in GZIP.items()},
    },
)
def test_type_and_encoding_of_metrics_are_negotiated(
    serve: Serve, page: Page, headers: dict[str, str], content_type: str, *, packed: bool
) -> None:
    fields = {"X-Prometheus-Scrape-Timeout-Seconds": "10", **headers}
    reply = serve().get("/metrics", headers=fields)
    assert page.accepted == [headers.get("Accept", "")]
    assert reply.headers["content-type"] == content_type
    assert reply.headers.get("content-encoding") == ("gzip" if packed else None)
    assert reply.headers["vary"] == "Accept, Accept-Encoding"
    assert int(reply.headers["content-length"]) == len(reply.body)
    assert (gzip.decompress(reply.body) if packed else reply.body) == page.body


def test_repeated_accept_headers_count_as_one_list(serve: Serve, page: Page) -> None:
    client = serve().connect(
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
        b"Accept: a/b\r\nAccept: c/d\r\nConnection: close\r\n\r\n"
    )
    assert client.recv(12) == b"HTTP/1.1 200"
    assert page.accepted == ["a/b, c/d"]


@pytest.mark.parametrize(("good", "status"), [(True, 200), (False, 503)])
def test_health(serve: Serve, page: Page, *, good: bool, status: int) -> None:
    page.alive, page.fit = (good, "It lives."), (good, "It has data.")
    running = serve()
    for path, result in zip(HEALTH, (b"It lives.\n", b"It has data.\n"), strict=True):
        reply = running.get(path)
        assert (reply.status, reply.body) == (status, result)
        assert reply.headers["content-type"] == PLAIN


def test_head_has_the_headers_of_get_and_no_body(serve: Serve) -> None:
    running = serve()
    for path in (*PAGES, *HEALTH, "/missing"):
        got, head = running.get(path), running.get(path, "HEAD")
        assert head.body == b"", path
        parts = path == "/api/v1/jobs"
        length = None if parts else str(len(got.body))
        assert (head.status, head.headers.get("content-length")) == (got.status, length)
        assert head.headers.get("transfer-encoding") == ("chunked" if parts else None)
        assert head.headers.keys() == got.headers.keys()


def test_a_body_of_one_packet_is_not_compressed(serve: Serve, page: Page) -> None:
    page.body, page.page = b"up 1\n", b"up"
    running = serve()
    for path in ("/", "/metrics"):
        reply = running.get(path, headers={"Accept-Encoding": "gzip"})
        assert reply.headers.get("content-encoding") is None, path


def test_the_connection_is_in_order_after_a_head(serve: Serve) -> None:
    client = serve().connect(
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
        b"GET /-/ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    received = drain(client)
    assert received.count(b"HTTP/1.1 200") == 2
    assert received.endswith(b"\r\n\r\nThere is data.\n")


def test_paths_that_do_not_exist(serve: Serve) -> None:
    running = serve()
    for path in ("/missing", "/metrics/", "/-/", "/%00", "/../etc"):
        reply = running.get(path)
        assert (reply.status, reply.headers["content-type"]) == (404, PLAIN), path
        assert path.encode() not in reply.body
    for path in (*PAGES, *HEALTH):
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
            reply = running.get(path, method)
            assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD"), (path, method)


LOOKS = {
    ("POST", "gpu=GPU-a"): (202, b"Sampling.\n"),
    ("POST", "gpu=GPU-b"): (409, b"There is no such GPU.\n"),
    ("POST", ""): (409, b"There is no such GPU.\n"),
    ("GET", "gpu=GPU-a"): (405, b"This page accepts POST only.\n"),
    ("HEAD", "gpu=GPU-a"): (405, b""),
}


@pytest.mark.parametrize(("method", "query"), LOOKS)
def test_sampling_of_stacks_is_requested_by_post_alone(
    serve: Serve, page: Page, method: str, query: str
) -> None:
    reply = serve().get(f"/api/v1/stacks?{query}", method)
    assert (reply.status, reply.body) == LOOKS[method, query]
    assert (reply.status == 202) == (page.looked_at == ["GPU-a"])
    assert reply.headers.get("allow", "POST") == "POST"


JOBS = {
    "/api/v1/jobs?since=1700000000.5": (200, b'{"since": 1.7e+09}\n'),
    "/api/v1/jobs?since=yesterday": (400, b"since must be Unix time in seconds.\n"),
    "/api/v1/jobs?since=nan": (400, b"since must be Unix time in seconds.\n"),
    "/api/v1/jobs/slurm-7": (200, b'{"job": "slurm-7"}\n'),
    "/api/v1/jobs/slurm-8": (404, b"No such job is known.\n"),
    "/api/v1/jobs/": (404, b"No such job is known.\n"),
}


@pytest.mark.parametrize("path", JOBS)
def test_jobs_are_asked_for_by_time_or_name(serve: Serve, path: str) -> None:
    reply = serve().get(path)
    assert (reply.status, reply.body) == JOBS[path]


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/node", "/api/v1/jobs", "/-/healthy"])
def test_a_failing_page_reports_so(serve: Serve, page: Page, path: str, caplog: Log) -> None:
    running = serve()
    page.failure = ZeroDivisionError("the secret cause")
    reply = running.get(path)
    assert (reply.status, reply.headers["content-type"]) == (500, PLAIN)
    assert b"secret" not in reply.body
    assert warned(caplog) == [f"page failed path={path}"]
    assert "ZeroDivisionError: the secret cause" in caplog.text
    page.failure = None
    assert running.get(path).status == 200
