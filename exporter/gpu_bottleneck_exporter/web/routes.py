"""The pages by path, independent of the server."""

from __future__ import annotations

import gzip
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

from gpu_bottleneck_exporter.exposition.accept import weights
from gpu_bottleneck_exporter.nodeview.wire import JOBS_PATH, NODE_PATH, STACKS_PATH

log = logging.getLogger(__name__)

HTML = "text/html; charset=utf-8"
JSON = "application/json"

_VARY_BY_ENCODING = {"Vary": "Accept-Encoding"}
_RENDER_TIMEOUT_SECONDS = 10.0
"""Time limit on another client's rendering of the page; Prometheus' timeout."""
_MIN_GZIP_BYTES = 1024
"""Smallest body to compress: more than a packet."""


class Content(Protocol):
    """The content of the pages. Thread-safe; one client at a time per page."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Render a scrape: body and content type for an Accept header, "" if absent.

        An unchanged bytes object is not compressed again.
        """

    def status_page(self) -> bytes:
        """Render the status page as UTF-8 HTML; must not share a lock with `metrics`.

        The Content-Security-Policy allows the style and script of `web.status` and `data:` images.
        """

    def node(self) -> bytes:
        """Render the node document as JSON."""

    def jobs(self, since: float) -> Iterator[bytes]:
        """Parts of the JSON of jobs that ended after Unix time `since`.

        Each is rendered once the client has received the previous one.
        """

    def job(self, name: str) -> bytes | None:
        """Render a job as JSON; None if unknown."""

    def sample_stacks(self, uuid: str) -> str | None:
        """Start to sample the stacks of a GPU's processes; returns the reason for a refusal."""

    def healthy(self) -> tuple[bool, str]:
        """Liveness and a sentence; must not block."""

    def ready(self) -> tuple[bool, str]:
        """Whether a scrape would return data, and a sentence; must not block."""


class Answer(NamedTuple):
    """A response."""

    status: int
    content_type: str
    body: bytes | Iterator[bytes]
    """Parts if the whole is too large to buffer for a slow client."""
    headers: Mapping[str, str] = {}


Page = Callable[[bool, str, str], Answer]
"""Responds to a request: whether it accepts gzip, its Accept header and its query."""


class Routes:
    """The pages by path. Thread-safe."""

    def __init__(self, content: Content, telemetry_path: str) -> None:
        self._pages: Mapping[str, Page] = {
            "/": _serialized(lambda *_: Answer(200, HTML, content.status_page(), page_headers())),
            NODE_PATH: _serialized(lambda *_: Answer(200, JSON, content.node(), _VARY_BY_ENCODING)),
            JOBS_PATH: _serialized(lambda _, query: _jobs(content, query)),
            "/-/healthy": lambda *_: _probe(content.healthy()),
            "/-/ready": lambda *_: _probe(content.ready()),
            telemetry_path: _serialized(lambda accept, _: _metrics(content, accept)),
        }
        self._post_pages: Mapping[str, Page] = {
            STACKS_PATH: lambda *request: _sample_stacks(content, request[-1])
        }
        self._job = _serialized(lambda *request: _job(content, request[-1]))

    def answer(
        self, method: str, path: str, accept: str, accept_encoding: str, query: str = ""
    ) -> Answer:
        """The response to a request, with the body also for HEAD.

        Absent headers are "". `path` is without the query, and `query` without the question mark.
        """
        page = self._pages.get(path)
        if page is None and path.startswith(f"{JOBS_PATH}/"):
            page, query = self._job, path.removeprefix(f"{JOBS_PATH}/")
        methods: tuple[str, ...] = ("GET", "HEAD")
        if path in self._post_pages:
            page, methods = self._post_pages[path], ("POST",)
        if page is None:
            return plain(404, "No such page; see / for a list.")
        if method not in methods:
            sentence = f"This page accepts {' and '.join(methods)} only."
            return plain(405, sentence, {"Allow": ", ".join(methods)})
        try:
            return page(allows_gzip(accept_encoding), accept, query)
        except Exception:
            log.exception("page failed", {"path": path})
            return plain(500, "This page failed; see the exporter's log.")


def plain(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A plain-text response of one sentence."""
    text = "text/plain; charset=utf-8"
    return Answer(status, text, f"{sentence}\n".encode(), headers or {})


def page_headers() -> Mapping[str, str]:
    """Headers that keep names from running as script or leaking."""
    # A megabyte that most exporters never need.
    from gpu_bottleneck_exporter.web.status.assets import CONTENT_SECURITY_POLICY  # noqa: PLC0415

    policy = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Referrer-Policy": "no-referrer"}
    return policy | _VARY_BY_ENCODING


def allows_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header gives gzip, or else "*", a weight above zero."""
    weight = weights(accept_encoding)
    gzip_weights = [weight[coding] for coding in ("gzip", "x-gzip") if coding in weight]
    return min(gzip_weights, default=weight.get("*", 0.0)) > 0


@lru_cache(maxsize=4)
def _gzipped(body: bytes) -> bytes:
    """Compress the body; cached where it is often the same."""
    # Level 1 takes a fifth of level 9's CPU time, for a seventh more bytes.
    return gzip.compress(body, 1, mtime=0)


def _metrics(content: Content, accept: str) -> Answer:
    body, content_type = content.metrics(accept)
    return Answer(200, content_type, body, {"Vary": "Accept, Accept-Encoding"})


def _jobs(content: Content, query: str) -> Answer:
    since = parse_qs(query).get("since", ["0"])[-1]
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{0,9})?", since):
        return plain(400, "since must be Unix time in seconds.")
    return Answer(200, JSON, content.jobs(float(since)), _VARY_BY_ENCODING)


def _sample_stacks(content: Content, query: str) -> Answer:
    refusal = content.sample_stacks(parse_qs(query).get("gpu", [""])[-1])
    return plain(409, refusal) if refusal else plain(202, "Sampling.")


def _job(content: Content, name: str) -> Answer:
    body = content.job(name)
    if not body:
        return plain(404, "No such job is known.")
    return Answer(200, JSON, body, _VARY_BY_ENCODING)


def _probe(result: tuple[bool, str]) -> Answer:
    healthy, sentence = result
    return plain(200 if healthy else 503, sentence)


def _serialized(page: Callable[[str, str], Answer]) -> Page:
    """`page` for one client at a time, compressed; of an iterator, the first part."""
    lock = threading.Lock()

    def answer(accepts_gzip: bool, *request: str) -> Answer:  # noqa: FBT001 - as `Page`
        if not lock.acquire(timeout=_RENDER_TIMEOUT_SECONDS):
            return plain(503, f"This page has not been ready for {_RENDER_TIMEOUT_SECONDS:g} s.")
        try:
            response = page(*request)
            if not isinstance(response.body, bytes):
                return response._replace(body=chain([next(response.body)], response.body))
            if len(response.body) < _MIN_GZIP_BYTES or not accepts_gzip:
                return response
            headers = {**response.headers, "Content-Encoding": "gzip"}
            return response._replace(body=_gzipped(response.body), headers=headers)
        finally:
            lock.release()

    return answer
