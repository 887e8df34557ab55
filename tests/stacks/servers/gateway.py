"""A front end that works on each request, then asks the loop: `... NAME WORK HOW`.

HOW: keep (a connection of each thread's) or anew (a connection per request). WORK: see sidecar.py.
"""

from __future__ import annotations

import threading
import time
from http.client import HTTPConnection

from stacks.loops.common import PORT
from stacks.servers import http
from stacks.servers.listen import announce
from stacks.servers.sidecar import WORKS

_kept = threading.local()


def _ask(*, anew: bool) -> None:
    if anew or not hasattr(_kept, "connection"):
        _kept.connection = HTTPConnection("127.0.0.1", PORT, timeout=30)
    try:
        _kept.connection.request("GET", "/work")
        _kept.connection.getresponse().read()
    except OSError:  # it is not up yet
        _kept.connection.close()
        time.sleep(0.1)
    if anew:
        _kept.connection.close()


def main(name: str, kind: str, how: str) -> None:
    """Serve until killed."""
    work = WORKS[kind]()

    class Handler(http.Handler):
        def body(self) -> bytes:
            work()
            _ask(anew=how == "anew")
            return b"done"

    server = http.Server(("127.0.0.1", 0), Handler)
    announce(name, server.server_port)
    server.serve_forever()
