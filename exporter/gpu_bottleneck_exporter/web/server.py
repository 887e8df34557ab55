"""The HTTP server: HTTP/1.1 by `http.server`, each connection in a thread of its own."""

from __future__ import annotations

import enum
import http.client
import io
import logging
import math
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import chain

from gpu_bottleneck_exporter.logthrottle import LogThrottle
from gpu_bottleneck_exporter.web.config import WebConfig
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.routes import Answer, Content, Routes, plain
from gpu_bottleneck_exporter.web.tls import admits
from gpu_bottleneck_exporter.web.users import Logins

log = logging.getLogger(__name__)

HEAD_BYTES = 16 * 1024
"""Of a request: Prometheus sends half a KiB, browsers with cookies of other sites a few."""
_BUFFER_BYTES = 2048
"""Read at a time: most requests at once, and 128 clients hold a quarter of a MiB."""
_LINGER_SECONDS = 0.5
"""To take what the client still sends: otherwise the kernel would reset, and drop the response."""
_RESET = struct.pack("ii", 1, 0)
"""Of SO_LINGER: forget at once what is not sent."""
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="gpu-bottleneck-exporter", charset="UTF-8"'}
_SHARE_OF_FILES = 8
"""Connections take no more than this part of the file descriptors."""
_LOOK_SECONDS = 0.5
"""Between two looks whose time is up."""
_PAUSE_SECONDS = 0.01
_FULL_SECONDS = 1.0
"""A new client waits for so long at most until one of those that ask all the time makes way."""
"""Between two looks whether somebody may make way: a fraction of `Limits.stay`."""
_SHORTAGE_SECONDS = 0.1
"""After a failed accept the next one may fail at once: without a pause the loop would spin."""
_UNPROTECTED = WebConfig()


