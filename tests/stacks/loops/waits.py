"""Waits on connections that are no question and answer: `python -m stacks.loops.waits HOW`."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from stacks.loops.common import (
    HOST,
    MEBIBYTE,
    PORT,
    STEP,
    WAIT,
    Load,
    hold,
    port,
    prefetched,
    train,
    warm,
)
from stacks.servers.lines import REPLY, REQUEST
from stacks.servers.slow import MESSAGE

_PING_SECONDS = 2.0
_AHEAD = 4
_LONG_STEP = 0.1


def tracker() -> Load:
    """Reports each step, and waits until that is acknowledged."""
    return _asks("tracker", 6)


def pushed() -> Load:
    """An event loop that is sent messages, and sends pings."""
    loop = asyncio.new_event_loop()
    reader, writer = loop.run_until_complete(asyncio.open_connection(HOST, port("pushes")))

    async def ping() -> None:
        while True:
            await asyncio.sleep(_PING_SECONDS)
            writer.write(b"ping")

    pings = loop.create_task(ping())

    def load() -> object:
        assert not pings.done()
        return loop.run_until_complete(reader.readexactly(MESSAGE))

    return load


def two_threads() -> Load:
    """One thread asks ahead, another receives."""
    connection = socket.create_connection((HOST, port("queue")))
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
    connection = socket.create_connection((HOST, port("pushes")))

    def receive() -> None:
        left = MESSAGE
        while left:
            select.select([connection], [], [], 1)
            left -= len(connection.recv(left))
        connection.sendall(b"ack")

    return prefetched(receive)


def datagrams() -> Load:
    """Datagrams."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connection.connect((HOST, port("datagrams")))
    connection.send(bytes(REQUEST))
    return lambda: connection.recv(MESSAGE)


def datagrams_thread() -> Load:
    """The same in a thread."""
    return prefetched(datagrams())


def datagrams_async() -> Load:
    """The same in an event loop."""
    loop = asyncio.new_event_loop()
    batches: asyncio.Queue[bytes] = asyncio.Queue()

    class Protocol(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, _address: object) -> None:
            batches.put_nowait(data)

    to = HOST, port("datagrams")
    end, _ = loop.run_until_complete(loop.create_datagram_endpoint(Protocol, remote_addr=to))
    end.sendto(bytes(REQUEST))
    return lambda: loop.run_until_complete(batches.get())


def metrics_async() -> Load:
    """An event loop that only sends datagrams, and sleeps."""
    loop = asyncio.new_event_loop()
    to = HOST, PORT
    end, _ = loop.run_until_complete(
        loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=to)
    )

    async def pause() -> None:
        end.sendto(b"steps:1|c")
        await asyncio.sleep(WAIT)

    return lambda: loop.run_until_complete(pause())


def upload() -> Load:
    """Sends more than the other side takes."""
    connection = socket.create_connection((HOST, port("takes")))
    return lambda: connection.sendall(bytes(MEBIBYTE))


def upload_async() -> Load:
    """The same in an event loop."""
    loop = asyncio.new_event_loop()
    _, writer = loop.run_until_complete(asyncio.open_connection(HOST, port("takes")))

    async def send() -> None:
        writer.write(bytes(MEBIBYTE))
        await writer.drain()

    return lambda: loop.run_until_complete(send())


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

    answer = parts()
    return lambda: next(answer)


def _asks(server: str, size: int) -> Load:
    connection = socket.create_connection((HOST, port(server)))

    def load() -> None:
        connection.sendall(bytes(REQUEST))
        connection.recv(size, socket.MSG_WAITALL)

    return load


def pings() -> NoReturn:
    """Waits for messages that never come, and pings."""
    connection = socket.create_connection((HOST, port("tracker")), timeout=_PING_SECONDS)
    warm(hold())
    while True:
        connection.sendall(bytes(REQUEST))
        try:
            while True:
                connection.recv(MESSAGE)
        except TimeoutError:
            pass


def worker() -> NoReturn:
    """A task queue's worker without a task: polls its broker, and hears and tells who is there."""
    import redis  # noqa: PLC0415 - not of the standard library

    broker = redis.Redis(HOST, port("redis"))
    warm(hold())

    def gossip() -> None:
        channel = broker.pubsub()
        channel.subscribe("workers")
        for _ in channel.listen():
            pass

    threading.Thread(target=gossip, daemon=True).start()
    while True:
        broker.publish("workers", "heartbeat " * 20)
        broker.brpop(["jobs"], timeout=1)


HOW: dict[str, Callable[[], Load]] = {
    "late": lambda: _asks("late", REPLY),
    "late-8": lambda: _asks("late-8", REPLY),
    "late-25": lambda: _asks("late-25", REPLY),
    "tracker": tracker,
    "pushed": pushed,
    "two-threads": two_threads,
    "subscriber": subscriber,
    "datagrams": datagrams,
    "datagrams-thread": datagrams_thread,
    "datagrams-async": datagrams_async,
    "metrics-async": metrics_async,
    "upload": upload,
    "upload-async": upload_async,
    "answers": answers,
}

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "pings":
        pings()
    if how == "worker":
        worker()
    train(HOW[how](), _LONG_STEP if how.startswith(("datagrams", "late-")) else STEP)
