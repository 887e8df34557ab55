"""uvicorn's HTTP/1.1 connection with limits on what a slow client can hold.

uvicorn closes idle keep-alive connections and nothing else: a client that sends half
a request or never reads its response keeps its connection, and its file
descriptor, for ever. Every state in which the exporter waits for the client has a
time limit here; only while it makes a response itself is there none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpu_bottleneck_exporter.web.answer import ARRIVAL

if TYPE_CHECKING:
    import asyncio

    from gpu_bottleneck_exporter.web.arrival import Arrival
    from gpu_bottleneck_exporter.web.tls import Tls

_UNSENT_BYTES = 16 * 1024
"""Of a response under TLS, before it counts as not taken."""


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, and how many clients may hold connections.

    Attributes:
        header: From connecting, or on a kept connection from the first byte, to the
            end of the request's head; under TLS from connecting to the end of the
            handshake, and as much again for the head. Also how long a connection rests
            that has not got what it asked for.
        write: For the client to take a response.
        keep_alive: Between a response and the next request's first byte, whole seconds.
            Longer than the usual scrape interval, so that Prometheus can reuse it.
        grace: For requests in work to end after `stop`, whole seconds.
        connections: Open at once; for the next one another makes way.
        stay: For each to hold its place at least, before it makes way.
    """

    header: float = 10.0
    write: float = 30.0
    keep_alive: int = 65
    grace: int = 3
    connections: int = 512
    stay: float = 1.0


class LimitedProtocol(H11Protocol):
    """HTTP on one connection, from its first byte."""

    _refused = False
    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        arrival: Arrival,
        limits: Limits,
        tls: Tls | None,
        **arguments: Any,  # noqa: ANN401 - uvicorn's own
    ) -> None:
        super().__init__(**arguments)
        # Pages find it in the scope's "state".
        self.app_state = {**self.app_state, ARRIVAL: arrival}
        self.limits = limits
        self._arrival = arrival
        self._tls = tls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the wait for a request."""
        super().connection_made(transport)
        if self._tls is None:
            # pause_writing is to come for the first unsent byte, not for the 65536th.
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
        """Whether no request is in work."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unread(self) -> bool:
        """Whether the client has to take some of a response before there is more to do."""
        return self._write_timer is not None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timers and gives the place back."""
        self._stop_request_timer()
        self._stop_write_timer()
        if self.timeout_keep_alive_task is not None:
            # Which uvicorn leaves after a reset: it would hold all of this for as long.
            self.timeout_keep_alive_task.cancel()
        self._arrival.connection_lost(exc)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; as long as they make no whole head the clock runs on.

        Bytes of a body that come after the response, to a 405 for instance, count
        likewise: dripping them cannot hold the connection either.
        """
        if self._refused:
            return  # Python 3.10 hands over what came with the handshake
        super().data_received(data)
        if self.resting:
            self._await_request()
        else:
            self._stop_request_timer()

    def on_response_complete(self) -> None:
        """Lets the connection rest, for long only if it got what it asked for."""
        self._arrival.answered()
        if not self.flow.write_paused:
            self._stop_write_timer()
        known = self._arrival.answers > 0
        self.timeout_keep_alive = self.limits.keep_alive if known else int(self.limits.header) or 1
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Some of the response is unsent: the client has to take all of it in time."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.write, self.transport.abort)

    def resume_writing(self) -> None:
        """All is sent that was written."""
        if self.resting:  # else the clock runs on: a response is written in pieces
            self._stop_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answers nonsense with 400, or hangs up where a response has begun.

        A broken body can follow a request that is already being answered; HTTP has no
        second response for that, and h11 would raise.
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
