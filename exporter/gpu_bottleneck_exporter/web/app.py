"""The pages as a plain ASGI application; independent of sockets and of uvicorn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.nodeview.wire import NODE_PATH
from gpu_bottleneck_exporter.web.answer import (
    Answer,
    Receive,
    Scope,
    Send,
    header,
    in_thread,
    plain,
    respond,
)
from gpu_bottleneck_exporter.web.encoding import allows_gzip, gzipped

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.web.content import Content

logger = logging.getLogger(__name__)

DEFAULT_TELEMETRY_PATH = "/metrics"
STATUS_PATH = "/"
HEALTHY_PATH = "/-/healthy"
READY_PATH = "/-/ready"

HTML = "text/html; charset=utf-8"
JSON = "application/json"
ALLOWED_METHODS = ("GET", "HEAD")


Route = Callable[[Scope, Receive], Awaitable[Answer]]


class App:
    """The ASGI application; `close` ends its threads.

    Scrapes run in one thread and the status page in another: concurrent scrapes queue instead
    of piling up threads, and the event loop stays free for the health pages. A request leaves
    the queue if its client disconnects.
    """

    def __init__(self, content: Content, telemetry_path: str) -> None:
        self._content = content
        self._scrapes = ThreadPoolExecutor(1, "web-scrape")
        self._pages = ThreadPoolExecutor(1, "web-page")
        self._routes: dict[str, Route] = {
            STATUS_PATH: self._status,
            NODE_PATH: self._node,
            HEALTHY_PATH: self._healthy,
            READY_PATH: self._ready,
            telemetry_path: self._metrics,
        }

    def close(self) -> None:
        """End the threads, without waiting for a call into the content that is in progress."""
        for executor in (self._scrapes, self._pages):
            executor.shutdown(wait=False, cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answer = await self._answer(scope, receive)
        await respond(scope, send, answer)

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        path = scope["path"]
        route = self._routes.get(path)
        if route is None:
            return plain(404, "No such page; see / for a list.")
        if scope["method"] not in ALLOWED_METHODS:
            allowed = ", ".join(ALLOWED_METHODS)
            return plain(405, f"This page accepts {allowed} only.", (b"allow", allowed.encode()))
        try:
            return await route(scope, receive)
        except asyncio.CancelledError:
            # The client has disconnected or the server is stopping. In the second case, an
            # answer beats a connection that just ends.
            return plain(503, "The exporter is stopping.")
        except Exception:
            # One page that fails must not affect the others.
            logger.exception("The page %s failed.", path)
            return plain(500, "This page failed; see the exporter's log.")

    async def _metrics(self, scope: Scope, receive: Receive) -> Answer:
        accept = header(scope, b"accept")
        packed = allows_gzip(header(scope, b"accept-encoding"))

        def render() -> Answer:
            body, content_type = self._content.metrics(accept)
            headers: tuple[tuple[bytes, bytes], ...] = ((b"vary", b"Accept, Accept-Encoding"),)
            if packed:
                body = gzipped(body)
                headers += ((b"content-encoding", b"gzip"),)
            return Answer(200, content_type, body, headers)

        return await in_thread(self._scrapes, receive, render)

    async def _status(self, _scope: Scope, receive: Receive) -> Answer:
        page = await in_thread(self._pages, receive, self._content.status_page)
        return Answer(200, HTML, page, page_headers())

    async def _node(self, _scope: Scope, receive: Receive) -> Answer:
        return Answer(200, JSON, await in_thread(self._pages, receive, self._content.node))

    async def _healthy(self, _scope: Scope, _receive: Receive) -> Answer:
        return _verdict(self._content.healthy())

    async def _ready(self, _scope: Scope, _receive: Receive) -> Answer:
        return _verdict(self._content.ready())


def make_app(content: Content, telemetry_path: str = DEFAULT_TELEMETRY_PATH) -> App:
    """Make the application.

    Args:
        content: What the pages show.
        telemetry_path: The path of the metrics. "/" is allowed and replaces the status page.

    Returns:
        The application; call `close` after the last request.

    Raises:
        ExporterError: If the path has no leading slash, contains characters that a request
            line cannot, or is that of another page.
    """
    printable = telemetry_path.isascii() and telemetry_path.isprintable()
    if not telemetry_path.startswith("/") or not printable or set(telemetry_path) & set(" ?#%"):
        raise ExporterError(
            f"The telemetry path {telemetry_path!r} must begin with / and be plain ASCII without "
            "spaces, ?, # and %."
        )
    if telemetry_path in (HEALTHY_PATH, READY_PATH, NODE_PATH):
        raise ExporterError(f"The telemetry path cannot be {telemetry_path}: that is another page.")
    return App(content, telemetry_path)


def page_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Headers for a page with names of processes and users: none may run as script or leak."""
    # Imported late: the page takes a megabyte, and most exporters are never asked for it.
    from gpu_bottleneck_exporter.web.status.assets import CONTENT_SECURITY_POLICY  # noqa: PLC0415

    policy = CONTENT_SECURITY_POLICY.encode()
    return ((b"content-security-policy", policy), (b"referrer-policy", b"no-referrer"))


def _verdict(verdict: tuple[bool, str]) -> Answer:
    good, sentence = verdict
    return plain(200 if good else 503, sentence)
