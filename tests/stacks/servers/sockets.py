"""Servers over plain connections: `... NAME HOW [SECONDS]`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from stacks.servers.listen import PORT, announce

REQUEST, REPLY = 16, 65536
PAUSE = 0.3
MESSAGE = 2000
TAKES_AT_ONCE = 65536


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


def queue(connection: socket.socket, seconds: float) -> None:
    """Takes requests at any time, and answers them one after the other."""
    while connection.recv(REQUEST, socket.MSG_WAITALL):
        time.sleep(seconds)
        connection.sendall(bytes(MESSAGE))


def takes(connection: socket.socket, seconds: float) -> None:
    """Takes little at a time."""
    while connection.recv(TAKES_AT_ONCE):
        time.sleep(seconds / 8)


HOW: dict[str, Callable[[socket.socket, float], None]] = {
    "answers": answers,
    "tracker": tracker,
    "push": push,
    "pushes": pushes,
    "queue": queue,
    "takes": takes,
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


def client(name: str) -> None:
    """Asks the loop, and reads its answer slowly, over and over."""
    announce(name, PORT)
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", PORT))
        except ConnectionRefusedError:
            time.sleep(PAUSE)
            continue
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKES_AT_ONCE)
            connection.sendall(bytes(REQUEST))
            takes(connection, PAUSE)


def main(name: str, how: str, seconds: str = f"{PAUSE}") -> None:
    """Serve."""
    if how == "datagrams":
        datagrams(name)
    if how == "client":
        client(name)
    server = socket.create_server(("127.0.0.1", 0))
    if how == "takes":
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKES_AT_ONCE)
    announce(name, server.getsockname()[1])
    while True:
        connection, _ = server.accept()
        arguments = connection, float(seconds)
        threading.Thread(target=HOW[how], args=arguments, daemon=True).start()