@dataclass(frozen=True)
class Limits:
    """Bounds on connections: for how many seconds, and how many at once.

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


class WebServer:
    """Serves a content until `stop`; one object serves once."""

    def __init__(
        self,
        content: Content,
        listening: socket.socket,
        telemetry_path: str = "/metrics",
        *,
        limits: Limits | None = None,
        web_config: WebConfigFile | None = None,
    ) -> None:
        """Prepare the server; nothing runs before `serve`.

        Args:
            content: What the pages show.
            listening: A socket, as from `listen.bind`. `serve` closes it.
            telemetry_path: The path of the metrics.
            limits: On connections.
            web_config: TLS, users and headers.
        """
        self.routes = Routes(content, telemetry_path)
        self.limits = limits or Limits()
        self.logins = Logins()
        self.stopping = False
        self._looked_at = time.monotonic()
        self._listening = listening
        self._web_config = web_config
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._places = max(1, min(self.limits.connections, files // _SHARE_OF_FILES))
        self.connections: set[Connection] = set()
        """Those that are open now."""
        self._changed = threading.Condition()
        """Guards `connections`; notified when one ends, or has only its client to wait for."""
        self._throttle = LogThrottle(log)

    @property
    def active(self) -> WebConfig:
        """The web configuration in force."""
        return self._web_config.active if self._web_config else _UNPROTECTED

    def serve(self) -> None:
        """Serve until `stop`; does not wait for a call into the content that hangs."""
        self._listening.settimeout(_LOOK_SECONDS)
        with self._listening:
            while not self.stopping:
                self._looked_at = time.monotonic()
                try:
                    self._accept()
                except TimeoutError:
                    pass
                except (OSError, RuntimeError) as error:  # no more files, or no more threads
                    self._complain(error)
                else:
                    self._throttle.is_new("accept", None)
                self._hang_up_late()
        self._end()

    def stop(self) -> None:
        """Make `serve` end soon; callable from any thread and from signal handlers."""
        self.stopping = True
        with suppress(OSError):  # it has ended
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`

    def standstill(self, patience_seconds: float) -> str | None:
        """What has stopped, in one sentence; None if nothing has."""
        still = time.monotonic() - self._looked_at > patience_seconds
        return "nobody accepts connections" if still else None

    def answered(self) -> None:
        """Note that a connection, before its end, waits for its client alone."""
        with self._changed:
            self._changed.notify_all()

    def ended(self, connection: Connection) -> None:
        """Count the connection no longer."""
        with self._changed:
            self.connections.discard(connection)
            self._changed.notify_all()

    def _accept(self) -> None:
        """Wait for a connection, but not for long, and serve it."""
        sock, _ = self._listening.accept()
        self._make_way()
        try:
            if context := self.active.context:  # the handshake is made by its own thread
                sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(sock, self)
        except OSError:  # it has gone
            sock.close()
            return
        with self._changed:
            self.connections.add(connection)
        try:
            threading.Thread(target=connection.run, name="web", daemon=True).start()
        except RuntimeError:
            connection.close()
            raise

    def _make_way(self) -> None:
        """Have a place for one more: who has been without a complete request for longest goes.

        Whoever waits for the exporter stays, and everybody stays for a moment, or nobody would
        have time for a handshake, or for an answer that took the exporter long. Clients that ask
        again within that moment would hold all places for ever: they do so for a second only.
        """
        patient_until = time.monotonic() + _FULL_SECONDS
        with self._changed:
            while len(here := [one for one in self.connections if not one.gone]) >= self._places:
                now = time.monotonic()
                until = now - self.limits.stay if now < patient_until else now
                idle = [one for one in here if one.may_go(until)]
                if idle and (oldest := min(idle, key=lambda one: one.since)).since <= until:
                    oldest.hang_up()
                elif self.stopping:
                    return
                else:
                    self._changed.wait(_PAUSE_SECONDS)

    def _hang_up_late(self) -> None:
        now = time.monotonic()
        with self._changed:
            for one in self.connections:
                if one.deadline < now:
                    one.hang_up()

    def _complain(self, error: Exception) -> None:
        if not self.stopping and self._throttle.is_new("accept", f"{error}"):
            log.error("cannot accept a connection", {"err": error})
        time.sleep(_SHORTAGE_SECONDS)

    def _end(self) -> None:
        """Close connections, those in the middle of an answer after the grace period."""
        with self._changed:
            for one in self.connections:
                if one.phase is Phase.CLIENT:
                    one.hang_up()
            self._changed.wait_for(
                lambda: all(one.phase is Phase.CLIENT for one in self.connections),
                self.limits.grace,
            )
            for one in self.connections:
                one.hang_up()


class Phase(enum.Enum):
    """The side that is waited for."""

    CLIENT = enum.auto()
    """The exporter waits for a handshake or a request, or checks a password."""
    EXPORTER = enum.auto()
    """The client waits for the exporter to make its answer."""
    SENDING = enum.auto()
    """The exporter waits for the client to take its answer."""


class _Reader(io.BufferedReader):
    """Reads requests; the lines of a head may have so many bytes together."""

    _left = HEAD_BYTES

    def begin_head(self) -> None:
        """Expect the head of the next request."""
        self._left = HEAD_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        del size  # http.server's own limits are larger
        line = super().readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise http.client.LineTooLong("head")
        return line


class Connection(BaseHTTPRequestHandler):
    """A connection from its first byte to its last; `run` serves it in a thread of its own.

    It reads and writes without time limits of its own: the server hangs up when `deadline` is over.

    Attributes:
        phase: Who is waiting for whom.
        since: When it was accepted or its last request was complete, in monotonic seconds.
        ready: When the last answer was, in monotonic seconds; 0 before the first.
        deadline: When the client must have done what it is waited for.
        gone: Whether the server has hung up.
    """

    protocol_version = "HTTP/1.1"
    _answered = False

    def __init__(self, sock: socket.socket, server: WebServer) -> None:
        # Not the constructor of http.server, which would serve the connection to its end.
        self.phase = Phase.CLIENT
        self.since = time.monotonic()
        self.ready = 0.0
        self.gone = False
        self._socket = sock
        self._server = server
        self._reader = self.rfile = _Reader(sock.makefile("rb", buffering=0), _BUFFER_BYTES)
        self._allow(server.limits.head)

    def run(self) -> None:
        """Serve requests until either side closes the connection."""
        try:
            if self._is_let_in():
                self.handle()
        except OSError:
            pass  # the client has gone, is too slow, or does not speak TLS as it should
        except Exception:
            log.exception("answer failed after its beginning")
        finally:
            if self.phase is Phase.SENDING or (self.gone and not self._server.stopping):
                # Else the kernel would keep for minutes what the client does not take.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.phase = Phase.CLIENT
            self._server.answered()
            self._linger()
            self.close()

    def may_go(self, until: float) -> bool:
        """Whether it waits for nothing but an answer that was ready by `until`."""
        begins = self.phase is Phase.SENDING and self.ready > until
        return self.phase is not Phase.EXPORTER and not begins

    def hang_up(self) -> None:
        """Make `run` end soon, without waiting for the client; from any thread until `close`."""
        self.gone = True
        with suppress(OSError):
            # Not SSLSocket.shutdown, which would forget the encryption that `run` still uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, once nobody can hang up any more."""
        self._server.ended(self)
        self.rfile.close()
        self._socket.close()

    def _allow(self, seconds: float) -> None:
        """Give the client so long from now on."""
        self.deadline = time.monotonic() + seconds

    def _is_let_in(self) -> bool:
        """Whether the client may ask, after its handshake if there is TLS."""
        tls = self._server.active.tls
        if tls is None or not isinstance(self._socket, ssl.SSLSocket):
            return True
        self._socket.do_handshake()
        self._allow(self._server.limits.head)
        return admits(tls.client_allowed_sans, self._socket)

    def handle_one_request(self) -> None:
        """Answer one request; `close_connection` tells `handle` whether another may follow."""
        self.close_connection = True
        self.phase = Phase.CLIENT
        self.command = ""
        if self._answered:
            self._allow(self._server.limits.rest)
            if self._server.stopping or not self._reader.peek(1):
                return
            self._allow(self._server.limits.head)
        self._reader.begin_head()
        try:
            self.raw_requestline = self._reader.readline()
        except http.client.LineTooLong:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return
        if self.parse_request() and self._is_sound():
            self.since = time.monotonic()
            self.deadline = math.inf
            self._reply(self._answer())

    def handle_expect_100(self) -> bool:
        """Answer without asking for the body."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a malformed request, without repeating any of it."""
        del message, explain
        self._reply(plain(code, f"{HTTPStatus(code).phrase}."))

    def _is_sound(self) -> bool:
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

    def _answer(self) -> Answer:
        users, server = self._server.active.users, self._server
        said = self._header("Authorization")
        if users and not server.logins.right(users, said, lambda: not self.gone):
            return plain(401, "This page requires a user and a password.", _CHALLENGE)
        self.phase = Phase.EXPORTER
        return server.routes.answer(
            self.command,
            self.path.partition("?")[0],
            self._header("Accept"),
            self._header("Accept-Encoding"),
            self.path.partition("?")[2],
        )

    def _header(self, name: str) -> str:
        """A header's value, repeated ones joined with commas; "" if it is missing."""
        return ", ".join(self.headers.get_all(name, ()))

    def _reply(self, answer: Answer) -> None:
        """Send an answer, to HEAD without its body. After an error the connection is closed."""
        self.close_connection |= answer.status >= HTTPStatus.BAD_REQUEST or self._server.stopping
        parts: Iterator[bytes]
        if isinstance(answer.body, bytes):
            parts, framing = iter([answer.body]), {"Content-Length": str(len(answer.body))}
        elif self.request_version == "HTTP/1.0":  # the end of the connection is that of the body
            parts, framing, self.close_connection = answer.body, {}, True
        else:
            sized = (b"%x\r\n%b\r\n" % (len(part), part) for part in answer.body if part)
            parts, framing = chain(sized, [b"0\r\n\r\n"]), {"Transfer-Encoding": "chunked"}
        headers = {
            "Date": self.date_time_string(),
            "Content-Type": answer.content_type,
            **framing,
            "X-Content-Type-Options": "nosniff",
            **answer.headers,
            **self._server.active.headers,
            **({"Connection": "close"} if self.close_connection else {}),
        }
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.ready = time.monotonic()
        self.phase, left = Phase.SENDING, self._server.limits.response
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        for part in chain([head], () if self.command == "HEAD" else parts):
            self._allow(left)
            self._socket.sendall(part)
            left = self.deadline - time.monotonic()
            self.deadline = math.inf  # making the next part is not the client's time
        self._answered = True

    def _linger(self) -> None:
        """Say that nothing follows, and wait for a moment for the client to say so, too."""
        self._allow(_LINGER_SECONDS)
        with suppress(OSError, ValueError):  # there was no handshake, or data came meanwhile
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.unwrap()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_BUFFER_BYTES):
                pass
