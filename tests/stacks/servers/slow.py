"""Servers other than those that answer requests one by one: `... NAME HOW`."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from stacks.servers.lines import REPLY, REQUEST
from stacks.servers.listen import announce

PAUSE = 0.3
MESSAGE = 2000
TAKES_AT_ONCE = 65536


def late(connection: socket.socket, seconds: float) -> None:
    """Answers each request after so many seconds."""
    while connection.recv(REQUEST, socket.MSG_WAITALL):
        time.sleep(seconds)
        connection.sendall(bytes(REPLY))


def tracker(connection: socket.socket) -> None:
    """Answers each request with a few bytes in two segments."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while connection.recv(REQUEST, socket.MSG_WAITALL):
        time.sleep(PAUSE)
        connection.sendall(b"OK\r\n")
        connection.sendall(b"{}")


def pushes(connection: socket.socket) -> None:
    """Sends small messages, whatever it is sent."""
    while True:
        time.sleep(PAUSE)
        connection.sendall(bytes(MESSAGE))


def queue(connection: socket.socket) -> None:
    """Takes requests at any time, and answers them one after the other."""
    while connection.recv(REQUEST, socket.MSG_WAITALL):
        time.sleep(PAUSE)
        connection.sendall(bytes(MESSAGE))


def takes(connection: socket.socket) -> None:
    """Takes little at a time."""
    while connection.recv(TAKES_AT_ONCE):
        time.sleep(PAUSE / 8)


HOW: dict[str, Callable[[socket.socket], None]] = {
    "late": partial(late, seconds=5),
    "late-8": partial(late, seconds=8),
    "late-25": partial(late, seconds=25),
    "tracker": tracker,
    "pushes": pushes,
    "queue": queue,
    "takes": takes,
}


def datagrams() -> None:
    """Sends datagrams to whoever has sent one."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    announce(sys.argv[1], server.getsockname()[1])
    _, client = server.recvfrom(REQUEST)
    while True:
        time.sleep(PAUSE)
        server.sendto(bytes(MESSAGE), client)


def client(port: int) -> None:
    """Asks the loop, and reads its answer slowly, over and over."""
    announce(sys.argv[1], port)
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(PAUSE)
            continue
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKES_AT_ONCE)
            connection.sendall(bytes(REQUEST))
            takes(connection)


def main() -> None:
    """Serve."""
    how = sys.argv[2]
    if how == "datagrams":
        datagrams()
    if how == "client":
        client(int(sys.argv[3]))
    server = socket.create_server(("127.0.0.1", 0))
    if how == "takes":
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, TAKES_AT_ONCE)
    announce(sys.argv[1], server.getsockname()[1])
    while True:
        connection, _ = server.accept()
        threading.Thread(target=HOW[how], args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
