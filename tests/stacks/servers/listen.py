"""Where a server listens: it writes its port to the case's folder. An HTTP server."""

from __future__ import annotations

import os
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(os.environ["STACKS_FOLDER"])
PORT = int(os.environ["STACKS_PORT"])
"""Free for the loop, which is not the server."""


def announce(name: str, port: int) -> None:
    """Write it atomically, as others wait for the file."""
    unfinished = FOLDER / f"{name}.port.new"
    unfinished.write_text(f"{port}")
    unfinished.rename(FOLDER / f"{name}.port")


def http_server(work: Callable[[], object], port: int = 0) -> ThreadingHTTPServer:
    """A server that works on each request, and then answers; one thread per connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one write, or each answer waits 40 ms for an ACK

        def do_GET(self) -> None:
            work()
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
