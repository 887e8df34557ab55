"""What gives the loops of `demand` their work: `... NAME HOW [WORD ...]`."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from stacks.loops.common import PORT, port
from stacks.servers.listen import announce
from stacks.servers.resp import Redis

_HEAD = struct.Struct("!I")
TASK = b"task " * 30
ACK, HEARTBEAT = bytes(17), bytes(8)


def deliveries(broker: socket.socket) -> Iterator[bytes]:
    """What a broker delivers, without its heartbeats."""
    stream = broker.makefile("rb")
    while head := stream.read(_HEAD.size):
        body = stream.read(*_HEAD.unpack(head))
        if body != HEARTBEAT:
            yield body


def broker(name: str, seconds: str) -> None:
    """Delivers a task every so often, and heartbeats, over a connection."""
    server = socket.create_server(("127.0.0.1", 0))
    announce(name, server.getsockname()[1])
    link, _ = server.accept()
    threading.Thread(target=lambda: [*iter(lambda: link.recv(65536), b"")], daemon=True).start()
    due = beat = time.monotonic()
    while True:
        if time.monotonic() >= due:
            link.sendall(_HEAD.pack(len(TASK)) + TASK)
            due += float(seconds) * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        if time.monotonic() >= beat:
            link.sendall(_HEAD.pack(len(HEARTBEAT)) + HEARTBEAT)
            beat += 1
        time.sleep(0.01)


def jobs(name: str, seconds: str) -> None:
    """A client of Redis that has a job for the loop every so often."""
    redis = Redis(socket.create_connection(("127.0.0.1", port("redis"))))
    announce(name, port("redis"))
    while True:
        time.sleep(float(seconds) * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
        redis.ask("RPUSH", "jobs", TASK)


def far(name: str, target: str, seconds: str) -> None:
    """A distant `target`: what is sent there arrives later."""
    server = socket.create_server(("127.0.0.1", 0))
    announce(name, server.getsockname()[1])
    while True:
        client, _ = server.accept()
        link = socket.create_connection(("127.0.0.1", port(target)))
        for one, other, delay in ((client, link, float(seconds)), (link, client, 0.0)):
            threading.Thread(target=_forward, args=(one, other, delay), daemon=True).start()


def _forward(one: socket.socket, other: socket.socket, seconds: float) -> None:
    while data := one.recv(65536):
        time.sleep(seconds)
        other.sendall(data)


def desk(name: str, seconds: str) -> None:
    """Takes requests over the first connection, and answers late over the second."""
    server = socket.create_server(("127.0.0.1", 0))
    announce(name, server.getsockname()[1])
    (requests, _), (samples, _) = server.accept(), server.accept()
    while requests.recv(16, socket.MSG_WAITALL):
        time.sleep(float(seconds))
        samples.sendall(bytes(65536))


def upload(name: str, seconds: str) -> None:
    """A client whose request takes so long to send."""
    announce(name, PORT)
    while True:
        with contextlib.suppress(OSError):
            link = http.client.HTTPConnection("127.0.0.1", PORT)
            link.request("POST", "/", _slowly(float(seconds)), {"Content-Length": "20480"})
            link.getresponse().read()
        time.sleep(0.01)


def ask_anew(name: str, clients: str) -> None:
    """Clients that connect for each request."""
    announce(name, PORT)

    def ask() -> None:
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                link = http.client.HTTPConnection("127.0.0.1", PORT)
                link.request("GET", "/", headers={"Connection": "close"})
                link.getresponse().read()
                link.close()

    for _ in range(int(clients)):
        threading.Thread(target=ask).start()


def _slowly(seconds: float) -> Iterator[bytes]:
    for _ in range(20):
        time.sleep(seconds / 20)
        yield os.urandom(1024)


HOW: dict[str, Callable[..., None]] = {
    "broker": broker,
    "desk": desk,
    "jobs": jobs,
    "far": far,
    "upload": upload,
    "anew": ask_anew,
}


def main(name: str, how: str, *words: str) -> None:
    """Run one."""
    HOW[how](name, *words)
