"""Connections from their first moment: who holds a place before a byte has come.

A connection that says nothing costs a socket and this: neither an HTTP parser nor a TLS
state is made before the first byte. Under TLS it gets the context of that moment, while
asyncio's own TLS servers keep one for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gpu_bottleneck_exporter.web.address import neighbourhood
from gpu_bottleneck_exporter.web.handshake import TlsConnection
from gpu_bottleneck_exporter.web.memory import AfterTheRush
from gpu_bottleneck_exporter.web.places import Places
from gpu_bottleneck_exporter.web.protocol import LimitedProtocol, Limits
from gpu_bottleneck_exporter.web.tls import Tls
from gpu_bottleneck_exporter.web.watch import WebConfigWatch

_FIRST_BYTES = 16 * 1024


class Arrivals:
    """Makes the connections of a server, and knows them."""

    def __init__(self, limits: Limits, secured_by: WebConfigWatch | None) -> None:
        """Prepares for connections.

        Args:
            limits: On what clients may hold.
            secured_by: What gives TLS contexts; None for a server without TLS.
        """
        self.limits = limits
        self.secured_by = secured_by
        self.places = Places(limits.connections, limits.stay)
        self.open: set[Arrival] = set()
        self.rush = AfterTheRush()
        self.buffer = bytearray(_FIRST_BYTES)

    def __call__(self, **arguments: Any) -> Arrival:  # noqa: ANN401 - uvicorn's own
        """A protocol for a connection that has just come."""
        return Arrival(self, arguments)

    def hang_up(self) -> None:
        """Ends all connections at once."""
        for arrival in list(self.open):
            arrival.hang_up()

    def hang_up_resting(self) -> None:
        """Ends the connections on which no request is in work."""
        for arrival in list(self.open):
            arrival.hang_up_resting()


class Arrival(asyncio.BufferedProtocol):
    """One connection: its place for all its life, its protocol until the first byte."""

    transport: asyncio.Transport
    http: LimitedProtocol | None = None
    welcome = False
    """Whether the request in work gets what it asks for."""
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
        """Takes a place and starts the wait for the first byte."""
        self.transport = transport
        self.address = neighbourhood(str((transport.get_extra_info("peername") or [""])[0]))
        self._timer = self._loop.call_at(self.head_by, transport.abort)
        self._arrivals.open.add(self)
        self._arrivals.rush.came(len(self._arrivals.open))
        self._arrivals.places.enter(self)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - a hint
        """One buffer for all: what came into it is taken out at once."""
        return self._arrivals.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """The first bytes: makes the connection what it is to be, and hands them over."""
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
        """Gives the place back; called by the protocols that come after, too."""
        self._timer.cancel()
        self._arrivals.open.discard(self)
        self._arrivals.places.leave(self)
        self.http = None  # which knows this: without a circle memory comes back at once

    @property
    def owed(self) -> bool:
        """Whether the exporter is making an answer, and nobody waits for the client."""
        http = self.http
        return http is not None and not http.resting and not http.unread

    def answered(self) -> None:
        """A response is complete; a good one is remembered."""
        if self.welcome:
            self._arrivals.places.answered(self, self._loop.time())
        self.welcome = False

    def hang_up(self) -> None:
        """Ends the connection at once."""
        self.transport.abort()

    def hang_up_resting(self) -> None:
        """Ends the connection if no request is in work, without the client's consent."""
        http = self.http
        if http is None or http.transport is None:
            self.hang_up()
        elif http.transport is not self.transport and http.resting and not http.unread:
            http.transport.close()  # under TLS: says so to the client,
            self.transport.close()  # and does not wait for its answer

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
