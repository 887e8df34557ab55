"""Clients that request work from the loop over gRPC: `... NAME CLIENTS PAUSE_SECONDS`."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import grpc

from stacks.servers.listen import PORT, announce


def _ask_for_ever(pause: float) -> None:
    get: Any = grpc.insecure_channel(f"127.0.0.1:{PORT}").unary_unary("/stacks/Get")
    while True:
        get(b"", wait_for_ready=True)
        time.sleep(pause)


def main() -> None:
    """Ask until killed."""
    name, clients, pause = sys.argv[1:]
    announce(name, PORT)
    for _ in range(int(clients)):
        threading.Thread(target=_ask_for_ever, args=(float(pause),)).start()


if __name__ == "__main__":
    main()
