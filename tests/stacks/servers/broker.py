"""redis-server, without files: `... NAME`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from stacks.servers.listen import announce

_PATIENCE_SECONDS = 10.0


def main() -> None:
    """Run it until killed."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    words = ["redis-server", "--port", f"{port}", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(words) as server:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _listens(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        announce(sys.argv[1], port)
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
