"""TLS below the HTTP connections, with the same limits on what a client can hold.

asyncio's own TLS servers show a connection only after its handshake, so that silent
clients would be neither counted nor closed, and they keep one context for ever. Here a
connection counts from its first moment and gets the context of that moment.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.sslproto import SSLProtocol
from typing import Any

from gpu_bottleneck_exporter.web.protocol import LimitedProtocol, Limits
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.tls import Tls

_BUFFER_BYTES = 16 * 1024


class Handshakes:
    """Makes the connections of a TLS server; stands where uvicorn wants a protocol class."""

    def __init__(self, protocol: type[LimitedProtocol], file: WebConfigFile) -> None:
        self.open: set[TlsConnection] = set()
        self._protocol = protocol
        self._file = file

    def __call__(self, **arguments: Any) -> TlsConnection:  # noqa: ANN401 - uvicorn's own
        """A protocol for a connection that has just come."""
        tls = self._file.current().tls
        if tls is None:
            raise AssertionError("a file that had TLS always has")
        http = self._protocol(**arguments)
        http.admits = lambda: tls.admits(http.transport.get_extra_info("ssl_object"))
        return TlsConnection(http, tls, self.open)

    def hang_up(self) -> None:
        """Ends all connections at once."""
        for connection in list(self.open):
            connection.hang_up()

    def hang_up_resting(self) -> None:
        """Ends the connections that have no request in work."""
        for connection in list(self.open):
            connection.hang_up_resting()


class TlsConnection(SSLProtocol):
    """One connection, from before its handshake."""

    max_size = _BUFFER_BYTES
    """Of the buffer that each connection has; asyncio's 256 KiB would be 128 MiB for all."""

    _raw: asyncio.Transport | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, http: LimitedProtocol, tls: Tls, others: set[TlsConnection]) -> None:
        self.http = http
        self._limits: Limits = http.limits
        self._others = others
        times = {"ssl_handshake_timeout": self._limits.header}
        if sys.version_info >= (3, 11):
            # Counts while the end of a response is still being taken, too.
            times["ssl_shutdown_timeout"] = self._limits.write
        loop = asyncio.get_running_loop()
        super().__init__(loop, http, tls.context, None, server_side=True, **times)  # type: ignore[arg-type]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the handshake or, with too many connections, ends it at once."""
        if len(self._others) >= self._limits.connections:
            transport.abort()
            return
        self._raw = transport
        self._others.add(self)
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forgets the connection."""
        self._others.discard(self)
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Some of the response is unsent: the client has to take it in time."""
        super().pause_writing()
        self._stop_write_timer()
        loop = asyncio.get_running_loop()
        self._write_timer = loop.call_later(self._limits.write, self.hang_up)

    def resume_writing(self) -> None:
        """All is sent, so far."""
        self._stop_write_timer()
        super().resume_writing()

    def hang_up(self) -> None:
        """Ends the connection at once."""
        if self._raw is not None:
            self._raw.abort()

    def hang_up_resting(self) -> None:
        """Ends the connection if it has no request in work, without the client's consent."""
        http = self.http
        if http.transport is None:
            self.hang_up()
        elif self._raw and not self._write_timer and http.resting:
            http.transport.close()  # says so to the client,
            self._raw.close()  # and does not wait for its answer

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        send = getattr(self, "_process_outgoing", None)  # from 3.11 on
        if handshake_exc is not None and send is not None:
            send()  # the alert that says why; asyncio drops it
        super()._on_handshake_complete(handshake_exc)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
