"""Batches over plain connections: `python -m stacks.loops.sockets HOW [WHERE]`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

from stacks.loops.common import HOST, Load, awaited, port
from stacks.loops.gpu import STEP, hold, run, warm
from stacks.servers.sockets import MESSAGE, REPLY, REQUEST

TIMEOUT = 30.0
_PING_SECONDS = 2.0
_LONG_STEP, _LONGER_STEP = 0.1, 0.15
"""For batches that rarely come."""

Batch = Callable[[], Awaitable[object]]


def connected(server: str, timeout: float | None = None) -> socket.socket:
    """A connection to `server`."""
    return socket.create_connection((HOST, port(server)), timeout)


def received(connection: socket.socket, size: int) -> None:
    """Receive so many bytes, as they arrive."""
    while size:
        size -= len(connection.recv(size))


def asking(server: str = "lines", timeout: float | None = None, size: int = REPLY) -> Load:
    """Asks, and waits in recv for all of the answer; with a timeout, in poll."""
    connection = connected(server, timeout)

    def load() -> None:
        connection.sendall(bytes(REQUEST))
        received(connection, size)

    return load


blocking = asking
timeout = partial(asking, timeout=TIMEOUT)
late, late_25 = partial(asking, "late"), partial(asking, "late-25")
tracker = partial(asking, "tracker", size=6)
"""Reports each step, and waits until that is acknowledged."""


def pushed() -> Load:
    """Requests nothing, and takes what arrives."""
    return partial(received, connected("push", TIMEOUT), REPLY)


def messages() -> Load:
    """An event loop that is sent messages, and sends pings."""

    async def start() -> Batch:
        reader, writer = await asyncio.open_connection(HOST, port("pushes"))

        async def ping() -> None:
            while True:
                await asyncio.sleep(_PING_SECONDS)
                writer.write(b"ping")

        pings = asyncio.get_running_loop().create_task(ping())

        def batch() -> Awaitable[bytes]:
            assert not pings.done()
            return reader.readexactly(MESSAGE)

        return batch

    return awaited(start)


def datagrams() -> Load:
    """Datagrams."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connection.connect((HOST, port("datagrams")))
    connection.send(bytes(REQUEST))
    return lambda: connection.recv(MESSAGE)


def datagrams_async() -> Load:
    """The same in an event loop."""
    batches: asyncio.Queue[bytes] = asyncio.Queue()

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, _address: object) -> None:
            batches.put_nowait(data)

    async def start() -> Batch:
        to = HOST, port("datagrams")
        end, _ = await asyncio.get_running_loop().create_datagram_endpoint(Protocol, remote_addr=to)
        end.sendto(bytes(REQUEST))
        return batches.get

    return awaited(start)


def pings() -> NoReturn:
    """Waits for messages that never come, and pings."""
    connection = connected("tracker", _PING_SECONDS)
    warm(hold())
    while True:
        connection.sendall(bytes(REQUEST))
        try:
            while True:
                connection.recv(MESSAGE)
        except TimeoutError:
            pass


def main(name: str, *where: str) -> None:
    """Train forever."""
    rare = name.startswith(("datagrams", "late_"))
    step = _LONGER_STEP if name == "pushed" else _LONG_STEP if rare else STEP
    run(globals(), name, *where, step=step)
