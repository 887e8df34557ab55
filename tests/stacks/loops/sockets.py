"""Batches from plain sockets: `python -m stacks.loops.sockets HOW [WHERE]`."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
from collections.abc import Callable

from stacks.loops.common import HOST, STEP, Load, placed, port, train
from stacks.servers.lines import REPLY, REQUEST

TIMEOUT = 30.0
_LONG_STEP = 0.15
"""For batches that rarely come."""


def blocking() -> Load:
    """Blocks in recv."""
    return _asking(socket.create_connection((HOST, port("lines"))))


def with_timeout() -> Load:
    """Waits in poll before it receives."""
    return _asking(socket.create_connection((HOST, port("lines")), timeout=TIMEOUT))


def selecting() -> Load:
    """Waits in select, then reads what has arrived, until complete."""
    connection = socket.create_connection((HOST, port("lines")))
    connection.setblocking(False)  # noqa: FBT003 - the name says it

    def load() -> None:
        connection.sendall(bytes(REQUEST))
        left = REPLY
        while left:
            select.select([connection], [], [])
            left -= len(connection.recv(left))

    return load


def streams() -> Load:
    """asyncio's streams."""
    loop = asyncio.new_event_loop()
    opening = asyncio.open_connection(HOST, port("lines"))
    reader, writer = loop.run_until_complete(opening)

    async def batch() -> bytes:
        writer.write(bytes(REQUEST))
        return await reader.readexactly(REPLY)

    return lambda: loop.run_until_complete(batch())


def pushed() -> Load:
    """Requests nothing, and takes what arrives."""
    connection = socket.create_connection((HOST, port("push")), timeout=TIMEOUT)

    def load() -> None:
        left = REPLY
        while left:
            left -= len(connection.recv(left))

    return load


def _asking(connection: socket.socket) -> Load:
    def load() -> None:
        connection.sendall(bytes(REQUEST))
        left = REPLY
        while left:
            left -= len(connection.recv(left))

    return load


HOW: dict[str, Callable[[], Load]] = {
    "blocking": blocking,
    "timeout": with_timeout,
    "select": selecting,
    "streams": streams,
    "pushed": pushed,
}

if __name__ == "__main__":
    step = _LONG_STEP if "pushed" in sys.argv else STEP
    train(placed(HOW[sys.argv[1]], *sys.argv[2:]), step)
