"""Redis's protocol, RESP 2, over a connection that blocks."""

from __future__ import annotations

import socket


class Redis:
    """A connection to a server of Redis."""

    def __init__(self, link: socket.socket) -> None:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.link = link
        self._stream = link.makefile("rb")

    def send(self, *words: str | bytes) -> None:
        """Send a command."""
        raw = [word if isinstance(word, bytes) else word.encode() for word in words]
        parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in raw]
        self.link.sendall(b"*%d\r\n" % len(parts) + b"".join(parts))

    def reply(self) -> object:
        """Await the answer to a command; None is Redis's null."""
        kind, value = self._stream.read(1), self._stream.readline().strip()
        if kind in b"+:":
            return value
        size = int(value)
        if size < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(size)]
        return self._stream.read(size + 2)[:-2]

    def ask(self, *words: str | bytes) -> object:
        """Send a command and await its answer."""
        self.send(*words)
        return self.reply()
