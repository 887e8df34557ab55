"""A front end that works on each request, then asks the loop: `... NAME WORK HOW`.

HOW: keep (a connection of each thread's) or anew (a connection per request). WORK: see sidecar.py.
"""

from __future__ import annotations

import http.client
import threading
import time

from stacks.servers.listen import PORT, announce, http_server
from stacks.servers.sidecar import WORKS

_kept = threading.local()


def _ask(*, anew: bool) -> None:
    if anew or not hasattr(_kept, "connection"):
        _kept.connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
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

    def answer() -> None:
        work()
        _ask(anew=how == "anew")

    server = http_server(answer)
    announce(name, server.server_port)
    server.serve_forever()
