"""Clients that request work: `... NAME KIND CLIENTS PAUSE_SECONDS`.

Each asks, waits for the answer, pauses, and asks again. KIND: http or grpc asks the loop, gateway
the case's gateway.
"""

# ruff: noqa: PLC0415 - not all have grpc

from __future__ import annotations

import http.client
import threading
import time
from typing import Any

from stacks.loops.common import FOLDER, PORT
from stacks.servers.listen import announce

_PATIENCE_SECONDS = 60.0


def ask_http(port: int, pause: float) -> None:
    """Ask forever."""
    began = time.monotonic()
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            while True:
                connection.request("GET", "/work")
                connection.getresponse().read()
                time.sleep(pause)
        except OSError:
            if time.monotonic() > began + _PATIENCE_SECONDS:
                raise
            time.sleep(0.1)  # the server is not up yet
        except http.client.HTTPException:
            time.sleep(0.001)  # the server closes connections after each answer
        finally:
            connection.close()


def ask_grpc(port: int, pause: float) -> None:
    """Ask forever."""
    import grpc

    get: Any = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/stacks/Get")
    while True:
        get(b"", wait_for_ready=True)
        time.sleep(pause)


def main(name: str, kind: str, clients: str, pause: str) -> None:
    """Ask until killed."""
    port = PORT
    if kind == "gateway":
        (found,) = FOLDER.glob("gateway-*.port")
        port = int(found.read_text())
    announce(name, port)
    ask = ask_grpc if kind == "grpc" else ask_http
    for _ in range(int(clients)):
        threading.Thread(target=ask, args=(port, float(pause))).start()
