"""The HTTP server: accepts connections, and serves each in a thread of its own."""

from __future__ import annotations

import logging
import resource
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from gpu_bottleneck_exporter.web.connection import Connection, Limits, Phase, Site
from gpu_bottleneck_exporter.web.content import Content
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.routes import DEFAULT_TELEMETRY_PATH, Routes

logger = logging.getLogger(__name__)

_SHARE_OF_FILES = 8
"""Connections take no more than this part of the file descriptors."""
_SHORTAGE_SECONDS = 0.1
"""After a failed accept the socket stays readable: without a pause the loop would spin."""
_SILENCE_SECONDS = 60.0
"""Between two log lines about that."""


class WebServer:
    """Serves a content until `stop`; one object serves once."""

    def __init__(
        self,
        content: Content,
        sockets: Sequence[socket.socket],
        telemetry_path: str = DEFAULT_TELEMETRY_PATH,
        *,
        limits: Limits | None = None,
        web_config: WebConfigFile | None = None,
    ) -> None:
        """Prepare the server; nothing runs before `serve`.

        Args:
            content: What the pages show.
            sockets: Listening sockets, as from `listen.bind`. `serve` closes them.
            telemetry_path: The path of the metrics.
            limits: On connections.
            web_config: TLS, users and headers; `serve` closes it.
        """
        self._sockets = list(sockets)
        self._site = Site(Routes(content, telemetry_path), limits or Limits(), web_config)
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = self._site.limits.connections
        if files != resource.RLIM_INFINITY:
            most = max(1, min(most, files // _SHARE_OF_FILES))
        self._places = most
        self._open: set[Connection] = set()
        self._changed = threading.Condition()
        """Guards `_open`; notified when a connection ends."""
        self._wake, self._woken = socket.socketpair()
        self._silent_until = 0.0

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    def serve(self) -> None:
        """Serve until `stop`; closes all sockets.

        Does not wait for a call into the content that hangs.
        """
        file = self._site.web_config
        try:
            if file is not None:
                file.watch()
            self._accept_until_stopped()
        finally:
            for sock in (*self._sockets, self._wake, self._woken):
                sock.close()
            if file is not None:
                file.close()
            self._end()

    def reload(self) -> None:
        """Reread the web configuration; callable from any thread and from signal handlers."""
        if self._site.web_config is None:
            logger.info("Nothing to reload: there is no --web.config.file.")
        else:
            self._site.web_config.reload()

    def stop(self) -> None:
        """Make `serve` end soon; callable from any thread and from signal handlers."""
        self._site.stopping = True
        with suppress(OSError):  # it has ended
            self._wake.send(b"x")

    def _accept_until_stopped(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sock in (*self._sockets, self._woken):
                sock.setblocking(False)  # noqa: FBT003 - the socket's own interface
                selector.register(sock, selectors.EVENT_READ, sock)
            while not self._site.stopping:
                for key, _ in selector.select():
                    if key.data is not self._woken:
                        self._make_way()
                        self._accept(key.data)

    def _make_way(self) -> None:
        """Have a place for one more: who has been without a complete request for longest goes.

        Whoever waits for the exporter stays, and everybody stays for a moment, or nobody would
        have time for a handshake.
        """
        with self._changed:
            while len(here := [one for one in self._open if not one.gone]) >= self._places:
                idle = (one for one in here if one.phase is not Phase.EXPORTER)
                oldest = min(idle, key=lambda one: one.since, default=None)
                stay = self._site.limits.stay
                pause = oldest.since + stay - time.monotonic() if oldest else stay
                if oldest and pause <= 0:
                    oldest.hang_up()
                elif self._site.stopping:
                    return
                else:
                    self._changed.wait(pause)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._complain(error)
            return
        connection = Connection(sock, self._site, self._ended)
        with self._changed:
            self._open.add(connection)
        try:
            threading.Thread(target=connection.run, name="web", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._ended(connection)
            sock.close()
            self._complain(error)

    def _ended(self, connection: Connection) -> None:
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def _complain(self, error: Exception) -> None:
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SILENCE_SECONDS
            logger.error("Cannot accept a connection: %s.", error)
        time.sleep(_SHORTAGE_SECONDS)

    def _end(self) -> None:
        """Close connections, those in the middle of an answer after the grace period."""
        with self._changed:
            for one in self._open:
                if one.phase is Phase.CLIENT:
                    one.hang_up()
            self._changed.wait_for(
                lambda: all(one.phase is Phase.CLIENT for one in self._open),
                self._site.limits.grace,
            )
            for one in self._open:
                one.hang_up()
