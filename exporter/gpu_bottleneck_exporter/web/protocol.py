"""uvicorn's HTTP/1.1 connection with limits on what a slow client can hold.

uvicorn closes idle keep-alive connections and nothing else: a client that sends half
a request or never reads its response keeps its connection, and its file
descriptor, for ever. Every state in which the exporter waits for the client has a
time limit here; only while it makes a response itself is there none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


@dataclass(frozen=True)
class Limits:
    """How long, in seconds, and how many clients may hold connections.

    Attributes:
        header: From connecting, or on a kept connection from the first byte, to the
            end of the request's head; under TLS as much again for the handshake.
        write: For the client to take what was written to it.
        keep_alive: Between a response and the next request's first byte, whole seconds.
            Longer than the usual scrape interval, so that Prometheus can reuse it.
        grace: For requests in work to end after `stop`, whole seconds.
        connections: Open at once; the next one is closed as it comes.
    """

    header: float = 10.0
    write: float = 30.0
    keep_alive: int = 65
    grace: int = 3
    connections: int = 512


class LimitedProtocol(H11Protocol):
    """One connection; `limited` makes the class that uvicorn gets."""

    limits = Limits()
    admits: Callable[[], bool] | None = None
    """Whether the client's certificate is one of those that may come; asked once, under TLS."""
    _refused = False
    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the wait for a request or, with too many connections, ends it at once."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.abort()
            return
        if self.admits is None:
            # pause_writing is to come for the first unsent byte, not for the 65536th.
            transport.set_write_buffer_limits(high=0)
        elif not self.admits():
            self._refused = True
            transport.abort()
            return
        self._await_request()

    @property
    def resting(self) -> bool:
        """Whether no request is in work."""
        return self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timers."""
        self._stop_request_timer()
        self._stop_write_timer()
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

    def pause_writing(self) -> None:
        """Some of the response is unsent: the client has to take it in time."""
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.limits.write, self.transport.abort)

    def resume_writing(self) -> None:
        """All is sent."""
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

    def _await_request(self) -> None:
        if self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(self.limits.header, self.transport.abort)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def limited(limits: Limits) -> type[LimitedProtocol]:
    """The protocol class with these limits; uvicorn takes a class, not an instance."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
