"""Accepts connections, no faster than others can make way for them.

asyncio's own servers accept whatever arrives. A crowd that reconnects as soon as it is closed would
then push out every client before its handshake is complete, and use a whole core to do so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence

from gpu_bottleneck_exporter.web.arrival import Arrival
from gpu_bottleneck_exporter.web.places import Places

logger = logging.getLogger(__name__)

_IN_ONE_GO = 16
"""Connections that may wait for their protocol at the same time; also how many are shed."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_SECONDS = 0.1
"""After a failed accept the socket stays readable: without a pause the loop would spin."""
_SILENCE_SECONDS = 60.0
"""Between two log lines about failed accepts."""


class Door:
    """Listening sockets and their new connections; for one event loop."""

    def __init__(
        self, sockets: Sequence[socket.socket], places: Places, arrival: Callable[[], Arrival]
    ) -> None:
        self._sockets = sockets
        self._places = places
        self._arrival = arrival
        self._loop = asyncio.get_running_loop()
        self._entering: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._silent_until = 0.0
        for sock in sockets:
            sock.setblocking(False)  # noqa: FBT003 - the socket's own interface

    def open(self) -> None:
        """Accept connections from now on."""
        self._later = None
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    async def shut(self) -> None:
        """Stop accepting; returns once all accepted connections have their protocol."""
        if self._later is not None:
            self._later.cancel()
        self._stop()
        await asyncio.gather(*self._entering)

    def _stop(self) -> None:
        for sock in self._sockets:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock)

    def _accept(self, sock: socket.socket) -> None:
        while len(self._entering) < _IN_ONE_GO:
            wait = self._places.wait(self._loop.time())
            if wait > 0:
                self._pause(wait)
                return
            try:
                connection, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._short(error)
                return
            connection.setblocking(False)  # noqa: FBT003 - the socket's own interface
            task = self._loop.create_task(self._enter(connection))
            self._entering.add(task)
            task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._arrival, connection)
        except OSError:  # the client has disconnected
            connection.close()

    def _pause(self, seconds: float) -> None:
        self._stop()
        self._later = self._loop.call_later(seconds, self.open)

    def _short(self, error: OSError) -> None:
        """Close some connections and pause: accept failed, usually for lack of descriptors."""
        if error.errno in _SHORTAGES:
            self._places.shed(_IN_ONE_GO)
        if self._loop.time() >= self._silent_until:
            self._silent_until = self._loop.time() + _SILENCE_SECONDS
            logger.error("Cannot accept a connection (%s); closing idle ones.", error.strerror)
        self._pause(_RETRY_SECONDS)
