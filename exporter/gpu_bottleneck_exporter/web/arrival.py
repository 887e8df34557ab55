"""Connections from the moment they are accepted: each holds a place before its first byte.

A silent connection costs a socket and an `Arrival`: the HTTP parser and the TLS state are created
on the first byte. Under TLS it gets the context in force at that moment, while asyncio's own TLS
servers keep one context forever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gpu_bottleneck_exporter.web.address import neighbourhood
from gpu_bottleneck_exporter.web.handshake import TlsConnection
from gpu_bottleneck_exporter.web.memory import AfterTheRush
from gpu_bottleneck_exporter.web.places import Places
from gpu_bottleneck_exporter.web.protocol import ClientLimits, LimitedProtocol
from gpu_bottleneck_exporter.web.tls import Tls
from gpu_bottleneck_exporter.web.watch import WebConfigWatch

_FIRST_BYTES = 16 * 1024
"""Size of the buffer that all connections share for their first read."""


class Arrivals:
    """Creates the connections of a server and keeps track of them."""

    def __init__(self, limits: ClientLimits, secured_by: WebConfigWatch | None) -> None:
        """Prepare for connections.

        Args:
            limits: How many connections clients may hold, and for how long.
            secured_by: The source of TLS contexts; None for a server without TLS.
        """
        self.limits = limits
        self.secured_by = secured_by
        self.places = Places(limits.connections, limits.stay)
        self.open: set[Arrival] = set()
        self.rush = AfterTheRush()
        self.buffer = bytearray(_FIRST_BYTES)

    def __call__(self, **arguments: Any) -> Arrival:  # noqa: ANN401 - uvicorn's own
        """The protocol for a new connection."""
        return Arrival(self, arguments)

    def hang_up(self) -> None:
        """Close all connections at once."""
        for arrival in list(self.open):
            arrival.hang_up()

    def hang_up_resting(self) -> None:
        """Close the connections that have no request in progress."""
        for arrival in list(self.open):
            arrival.hang_up_resting()


class Arrival(asyncio.BufferedProtocol):
    """One connection: holds its place until the end, and is its protocol until the first byte."""

    transport: asyncio.Transport
    http: LimitedProtocol | None = None
    welcome = False
    """Whether the current request gets what it asks for."""
    _timer: asyncio.TimerHandle
    _shaking: asyncio.Task[None] | None = None

    def __init__(self, arrivals: Arrivals, arguments: dict[str, Any]) -> None:
        self._arrivals = arrivals
        self._arguments = arguments
        self._loop = asyncio.get_running_loop()
        self.address = ""
        self.answers = 0
        self.came = self.since = self._loop.time()
        self.head_by = self.came + arrivals.limits.header

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place and start the wait for the first byte."""
        self.transport = transport
        self.address = neighbourhood(str((transport.get_extra_info("peername") or [""])[0]))
        self._timer = self._loop.call_at(self.head_by, transport.abort)
        self._arrivals.open.add(self)
        self._arrivals.rush.came(len(self._arrivals.open))
        self._arrivals.places.enter(self)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - a hint
        """One buffer for all connections: `buffer_updated` copies the bytes out at once."""
        return self._arrivals.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the first bytes to an HTTP or TLS protocol, which takes over the connection."""
        first = bytes(self._arrivals.buffer[:nbytes])
        self._timer.cancel()
        if self._arrivals.secured_by is None:
            self.http = self._speak(None)
            self.transport.set_protocol(self.http)
            self.http.connection_made(self.transport)
            self.http.data_received(first)
        else:
            self.transport.pause_reading()
            self._shaking = self._loop.create_task(self._shake(self._arrivals.secured_by, first))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        """Give the place back; the protocols that take over call this, too."""
        self._timer.cancel()
        self._arrivals.open.discard(self)
        self._arrivals.places.leave(self)
        self.http = None  # breaks the reference cycle, which frees the memory at once

    @property
    def owed(self) -> bool:
        """Whether the exporter is making an answer, rather than waiting for the client."""
        http = self.http
        return http is not None and not http.resting and not http.unread

    def answered(self) -> None:
        """A response is complete; counts it if it was a good one."""
        if self.welcome:
            self._arrivals.places.answered(self, self._loop.time())
        self.welcome = False

    def hang_up(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def hang_up_resting(self) -> None:
        """Close the connection if no request is in progress, without waiting for the client.

        Resting connections without TLS are left to uvicorn's own shutdown.
        """
        http = self.http
        if http is None or http.transport is None:
            self.hang_up()
        elif http.transport is not self.transport and http.resting and not http.unread:
            http.transport.close()  # under TLS: tells the client,
            self.transport.close()  # without waiting for its answer

    def _speak(self, tls: Tls | None) -> LimitedProtocol:
        return LimitedProtocol(self, self._arrivals.limits, tls, **self._arguments)

    async def _shake(self, config: WebConfigWatch, first: bytes) -> None:
        tls = (await config.fresh()).tls
        if self.transport.is_closing():
            return
        if tls is None:
            raise AssertionError("a file that had TLS always has")
        self.http = self._speak(tls)
        connection = TlsConnection(self, self.http, tls, self._arrivals.limits)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)
        connection.take(first)
        self.transport.resume_reading()
