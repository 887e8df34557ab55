"""A broker without files, which is a program of its own: `... NAME`."""

from __future__ import annotations

import socket
import subprocess
import time

from stacks.servers.listen import announce

_COMMANDS = {
    "redis": ("redis-server", "--save", "", "--appendonly", "no", "--port"),
    "mosquitto": ("mosquitto", "-p"),
}
"""By name; the port comes last."""
_PATIENCE_SECONDS = 10.0


def main(name: str) -> None:
    """Run it until killed."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    with subprocess.Popen([*_COMMANDS[name], f"{port}"]) as server:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not _listens(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        announce(name, port)
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
