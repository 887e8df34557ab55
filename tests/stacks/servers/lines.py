"""A server that answers each request of 16 bytes with 64 KiB, late: `... NAME MILLISECONDS`."""

from __future__ import annotations

import socketserver
import sys
import time

from stacks.servers.listen import announce

REQUEST, REPLY = 16, 65536


class Handler(socketserver.BaseRequestHandler):
    """One connection."""

    def handle(self) -> None:
        """Answer until the client disconnects."""
        while self.request.recv(REQUEST, 256):
            time.sleep(float(sys.argv[2]) / 1000)
            self.request.sendall(bytes(REPLY))


class Server(socketserver.ThreadingTCPServer):
    """One thread per connection."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Log nothing: clients are killed."""


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Handler) as server:
        announce(sys.argv[1], server.server_address[1])
        server.serve_forever()
