"""An HTTP/1.1 server on `http.server`, with a thread per connection."""

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
from gpu_bottleneck_exporter.web.users import Authenticator

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
"""Bound on a request's head: Prometheus sends 0.5 KiB, browsers a few."""
_BUFFER_BYTES = 2048
"""Size of reads: most requests fit, and 128 clients take 0.25 MiB."""
_MAX_FULL_SECONDS = 1.0
"""Time after which clients evict connections before `min_lifetime`."""


@dataclass(frozen=True)
class Limits:
    """The bounds on connections, in seconds and in number.

    Attributes:
        request_timeout: From connecting, or on an idle connection from the first byte, to the end
            of the request. Under TLS it applies to the handshake and to the first request.
        response_timeout: For the client to receive a response.
        keep_alive: Between a response and the next request's first byte. Longer than the usual
            scrape interval, so that Prometheus can reuse the connection.
        shutdown_grace: For requests in progress to end after `stop`.
        connections: Open at once; beyond that, each new one evicts an idle one.
        min_lifetime: Before eviction, so that a handshake can end.
    """

    request_timeout: float = 10.0
    response_timeout: float = 30.0
    keep_alive: float = 65.0
    shutdown_grace: float = 3.0
    connections: int = 128
    min_lifetime: float = 0.25


class WebServer:
    """Serves a content once, until `stop`."""

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
            content: Content of the pages.
            listening: A listening socket, which `serve` closes.
            telemetry_path: The path of the metrics.
            limits: Bounds on connections.
            web_config: TLS, users and headers.
        """
        self.routes = Routes(content, telemetry_path)
        self.limits = limits or Limits()
        self.authenticator = Authenticator()
        self.stopping = False
        self._accepting_at = time.monotonic()
        self._listening = listening
        self._web_config = web_config
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # An eighth of the file descriptors.
        self._max_connections = max(1, min(self.limits.connections, files // 8))
        self.connections: set[HttpConnection] = set()
        self._changed = threading.Condition()
        """Guards `connections`; notified when one closes or waits for its client alone."""
        self._throttle = LogThrottle(log)

    @property
    def active(self) -> WebConfig:
        """The active web configuration."""
        return self._web_config.active if self._web_config else WebConfig()

    def serve(self) -> None:
        """Serve until `stop`; does not await a content that hangs."""
        self._listening.settimeout(0.5)  # the interval of checks for passed deadlines
        with self._listening:
            while not self.stopping:
                self._accepting_at = time.monotonic()
                try:
                    self._accept()
                except TimeoutError:
                    pass
                except (OSError, RuntimeError) as error:  # out of files or threads
                    self._back_off(error)
                else:
                    self._throttle.is_new("accept", None)
                self._close_overdue()
        self._shut_down()

    def stop(self) -> None:
        """Make `serve` end soon; callable from any thread and from signal handlers."""
        self.stopping = True
        with suppress(OSError):  # already closed
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`

    def standstill(self, timeout_seconds: float) -> str | None:
        """A sentence if the accept loop has stalled, else None."""
        stalled = time.monotonic() - self._accepting_at > timeout_seconds
        return "the accept loop has stalled" if stalled else None

    def notify_answered(self) -> None:
        """Report that a connection waits for its client alone."""
        with self._changed:
            self._changed.notify_all()

    def remove(self, connection: HttpConnection) -> None:
        """Report that a connection is being closed."""
        with self._changed:
            self.connections.discard(connection)
            self._changed.notify_all()

    def _accept(self) -> None:
        sock, _ = self._listening.accept()
        self._evict_idle()
        try:
            if context := self.active.context:  # the connection's thread makes the handshake
                sock = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = HttpConnection(sock, self)
        except OSError:  # closed by the client
            sock.close()
            return
        with self._changed:
            self.connections.add(connection)
        try:
            threading.Thread(target=connection.run, name="web", daemon=True).start()
        except RuntimeError:
            connection.close()
            raise

    def _evict_idle(self) -> None:
        """Close the connection that has been idle longest, if all are in use.

        It retains connections whose response is being rendered and, for `min_lifetime`, new ones
        and fresh responses. After `_MAX_FULL_SECONDS` the latter may be evicted, too, lest busy
        clients retain all.
        """
        full_until = time.monotonic() + _MAX_FULL_SECONDS
        with self._changed:
            while (
                len(peers := [peer for peer in self.connections if not peer.gone])
                >= self._max_connections
            ):
                now = time.monotonic()
                until = now - self.limits.min_lifetime if now < full_until else now
                idle = [peer for peer in peers if peer.is_evictable(until)]
                if idle and (oldest := min(idle, key=lambda peer: peer.since)).since <= until:
                    oldest.hang_up()
                elif self.stopping:
                    return
                else:
                    self._changed.wait(0.01)  # a fraction of `min_lifetime`

    def _close_overdue(self) -> None:
        now = time.monotonic()
        with self._changed:
            for connection in self.connections:
                if connection.deadline < now:
                    connection.hang_up()

    def _back_off(self, error: Exception) -> None:
        if not self.stopping and self._throttle.is_new("accept", f"{error}"):
            log.error("cannot accept a connection", {"err": error})
        time.sleep(0.1)  # the next `accept` may fail at once

    def _shut_down(self) -> None:
        """Close connections, after the grace period if in a response."""
        with self._changed:
            for connection in self.connections:
                if connection.phase is Phase.CLIENT:
                    connection.hang_up()
            self._changed.wait_for(
                lambda: all(peer.phase is Phase.CLIENT for peer in self.connections),
                self.limits.shutdown_grace,
            )
            for connection in self.connections:
                connection.hang_up()


class Phase(enum.Enum):
    """The side that the connection waits for."""

    CLIENT = enum.auto()
    """A handshake or a request, including the check of a password."""
    EXPORTER = enum.auto()
    """The rendering of a response."""
    SENDING = enum.auto()
    """The client's receipt of a response."""


