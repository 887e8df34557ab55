"""Servers over plain connections: `... NAME HOW [SECONDS]`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from stacks.servers.listen import announce

REQUEST, REPLY = 16, 65536
PAUSE = 0.3
MESSAGE = 2000


def answers(connection: socket.socket, seconds: float) -> None:
    """Answers each request after so many seconds."""
    while connection.recv(REQUEST, socket.MSG_WAITALL):
        time.sleep(seconds)
        connection.sendall(bytes(REPLY))


def tracker(connection: socket.socket, seconds: float) -> None:
    """Answers each request with a few bytes in two segments."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while connection.recv(REQUEST, socket.MSG_WAITALL):
        time.sleep(seconds)
        connection.sendall(b"OK\r\n")
        connection.sendall(b"{}")


def reports(connection: socket.socket, seconds: float) -> None:
    """Takes reports, and answers each with a little data."""
    while connection.recv(200, socket.MSG_WAITALL):
        time.sleep(seconds)
        connection.sendall(bytes(300))


def push(connection: socket.socket, seconds: float) -> None:
    """Sends at once, and again and again, whatever it is sent."""
    while True:
        connection.sendall(bytes(REPLY))
        time.sleep(seconds)


def pushes(connection: socket.socket, seconds: float) -> None:
    """Sends small messages, whatever it is sent."""
    while True:
        time.sleep(seconds)
        connection.sendall(bytes(MESSAGE))


HOW: dict[str, Callable[[socket.socket, float], None]] = {
    "answers": answers,
    "tracker": tracker,
    "reports": reports,
    "push": push,
    "pushes": pushes,
}


def datagrams(name: str) -> None:
    """Sends datagrams to whoever has sent one."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    announce(name, server.getsockname()[1])
    _, client = server.recvfrom(REQUEST)
    while True:
        time.sleep(PAUSE)
        server.sendto(bytes(MESSAGE), client)


def main(name: str, how: str, seconds: str = f"{PAUSE}") -> None:
    """Serve."""
    if how == "datagrams":
        datagrams(name)
    server = socket.create_server(("127.0.0.1", 0))
    announce(name, server.getsockname()[1])
    while True:
        connection, _ = server.accept()
        arguments = connection, float(seconds)
        threading.Thread(target=HOW[how], args=arguments, daemon=True).start()
