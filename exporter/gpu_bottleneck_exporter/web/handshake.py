"""TLS below an HTTP connection, with the same limits on what a client can hold.

`SSLProtocol` is internal to asyncio and was rewritten in Python 3.11; hence the version checks.
"""

from __future__ import annotations

import asyncio
import inspect
import platform
import sys
from asyncio.sslproto import SSLProtocol

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.web.protocol import ClientLimits, LimitedProtocol, Place
from gpu_bottleneck_exporter.web.tls import Tls

_BUFFER_BYTES = 4 * 1024
_SOON_SECONDS = 0.001
"""If the time is up already: asyncio refuses a timeout of zero."""
_SINCE_3_11 = sys.version_info >= (3, 11)
_INNER = ("_on_handshake_complete", *(("_process_outgoing", "max_size") if _SINCE_3_11 else ()))
"""Internals of asyncio.sslproto used here, apart from the class and its arguments."""


def check_asyncio() -> None:
    """Raise ExporterError if asyncio's TLS in this Python is not what `TlsConnection` builds on.

    If asyncio no longer called one of these methods, a limit would silently disappear.
    """
    try:
        inspect.signature(SSLProtocol).bind(*(None,) * 4, server_side=True, **_times(1.0, 1.0))
        missing = [name for name in _INNER if not hasattr(SSLProtocol, name)]
    except TypeError:
        missing = ["its arguments"]
    if missing:
        version = platform.python_version()
        raise ExporterError(
            f"TLS does not work with Python {version} yet: its asyncio changed {missing[0]}"
        )


def _times(handshake: float, shutdown: float) -> dict[str, float]:
    return {
        "ssl_handshake_timeout": handshake,
        **({"ssl_shutdown_timeout": shutdown} if _SINCE_3_11 else {}),
    }


class TlsConnection(SSLProtocol):
    """One connection, from the first byte of its handshake."""

    max_size = _BUFFER_BYTES
    """Size of each connection's read buffer: enough for requests, where asyncio takes 256 KiB."""

    _raw: asyncio.Transport
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(
        self, arrival: Place, http: LimitedProtocol, tls: Tls, limits: ClientLimits
    ) -> None:
        self._arrival = arrival
        self._limits = limits
        loop = asyncio.get_running_loop()
        # The shutdown timeout also limits how long the client may take the end of a response.
        times = _times(max(arrival.head_by - loop.time(), _SOON_SECONDS), limits.write)
        super().__init__(loop, http, tls.context, None, server_side=True, **times)  # type: ignore[arg-type]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the handshake."""
        self._raw = transport
        # Makes the transport call pause_writing at the first unsent byte.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def take(self, first: bytes) -> None:
        """Take bytes that arrived before this became the connection's protocol."""
        if sys.version_info < (3, 11):
            self.data_received(first)
            return
        while first and not self._raw.is_closing():
            buffer = self.get_buffer(len(first))
            taken = min(len(first), len(buffer))
            buffer[:taken] = first[:taken]
            self.buffer_updated(taken)
            first = first[taken:]

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place back."""
        self._arrival.connection_lost(None)
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Part of the response is unsent: the client has to take it in time."""
        super().pause_writing()
        self._stop_write_timer()
        loop = asyncio.get_running_loop()
        self._write_timer = loop.call_later(self._limits.write, self._raw.abort)

    def resume_writing(self) -> None:
        """Everything written so far is sent."""
        self._stop_write_timer()
        super().resume_writing()

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        send = getattr(self, "_process_outgoing", None)  # from 3.11 on
        if handshake_exc is not None and send is not None:
            send()  # the alert with the reason, which asyncio would drop
        super()._on_handshake_complete(handshake_exc)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
