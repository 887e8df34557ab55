"""A server of raw bytes on loopback: what it sends need not be HTTP, or end."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from support.beside import HOST

_BLOCK = 65_536


class Line:
    """A client's connection."""

    def __init__(self, connection: socket.socket, ended: threading.Event) -> None:
        self._connection, self._ended = connection, ended
        self.sent_bytes = 0

    def send(self, data: bytes) -> None:
        """Send `data`; raises OSError once the client has gone or the test has ended."""
        if self._ended.is_set():
            raise ConnectionError
        self._connection.sendall(data)
        self.sent_bytes += len(data)

    def receive(self) -> bytes:
        """Bytes from the client; empty once it has closed."""
        return self._connection.recv(_BLOCK)

    def drip(self, data: bytes = b"x", seconds: float = 0.05) -> None:
        """Send `data` again and again, with a pause: for ever."""
        while not self._ended.wait(seconds):
            self.send(data)

    def flood(self, data: bytes) -> None:
        """Send `data` again and again: for ever."""
        while True:
            self.send(data * (_BLOCK // len(data)))

    def hang(self) -> None:
        """Send nothing until the test ends."""
        self._ended.wait()


@contextmanager
def talking(
    talk: Callable[[Line], None], context: ssl.SSLContext | None = None
) -> Iterator[tuple[int, list[Line]]]:
    """Let `talk` speak with each client, with TLS if given: the port, and the lines so far."""
    ended = threading.Event()
    lines: list[Line] = []
    threads: list[threading.Thread] = []
    plain: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if context:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                lines.append(Line(connection, ended))
                talk(lines[-1])

    def accept() -> None:
        with suppress(OSError):
            while True:
                plain.append(server.accept()[0])
                threads.append(threading.Thread(target=serve, args=(plain[-1],)))
                threads[-1].start()

    with socket.create_server((HOST, 0), backlog=128) as server:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield server.getsockname()[1], lines
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for item in plain:
                with suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def saying(*pieces: bytes) -> Callable[[Line], None]:
    """Send `pieces` once the client has asked, then close."""

    def talk(line: Line) -> None:
        line.receive()
        for piece in pieces:
            line.send(piece)

    return talk


def dripping(head: bytes, data: bytes = b"x") -> Callable[[Line], None]:
    """Send `head` once the client has asked, then `data` now and then, for ever."""

    def talk(line: Line) -> None:
        line.receive()
        line.send(head)
        line.drip(data)

    return talk


def flooding(head: bytes, data: bytes) -> Callable[[Line], None]:
    """Send `head` once the client has asked, then `data` as fast as it goes, for ever."""

    def talk(line: Line) -> None:
        line.receive()
        line.send(head)
        line.flood(data)

    return talk


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SLOW: dict[str, Callable[[Line], None]] = {
    "nothing": lambda line: line.hang(),
    "status line": dripping(b"HTTP/1.1 200 "),
    "interim answers": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header": dripping(OK + b"A: "),
    "headers": dripping(OK, b"A: b\r\n"),
    "body": dripping(OK + b"Content-Length: 100000\r\n\r\n"),
    "body without an end": dripping(OK + b"\r\n"),
    "chunk size": dripping(CHUNKED, b"0"),
    "chunk extension": dripping(CHUNKED + b"1;"),
    "chunk": dripping(CHUNKED + b"fffff\r\n"),
    "chunks": dripping(CHUNKED, b"1\r\nx\r\n"),
    "chunk of -1 bytes": dripping(CHUNKED + b"-1\r\n"),
    "trailer": dripping(CHUNKED + b"0\r\n"),
    "trailers": dripping(CHUNKED + b"0\r\n", b"A: b\r\n"),
}
"""Answers that never end, a byte or a line now and then."""
LONG: dict[str, Callable[[Line], None]] = {
    "status line": flooding(b"", b"x"),
    "interim answers": flooding(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header": flooding(OK, b"x"),
    "headers": flooding(OK, b"A: b\r\n"),
    "headers of interim answers": flooding(b"HTTP/1.1 100 Continue\r\n", b"A: b\r\n"),
    "body": flooding(OK + b"\r\n", b"x"),
    "chunk size": flooding(CHUNKED, b"0"),
    "chunk extensions": flooding(CHUNKED, b"1;" + b"x" * 4000 + b"\r\nx\r\n"),
    "chunk of -1 bytes": flooding(CHUNKED + b"-1\r\n", b"x"),
    "chunk of -1 bytes, in hexadecimal": flooding(CHUNKED + b"-0x1\r\n", b"x"),
    "huge chunk": flooding(CHUNKED + b"f" * 40 + b"\r\n", b"x"),
    "trailers": flooding(CHUNKED + b"0\r\n", b"A: b\r\n"),
}
"""Answers that never end, as fast as the client takes them."""