class _RequestReader(io.BufferedReader):
    """Reads requests, with a bound on the total size of a head."""

    _remaining_bytes = MAX_HEAD_BYTES

    def begin_head(self) -> None:
        """Start the head of the next request."""
        self._remaining_bytes = MAX_HEAD_BYTES

    def readline(self, size: int | None = -1) -> bytes:
        del size  # http.server's own limits are larger
        line = super().readline(self._remaining_bytes + 1)
        self._remaining_bytes -= len(line)
        if self._remaining_bytes < 0:
            raise http.client.LineTooLong("head")
        return line


class HttpConnection(BaseHTTPRequestHandler):
    """A client's connection, which `run` serves in a thread of its own.

    Reads and writes have no timeouts: the server closes the connection at `deadline`.

    Attributes:
        phase: The side that it waits for.
        since: Time of acceptance or of the last complete request, in monotonic seconds.
        ready: Time of the last response, in monotonic seconds; 0 before the first.
        deadline: Time limit for the client, in monotonic seconds.
        gone: Whether the server has closed it.
    """

    protocol_version = "HTTP/1.1"
    _answered = False

    def __init__(self, sock: socket.socket, server: WebServer) -> None:
        # http.server's constructor would serve the connection to its end.
        self.phase = Phase.CLIENT
        self.since = time.monotonic()
        self.ready = 0.0
        self.gone = False
        self._socket = sock
        self._server = server
        self._reader = self.rfile = _RequestReader(sock.makefile("rb", buffering=0), _BUFFER_BYTES)
        self._set_timeout(server.limits.request_timeout)

    def run(self) -> None:
        """Serve requests until either side closes the connection."""
        try:
            if self._handshake():
                self.handle()
        except OSError:
            pass  # the client has closed, timed out or failed the handshake
        except Exception:
            log.exception("answer failed after its beginning")
        finally:
            if self.phase is Phase.SENDING or (self.gone and not self._server.stopping):
                # Reset: the kernel would buffer unread data for minutes.
                no_linger = struct.pack("ii", 1, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            self.phase = Phase.CLIENT
            self._server.notify_answered()
            self._linger()
            self.close()

    def is_evictable(self, until: float) -> bool:
        """Whether no response is being rendered, and none being sent was ready after `until`."""
        fresh = self.phase is Phase.SENDING and self.ready > until
        return self.phase is not Phase.EXPORTER and not fresh

    def hang_up(self) -> None:
        """Make `run` end soon, without awaiting the client; from any thread until `close`."""
        self.gone = True
        with suppress(OSError):
            # SSLSocket.shutdown would drop the encryption that `run` still uses.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, after which `hang_up` is not called."""
        self._server.remove(self)
        self.rfile.close()
        self._socket.close()

    def _set_timeout(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds

    def _handshake(self) -> bool:
        tls = self._server.active.tls
        if tls is None or not isinstance(self._socket, ssl.SSLSocket):
            return True
        self._socket.do_handshake()
        self._set_timeout(self._server.limits.request_timeout)
        return admits(tls.client_allowed_sans, self._socket)

    def handle_one_request(self) -> None:
        """Serve one request; `handle` goes on unless `close_connection` is set."""
        self.close_connection = True
        self.phase = Phase.CLIENT
        self.command = ""
        if self._answered:
            self._set_timeout(self._server.limits.keep_alive)
            if self._server.stopping or not self._reader.peek(1):
                return
            self._set_timeout(self._server.limits.request_timeout)
        self._reader.begin_head()
        try:
            self.raw_requestline = self._reader.readline()
        except http.client.LineTooLong:
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)
            return
        if self.parse_request() and self._is_valid():
            self.since = time.monotonic()
            self.deadline = math.inf
            self._reply(self._answer())

    def handle_expect_100(self) -> bool:
        """Respond without requesting the body."""
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject a malformed request without quoting it."""
        del message, explain
        self._reply(plain(code, f"{HTTPStatus(code).phrase}."))

    def _is_valid(self) -> bool:
        """Whether the request is well-formed; bodies are not read.

        After a body the connection is closed, against request smuggling (RFC 9112, 6.1).
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
        login = self._header("Authorization")
        if users and not server.authenticator.check(users, login, lambda: not self.gone):
            challenge = 'Basic realm="gpu-bottleneck-exporter", charset="UTF-8"'
            sentence = "This page requires a user and a password."
            return plain(401, sentence, {"WWW-Authenticate": challenge})
        self.phase = Phase.EXPORTER
        return server.routes.answer(
            self.command,
            self.path.partition("?")[0],
            self._header("Accept"),
            self._header("Accept-Encoding"),
            self.path.partition("?")[2],
        )

    def _header(self, name: str) -> str:
        """Value of a header, repeated ones joined with commas; "" if absent."""
        return ", ".join(self.headers.get_all(name, ()))

    def _reply(self, answer: Answer) -> None:
        """Send a response, to HEAD without its body; close the connection after an error."""
        self.close_connection |= answer.status >= HTTPStatus.BAD_REQUEST or self._server.stopping
        parts: Iterator[bytes]
        if isinstance(answer.body, bytes):
            parts, framing = iter([answer.body]), {"Content-Length": str(len(answer.body))}
        elif self.request_version == "HTTP/1.0":  # the end of the connection ends the body
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
        self.phase, remaining = Phase.SENDING, self._server.limits.response_timeout
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        for part in chain([head], () if self.command == "HEAD" else parts):
            self._set_timeout(remaining)
            self._socket.sendall(part)
            remaining = self.deadline - time.monotonic()
            self.deadline = math.inf  # rendering the next part does not count
        self._answered = True

    def _linger(self) -> None:
        """Send the end of the stream and drain the client's, or the kernel may drop it."""
        self._set_timeout(0.5)
        with suppress(OSError, ValueError):  # no handshake, or pending data
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.unwrap()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_BUFFER_BYTES):
                pass
