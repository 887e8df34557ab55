"""TLS below an HTTP connection, with the same limits on what a client can hold."""

from __future__ import annotations

import asyncio
import sys
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING

from gpu_bottleneck_exporter.web.protocol import LimitedProtocol, Limits
from gpu_bottleneck_exporter.web.tls import Tls

if TYPE_CHECKING:
    from gpu_bottleneck_exporter.web.arrival import Arrival

_BUFFER_BYTES = 4 * 1024
_SOON_SECONDS = 0.001


class TlsConnection(SSLProtocol):
    """One connection, from the first byte of its handshake."""

    max_size = _BUFFER_BYTES
    """Of the buffer that each connection has; enough for requests; asyncio's is 256 KiB."""

    _raw: asyncio.Transport | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, arrival: Arrival, http: LimitedProtocol, tls: Tls, limits: Limits) -> None:
        self._arrival = arrival
        self._limits = limits
        loop = asyncio.get_running_loop()
        times = {"ssl_handshake_timeout": max(arrival.head_by - loop.time(), _SOON_SECONDS)}
        if sys.version_info >= (3, 11):
            # Counts while the end of a response is still being taken, too.
            times["ssl_shutdown_timeout"] = self._limits.write
        super().__init__(loop, http, tls.context, None, server_side=True, **times)  # type: ignore[arg-type]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the handshake."""
        self._raw = transport
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def take(self, first: bytes) -> None:
        """Takes bytes that came before this was the connection's protocol."""
        if sys.version_info < (3, 11):
            self.data_received(first)
            return
        while first and self._raw is not None and not self._raw.is_closing():
            buffer = self.get_buffer(len(first))
            taken = min(len(first), len(buffer))
            buffer[:taken] = first[:taken]
            self.buffer_updated(taken)
            first = first[taken:]

    def connection_lost(self, exc: BaseException | None) -> None:
        """Gives the place back."""
        self._arrival.connection_lost(None)
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Some of the response is unsent: the client has to take it in time."""
        super().pause_writing()
        self._stop_write_timer()
        loop = asyncio.get_running_loop()
        self._write_timer = loop.call_later(self._limits.write, self._hang_up)

    def resume_writing(self) -> None:
        """All is sent, so far."""
        self._stop_write_timer()
        super().resume_writing()

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        send = getattr(self, "_process_outgoing", None)  # from 3.11 on
        if handshake_exc is not None and send is not None:
            send()  # the alert that says why; asyncio drops it
        super()._on_handshake_complete(handshake_exc)

    def _hang_up(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
