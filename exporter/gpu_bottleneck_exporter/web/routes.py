"""Which path shows what, independent of how it is served."""

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
PLAIN = "text/plain; charset=utf-8"

_VARY = {"Vary": "Accept-Encoding"}
_TURN_SECONDS = 10.0
"""To wait for another client's rendering of the same page: as long as Prometheus waits."""
_GZIP_LEVEL = 1
"""On exposition text, a seventh larger than level 9 for a fifth of the CPU time."""
_SMALL_BYTES = 1024
"""Not worth compressing: it fits into one packet."""


class Content(Protocol):
    """The content of the pages; every method may be called from any thread."""

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Render one scrape; called for one client at a time.

        Returning the same bytes object as before saves the server compressing it again.

        Args:
            accept: The request's Accept header, "" if it had none.

        Returns:
            The body and its content type, as negotiated by `accept`.
        """

    def status_page(self) -> bytes:
        """Render the page for people; called for one client at a time.

        The page answers while a scrape hangs, provided that the two share no lock.

        Returns:
            UTF-8 HTML. The page may contain the style and the script of `web.status` and
            `data:` images; the server's Content-Security-Policy blocks everything else.
        """

    def node(self) -> bytes:
        """Render the node document, as JSON; called for one client at a time."""

    def jobs(self, since: float) -> Iterator[bytes]:
        """Parts of a JSON document of jobs that ended after Unix time `since`.

        Each is made when the client has taken those before it; the first for one client at a time.
        """

    def job(self, name: str) -> bytes | None:
        """Render one job, as JSON; None if it is unknown."""

    def look_at_stacks(self, uuid: str) -> str | None:
        """Look for a while which lines of code a GPU waits for; returns why not, if so."""

    def healthy(self) -> tuple[bool, str]:
        """Check liveness; must not block.

        Returns:
            Whether the process is worth keeping, and one plain sentence.
        """

    def ready(self) -> tuple[bool, str]:
        """Check readiness; must not block.

        Returns:
            Whether a scrape would return data now, and one plain sentence.
        """


class Answer(NamedTuple):
    """A response before it is sent."""

    status: int
    content_type: str
    body: bytes | Iterator[bytes]
    """Parts, if it is too large to be kept while a slow client takes it."""
    headers: Mapping[str, str] = {}


Page = Callable[[bool, str, str], Answer]
"""Answers a request by whether it allows gzip, its Accept header and its query."""
_UNIX_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{0,9})?")


class Routes:
    """The table of pages for a content and a path of the metrics; thread-safe."""

    def __init__(self, content: Content, telemetry_path: str) -> None:
        self._pages: Mapping[str, Page] = {
            "/": _in_turn(lambda *_: Answer(200, HTML, content.status_page(), page_headers())),
            NODE_PATH: _in_turn(lambda *_: Answer(200, JSON, content.node(), _VARY)),
            JOBS_PATH: _in_turn(lambda _, query: _jobs(content, query)),
            "/-/healthy": lambda *_: _verdict(content.healthy()),
            "/-/ready": lambda *_: _verdict(content.ready()),
            telemetry_path: _in_turn(lambda accept, _: _metrics(content, accept)),
        }
        self._posted: Mapping[str, Page] = {STACKS_PATH: lambda *asked: _look(content, asked[-1])}
        self._job = _in_turn(lambda *asked: _of_job(content, asked[-1]))

    def answer(
        self, method: str, path: str, accept: str, accept_encoding: str, query: str = ""
    ) -> Answer:
        """The answer to a request; HEAD gets the body, too.

        Args:
            method: The request's method.
            path: Its path, without the query.
            accept: Its Accept header, "" if there was none.
            accept_encoding: Its Accept-Encoding header, "" if there was none.
            query: What follows the question mark.
        """
        page = self._pages.get(path)
        if page is None and path.startswith(f"{JOBS_PATH}/"):
            page, query = self._job, path.removeprefix(f"{JOBS_PATH}/")
        methods: tuple[str, ...] = ("GET", "HEAD")
        if path in self._posted:
            page, methods = self._posted[path], ("POST",)
        if page is None:
            return plain(404, "No such page; see / for a list.")
        if method not in methods:
            told = f"This page accepts {' and '.join(methods)} only."
            return plain(405, told, {"Allow": ", ".join(methods)})
        try:
            return page(allows_gzip(accept_encoding), accept, query)
        except Exception:
            # One page that fails must not affect the others.
            log.exception("page failed", {"path": path})
            return plain(500, "This page failed; see the exporter's log.")


def plain(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A plain-text answer of one sentence."""
    return Answer(status, PLAIN, f"{sentence}\n".encode(), headers or {})


def page_headers() -> Mapping[str, str]:
    """Headers for a page with names of processes and users: none may run as script or leak."""
    # Imported late: the page takes a megabyte, and most exporters are never asked for it.
    from gpu_bottleneck_exporter.web.status.assets import CONTENT_SECURITY_POLICY  # noqa: PLC0415

    policy = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "Referrer-Policy": "no-referrer"}
    return policy | _VARY


def allows_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header allows gzip: named, or covered by "*", above zero."""
    weighed = weights(accept_encoding)
    named = [weighed[coding] for coding in ("gzip", "x-gzip") if coding in weighed]
    return min(named, default=weighed.get("*", 0.0)) > 0


@lru_cache(maxsize=4)
def _gzipped(body: bytes) -> bytes:
    """Two scrapers of one snapshot get the same bytes object, which is compressed once.

    Four are kept, for the metrics, the page, the node document and the jobs.
    """
    return gzip.compress(body, _GZIP_LEVEL, mtime=0)


def _metrics(content: Content, accept: str) -> Answer:
    body, content_type = content.metrics(accept)
    return Answer(200, content_type, body, {"Vary": "Accept, Accept-Encoding"})


def _jobs(content: Content, query: str) -> Answer:
    since = parse_qs(query).get("since", ["0"])[-1]
    if not _UNIX_TIME.fullmatch(since):
        return plain(400, "since must be Unix time in seconds.")
    return Answer(200, JSON, content.jobs(float(since)), _VARY)


def _look(content: Content, query: str) -> Answer:
    refused = content.look_at_stacks(parse_qs(query).get("gpu", [""])[-1])
    return plain(409, refused) if refused else plain(202, "Looking.")


def _of_job(content: Content, name: str) -> Answer:
    found = content.job(name)
    return Answer(200, JSON, found, _VARY) if found else plain(404, "No such job is known.")


def _verdict(verdict: tuple[bool, str]) -> Answer:
    good, sentence = verdict
    return plain(200 if good else 503, sentence)


def _in_turn(page: Callable[[str, str], Answer]) -> Page:
    """`page`, made and compressed for one client at a time: the others wait, but not for ever.

    Of a body in parts this is the first one, and none is compressed.
    """
    turn = threading.Lock()

    def answer(packs: bool, *request: str) -> Answer:  # noqa: FBT001 - as `Page`
        if not turn.acquire(timeout=_TURN_SECONDS):
            return plain(503, f"This page has not been ready for {_TURN_SECONDS:g} s.")
        try:
            made = page(*request)
            if not isinstance(made.body, bytes):
                return made._replace(body=chain([next(made.body)], made.body))
            if len(made.body) < _SMALL_BYTES or not packs:
                return made
            headers = {**made.headers, "Content-Encoding": "gzip"}
            return made._replace(body=_gzipped(made.body), headers=headers)
        finally:
            turn.release()

    return answer
