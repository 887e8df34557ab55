"""A server that keeps sending 64 KiB without requests: `... NAME MILLISECONDS`."""

from __future__ import annotations

import contextlib
import socketserver
import sys
import time

from stacks.servers.lines import REPLY, Server
from stacks.servers.listen import announce


class Handler(socketserver.BaseRequestHandler):
    """One connection."""

    def handle(self) -> None:
        """Send until the client disconnects."""
        with contextlib.suppress(OSError):
            while True:
                self.request.sendall(bytes(REPLY))
                time.sleep(float(sys.argv[2]) / 1000)


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Handler) as server:
        announce(sys.argv[1], server.server_address[1])
        server.serve_forever()
