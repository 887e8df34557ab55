"""Batches over plain connections: `python -m stacks.loops.sockets HOW [WHERE]`."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import NoReturn

from stacks.loops.common import HOST, MEBIBYTE, PORT, WAIT, Load, awaited, port, prefetched
from stacks.loops.gpu import STEP, hold, run, warm
from stacks.servers.sockets import MESSAGE, REPLY, REQUEST

TIMEOUT = 30.0
_PING_SECONDS = 2.0
_AHEAD = 4
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


def selected(connection: socket.socket, size: int, *seconds: float) -> None:
    """The same, waiting in select, for so long at a time."""
    while size:
        select.select([connection], [], [], *seconds)
        size -= len(connection.recv(size))


def _asking(connection: socket.socket, receive: Callable[[socket.socket, int], object]) -> Load:
    def load() -> None:
        connection.sendall(bytes(REQUEST))
        receive(connection, REPLY)

    return load


def blocking() -> Load:
    """Blocks in recv."""
    return _asking(connected("lines"), received)


def timeout() -> Load:
    """Waits in poll before it receives."""
    return _asking(connected("lines", TIMEOUT), received)


def selecting() -> Load:
    """Waits in select, then reads what has arrived, until complete."""
    connection = connected("lines")
    connection.setblocking(False)  # noqa: FBT003 - the name says it
    return _asking(connection, selected)


def streams() -> Load:
    """asyncio's streams."""

    async def start() -> Batch:
        reader, writer = await asyncio.open_connection(HOST, port("lines"))

        async def batch() -> bytes:
            writer.write(bytes(REQUEST))
            return await reader.readexactly(REPLY)

        return batch

    return awaited(start)


def pushed() -> Load:
    """Requests nothing, and takes what arrives."""
    return partial(received, connected("push", TIMEOUT), REPLY)


def late(server: str = "late", size: int = REPLY) -> Load:
    """Asks, and waits for all of the answer."""
    connection = connected(server)

    def load() -> None:
        connection.sendall(bytes(REQUEST))
        connection.recv(size, socket.MSG_WAITALL)

    return load


late_8 = partial(late, "late-8")
late_25 = partial(late, "late-25")
tracker = partial(late, "tracker", 6)
"""Reports each step, and waits until that is acknowledged."""


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


def two_threads() -> Load:
    """One thread asks ahead, another receives."""
    connection = connected("queue")
    room = threading.Semaphore(_AHEAD)

    def ask() -> None:
        while True:
            room.acquire()
            connection.sendall(bytes(REQUEST))

    def receive() -> object:
        message = connection.recv(MESSAGE, socket.MSG_WAITALL)
        room.release()
        return message

    threading.Thread(target=ask, daemon=True).start()
    return prefetched(receive)


def subscriber() -> Load:
    """A thread that acknowledges each message, as MQTT's clients do."""
    connection = connected("pushes")

    def receive() -> None:
        selected(connection, MESSAGE, 1)
        connection.sendall(b"ack")

    return prefetched(receive)


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


def metrics_async() -> Load:
    """An event loop that only sends datagrams, and sleeps."""

    async def start() -> Batch:
        loop, to = asyncio.get_running_loop(), (HOST, PORT)
        made = loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=to)
        end, _ = await made

        async def batch() -> None:
            end.sendto(b"steps:1|c")
            await asyncio.sleep(WAIT)

        return batch

    return awaited(start)


def upload() -> Load:
    """Sends more than the other side takes."""
    connection = connected("takes")
    return lambda: connection.sendall(bytes(MEBIBYTE))


def upload_async() -> Load:
    """The same in an event loop."""

    async def start() -> Batch:
        _, writer = await asyncio.open_connection(HOST, port("takes"))

        async def send() -> None:
            writer.write(bytes(MEBIBYTE))
            await writer.drain()

        return send

    return awaited(start)


def answers() -> Load:
    """A server whose only client reads slowly."""
    server = socket.create_server((HOST, PORT))

    def parts() -> Iterator[None]:
        while True:
            connection, _ = server.accept()
            connection.recv(REQUEST)
            for _ in range(64):
                connection.sendall(bytes(MEBIBYTE))
                yield

    return parts().__next__


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
