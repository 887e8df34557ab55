"""uvicorn's HTTP/1.1 connection with limits on what a slow client can hold.

uvicorn closes idle keep-alive connections and nothing else: a client that sends half a request or
never reads its response keeps its connection, and its file descriptor, forever. Here, every state
in which the exporter waits for the client has a time limit; only while it makes a response itself
is there none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_bottleneck_exporter.web.answer import ARRIVAL

if TYPE_CHECKING:
    import asyncio

    from gpu_bottleneck_exporter.web.tls import Tls

_UNSENT_BYTES = 16 * 1024
"""Under TLS, more unsent bytes than this start the time limit for taking a response."""


@dataclass(frozen=True)
class ClientLimits:
    """How long, in seconds, and how many clients may hold connections.

    Attributes:
        header: From connecting, or on a kept connection from the first byte, to the end of the
            request's head. Under TLS from connecting to the end of the handshake, and as long
            again for the head. Also how long a connection may rest that never got what it
            asked for.
        write: For the client to take a response.
        keep_alive: Between a response and the next request's first byte, whole seconds. Longer
            than the usual scrape interval, so that Prometheus can reuse the connection.
        grace: For requests in progress to end after `stop`, whole seconds.
        connections: Open at once; after that, another one makes way for each new one.
        stay: How long each keeps its place at least before it makes way.
    """

    header: float = 10.0
    write: float = 30.0
    keep_alive: int = 65
    grace: int = 3
    connections: int = 512
    stay: float = 1.0


class Place(Protocol):
    """What the protocols of a connection know of its place (`arrival.Arrival`)."""

    head_by: float
    """The deadline for the first request's head, by the event loop's clock."""
    answers: int

    def answered(self) -> None:
        """A response is complete."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""


class LimitedProtocol(H11Protocol):
    """HTTP on one connection, from its first byte."""

    _refused = False
    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        arrival: Place,
        limits: ClientLimits,
        tls: Tls | None,
        **arguments: Any,  # noqa: ANN401 - uvicorn's own
    ) -> None:
        super().__init__(**arguments)
        # The applications find it in the scope's "state".
        self.app_state = {**self.app_state, ARRIVAL: arrival}
        self.limits = limits
        self._arrival = arrival
        self._tls = tls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the wait for a request."""
        super().connection_made(transport)
        if self._tls is None:
            # Makes the transport call pause_writing at the first unsent byte, not after 64 KiB.
            transport.set_write_buffer_limits(high=0)
            self._await_request(self._arrival.head_by)
        elif self._tls.admits(transport.get_extra_info("ssl_object")):
            transport.set_write_buffer_limits(high=_UNSENT_BYTES, low=0)
            self._await_request()
        else:
            self._refused = True
            transport.abort()

    @property
    def resting(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unread(self) -> bool:
        """Whether the exporter is waiting for the client to take a response."""
        return self._write_timer is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers and give the place back."""
        self._stop_request_timer()
        self._stop_write_timer()
        if self.timeout_keep_alive_task is not None:
            # uvicorn leaves it running after a reset, which would keep all of this in memory.
            self.timeout_keep_alive_task.cancel()
        self._arrival.connection_lost(exc)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; until they complete a head, the time limit keeps running.

        The same holds for a body that arrives after its response, a 405 for instance: dripping
        it cannot hold the connection either.
        """
        if self._refused:
            return  # Python 3.10 still delivers what came with the handshake
        super().data_received(data)
        if self.resting:
            self._await_request()
        else:
            self._stop_request_timer()

    def on_response_complete(self) -> None:
        """Let the connection rest, for long only if it has got what it asked for."""
        self._arrival.answered()
        if not self.flow.write_paused:
            self._stop_write_timer()
        known = self._arrival.answers > 0
        # uvicorn starts its timer from this: whole seconds, at least one.
        self.timeout_keep_alive = self.limits.keep_alive if known else int(self.limits.header) or 1
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Part of the response is unsent: the client has to take all of it in time."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write, self.transport.abort)

    def resume_writing(self) -> None:
        """Everything written so far is sent."""
        if self.resting:  # else the limit keeps running: more pieces follow
            self._stop_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request with 400, or hang up if a response has begun.

        A broken body can follow a request that is already being answered. HTTP has no second
        response for that, and h11 would raise.
        """
        if self.conn.our_state is h11.IDLE:
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _await_request(self, until: float | None = None) -> None:
        if self._request_timer is None and not self.transport.is_closing():
            until = until or self.loop.time() + self.limits.header
            self._request_timer = self.loop.call_at(until, self.transport.abort)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
