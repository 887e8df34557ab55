"""Work in a thread next to a test, until the end of its block."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


@contextmanager
def repeated(work: Callable[[], object], pause_seconds: float = 0.0) -> Iterator[None]:
    """Repeat `work`, with a pause before each time; raises what it raises."""
    ending = threading.Event()

    def go() -> None:
        while not ending.wait(pause_seconds):
            work()

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(go)
        try:
            yield
        finally:
            ending.set()
        done.result()


@dataclass(frozen=True)
class Request:
    """A request of an HTTP client."""

    path: str
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Reply:
    """The reply to it."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def answering(
    answer: Callable[[Request], Reply], context: ssl.SSLContext | None = None
) -> Iterator[int]:
    """An HTTP server that replies what `answer` returns, with TLS if given; yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = answer(Request(self.path, self.headers, body))
            self.send_response(reply.status)
            for name, value in {"Content-Length": len(reply.body), **reply.headers}.items():
                self.send_header(name, f"{value}")
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
