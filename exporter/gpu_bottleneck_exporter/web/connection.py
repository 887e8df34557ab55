"""One client's connection: HTTP/1.1 by `http.server`, with a deadline for everything it owes."""

from __future__ import annotations

import enum
import http.client
import io
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.web.config import WebConfig
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.routes import Answer, Routes, plain
from gpu_bottleneck_exporter.web.users import Logins

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

HEAD_BYTES = 16 * 1024
_FIRST_BYTES = 16 * 1024
"""Of a response's body that are copied behind its head, to leave in one packet or TLS record."""
_BUFFER_BYTES = 2048
_LINGER_SECONDS = 0.5
"""To take what the client still sends: otherwise the kernel would reset, and drop the response."""
_RESET = struct.pack("ii", 1, 0)
_ERRORS = 400
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="gpu-bottleneck-exporter", charset="UTF-8"'}


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, and how many clients may hold connections.

    Attributes:
        head: From connecting, or on a kept connection from the first byte, to the end of the
            request. Under TLS from connecting to the end of the handshake, and as long again for
            the request.
        response: For the client to take a response.
        rest: Between a response and the next request's first byte. Longer than the usual scrape
            interval, so that Prometheus can reuse the connection.
        grace: For requests in progress to end after `stop`.
        connections: Open at once; after that, another one makes way for each new one.
        stay: How long each may stay at least before it makes way: time for a handshake.
    """

    head: float = 10.0
    response: float = 30.0
    rest: float = 65.0
    grace: float = 3.0
    connections: int = 128
    stay: float = 0.25


@dataclass
class Site:
    """What all connections of a server share."""

    routes: Routes
    limits: Limits
    web_config: WebConfigFile | None = None
    logins: Logins = field(default_factory=Logins)
    stopping: bool = False


class Phase(enum.Enum):
    """Who is waiting for whom."""

    CLIENT = enum.auto()
    """The exporter waits for a handshake or a request, or checks a password."""
    EXPORTER = enum.auto()
    """The client waits for the exporter to make its answer."""
    SENDING = enum.auto()
    """The exporter waits for the client to take its answer."""


class _Stream(io.RawIOBase):
    """A socket's bytes, with one deadline for all reads and writes until the next `allow`.

    Both raise OSError when the time is up or the connection is broken.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._deadline = 0.0

    def allow(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def wait(self) -> None:
        """Let the socket's next operation take what is left of the time."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        self.wait()
        return self._socket.recv_into(buffer)

    def write(self, data: ReadableBuffer) -> int:
        """Write all of `data`."""
        rest = memoryview(data)
        while rest:
            self.wait()
            rest = rest[self._socket.send(rest) :]
        return memoryview(data).nbytes


class _Reader(io.BufferedReader):
    """Reads requests; the lines of a head may have so many bytes together."""

    left = HEAD_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        del size  # http.server's own limits are larger
        line = super().readline(self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise http.client.LineTooLong("head")
        return line


class Connection(BaseHTTPRequestHandler):
    """A connection from its first byte to its last; `run` serves it in a thread of its own.

    `hang_up` may be called from any thread until `on_end` is.
    """

    protocol_version = "HTTP/1.1"
    _answered = False

    def __init__(
        self, sock: socket.socket, site: Site, on_end: Callable[[Connection], None]
    ) -> None:
        # Not the constructor of http.server, which would serve the connection to its end.
        self.phase = Phase.CLIENT
        self.since = time.monotonic()
        """When it was accepted or its last request was complete."""
        self.gone = False
        self._socket = sock
        self._site = site
        self._on_end = on_end

    def run(self) -> None:
        """Serve requests until either side closes the connection."""
        try:
            if self._open():
                self.handle()
        except OSError:
            pass  # the client has gone, is too slow, or does not speak TLS as it should
        finally:
            if self.phase is Phase.SENDING or (self.gone and not self._site.stopping):
                # Else the kernel would keep for minutes what the client does not take.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.phase = Phase.CLIENT
            self._linger()
            self._on_end(self)
            self._socket.close()

    def hang_up(self) -> None:
        """Make `run` end soon, without waiting for the client."""
        self.gone = True
        with suppress(OSError):
            # Not SSLSocket.shutdown, which would forget the encryption that `run` still uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _open(self) -> bool:
        """Whether the client may ask, after its handshake if there is TLS."""
        self._converse()
        tls = self._site.web_config.active.tls if self._site.web_config else None
        if tls is None:
            return True
        wrapped = tls.context.wrap_socket(
            self._socket, server_side=True, do_handshake_on_connect=False
        )
        self._socket = wrapped
        self._converse()
        if self.gone:  # `hang_up` has met the socket that is now wrapped
            return False
        self._stream.wait()
        wrapped.do_handshake()
        self._stream.allow(self._site.limits.head)
        return tls.admits(wrapped)

    def _converse(self) -> None:
        """Read and write by the socket from now on."""
        self._stream = _Stream(self._socket)
        self._stream.allow(self._site.limits.head)
        self._reader = self.rfile = _Reader(self._stream, _BUFFER_BYTES)

    def handle_one_request(self) -> None:
        """Answer one request; `close_connection` tells `handle` whether another may follow."""
        self.close_connection = True
        self.phase = Phase.CLIENT
        self.command = ""
        if self._answered:
            self._stream.allow(self._site.limits.rest)
            if self._site.stopping or not self._reader.peek(1):
                return
            self._stream.allow(self._site.limits.head)
        self._reader.left = HEAD_BYTES
        try:
            self.raw_requestline = self._reader.readline()
        except http.client.LineTooLong:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return
        if self.parse_request() and self._sound():
            self.since = time.monotonic()
            self._reply(self._answer())

    def handle_expect_100(self) -> bool:
        """Answer without asking for the body."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a malformed request, without repeating any of it."""
        del message, explain
        self.close_connection = True
        self._reply(plain(code, f"{HTTPStatus(code).phrase}."))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
        """Nothing: strangers must not be able to fill the log."""

    def _sound(self) -> bool:
        """Whether the request is a sound one; no page wants a body, so none is read.

        A proxy that believes one length and a server that believes another see different
        requests in what follows (RFC 9112, 6.1): behind a body, the connection is closed.
        """
        lengths = self.headers.get_all("Content-Length", [])
        encodings = self.headers.get_all("Transfer-Encoding", [])
        if (
            self.headers.defects
            or self.request_version == "HTTP/0.9"
            or (self.request_version == "HTTP/1.1" and "Host" not in self.headers)
            or (lengths and encodings)
        ):
            self.send_error(HTTPStatus.BAD_REQUEST)
            return False
        self.close_connection |= [*lengths, *encodings] not in ([], ["0"])
        return True

    @property
    def _config(self) -> WebConfig:
        file = self._site.web_config
        return file.active.config if file else WebConfig()

    def _answer(self) -> Answer:
        users, site = self._config.users, self._site
        said = self._header("Authorization")
        if users and not site.logins.right(users, said, lambda: not self.gone):
            return plain(401, "This page requires a user and a password.", _CHALLENGE)
        self.phase = Phase.EXPORTER
        return site.routes.answer(
            self.command,
            self.path.partition("?")[0],
            self._header("Accept"),
            self._header("Accept-Encoding"),
        )

    def _header(self, name: str) -> str:
        """A header's value, repeated ones joined with commas; "" if it is missing."""
        return ", ".join(self.headers.get_all(name, ()))

    def _reply(self, answer: Answer) -> None:
        """Send an answer, to HEAD without its body. After an error the connection is closed."""
        self.close_connection |= answer.status >= _ERRORS or self._site.stopping
        headers = {
            "Date": self.date_time_string(),
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "X-Content-Type-Options": "nosniff",
            **answer.headers,
            **self._config.headers,
            **({"Connection": "close"} if self.close_connection else {}),
        }
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        body = b"" if self.command == "HEAD" else answer.body
        self.phase = Phase.SENDING
        self._stream.allow(self._site.limits.response)
        self._stream.write(head + body[:_FIRST_BYTES])
        self._stream.write(memoryview(body)[_FIRST_BYTES:])
        self._answered = True

    def _linger(self) -> None:
        """Say that nothing follows, and wait for a moment for the client to say so, too."""
        self._stream.allow(_LINGER_SECONDS)
        if isinstance(self._socket, ssl.SSLSocket):
            with suppress(OSError, ValueError):  # there was no handshake, or data came meanwhile
                self._stream.wait()
                self._socket.unwrap()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._stream.readinto(bytearray(_BUFFER_BYTES)):
                pass
