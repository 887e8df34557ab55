"""A front end that works on each request, then asks the loop: `... NAME WORK HOW`.

HOW: keep (a connection of each thread's) or anew (a connection per request). WORK: see sidecar.py.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stacks.loops.common import Load
from stacks.servers.listen import PORT, announce
from stacks.servers.sidecar import WORKS

_kept = threading.local()


class Handler(BaseHTTPRequestHandler):
    """One client."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one write
    work: Load
    anew: bool

    def do_GET(self) -> None:
        """Work, and ask the loop."""
        type(self).work()
        self._ask()
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")

    def _ask(self) -> None:
        if self.anew or not hasattr(_kept, "connection"):
            _kept.connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
        try:
            _kept.connection.request("GET", "/work")
            _kept.connection.getresponse().read()
        except OSError:  # it is not up yet
            _kept.connection.close()
            time.sleep(0.1)
        if self.anew:
            _kept.connection.close()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until killed."""
    name, work, how = sys.argv[1:]
    Handler.work, Handler.anew = staticmethod(WORKS[work]()), how == "anew"
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    announce(name, server.server_address[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
