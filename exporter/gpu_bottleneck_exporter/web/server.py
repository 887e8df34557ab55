"""The HTTP server: accepts connections, and serves each in a thread of its own."""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from contextlib import suppress

from gpu_bottleneck_exporter.web.config import WebConfig
from gpu_bottleneck_exporter.web.connection import Connection, Limits, Phase
from gpu_bottleneck_exporter.web.reload import Active, WebConfigFile
from gpu_bottleneck_exporter.web.routes import DEFAULT_TELEMETRY_PATH, Content, Routes
from gpu_bottleneck_exporter.web.users import Logins

logger = logging.getLogger(__name__)

_SHARE_OF_FILES = 8
"""Connections take no more than this part of the file descriptors."""
_LOOK_SECONDS = 0.5
"""Between two looks whose time is up."""
_SHORTAGE_SECONDS = 0.1
"""After a failed accept the next one may fail at once: without a pause the loop would spin."""
_SILENCE_SECONDS = 60.0
"""Between two log lines about that."""
_UNPROTECTED = Active(WebConfig(), None)


class WebServer:
    """Serves a content until `stop`; one object serves once."""

    def __init__(
        self,
        content: Content,
        listening: socket.socket,
        telemetry_path: str = DEFAULT_TELEMETRY_PATH,
        *,
        limits: Limits | None = None,
        web_config: WebConfigFile | None = None,
    ) -> None:
        """Prepare the server; nothing runs before `serve`.

        Args:
            content: What the pages show.
            listening: A socket, as from `listen.bind`. `serve` closes it.
            telemetry_path: The path of the metrics.
            limits: On connections.
            web_config: TLS, users and headers.
        """
        self.routes = Routes(content, telemetry_path)
        self.limits = limits or Limits()
        self.logins = Logins()
        self.stopping = False
        self._looked_at = time.monotonic()
        self._listening = listening
        self._web_config = web_config
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._places = max(1, min(self.limits.connections, files // _SHARE_OF_FILES))
        self._open: set[Connection] = set()
        self._changed = threading.Condition()
        """Guards `_open`; notified when a connection ends."""
        self._silent_until = 0.0

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    @property
    def active(self) -> Active:
        """The web configuration in force."""
        return self._web_config.active if self._web_config else _UNPROTECTED

    def serve(self) -> None:
        """Serve until `stop`; does not wait for a call into the content that hangs."""
        self._listening.settimeout(_LOOK_SECONDS)
        with self._listening:
            while not self.stopping:
                self._accept()
                self._hang_up_late()
        self._end()

    def stop(self) -> None:
        """Make `serve` end soon; callable from any thread and from signal handlers."""
        self.stopping = True
        with suppress(OSError):  # it has ended
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes `accept`

    def standstill(self, patience_seconds: float) -> str | None:
        """What has stopped, in one sentence; None if nothing has."""
        still = time.monotonic() - self._looked_at > patience_seconds
        return "nobody accepts connections" if still else None

    def ended(self, connection: Connection) -> None:
        """Count the connection no longer."""
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def _accept(self) -> None:
        """Wait for a connection, but not for long, and serve it."""
        self._looked_at = time.monotonic()
        try:
            sock, _ = self._listening.accept()
        except TimeoutError:
            return
        except OSError as error:
            self._complain(error)
            return
        self._make_way()
        try:
            tls = self.active.tls
            if tls is not None:  # the handshake is made by its own thread
                sock = tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(sock, self)
        except OSError:  # it has gone
            sock.close()
            return
        with self._changed:
            self._open.add(connection)
        try:
            threading.Thread(target=connection.run, name="web", daemon=True).start()
        except RuntimeError as error:  # no more threads
            connection.close()
            self._complain(error)

    def _make_way(self) -> None:
        """Have a place for one more: who has been without a complete request for longest goes.

        Whoever waits for the exporter stays, and everybody stays for a moment, or nobody would
        have time for a handshake.
        """
        with self._changed:
            while len(here := [one for one in self._open if not one.gone]) >= self._places:
                idle = (one for one in here if one.phase is not Phase.EXPORTER)
                oldest = min(idle, key=lambda one: one.since, default=None)
                pause = self.limits.stay + (oldest.since - time.monotonic() if oldest else 0)
                if oldest and pause <= 0:
                    oldest.hang_up()
                elif self.stopping:
                    return
                else:
                    self._changed.wait(pause)

    def _hang_up_late(self) -> None:
        now = time.monotonic()
        with self._changed:
            for one in self._open:
                if one.deadline < now and not one.gone:
                    one.hang_up()

    def _complain(self, error: Exception) -> None:
        if time.monotonic() >= self._silent_until and not self.stopping:
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
                lambda: all(one.phase is Phase.CLIENT for one in self._open), self.limits.grace
            )
            for one in self._open:
                one.hang_up()
