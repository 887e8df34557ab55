"""The HTTP server: uvicorn over sockets that are already open.

Measured against the other servers by `tests/bench/http_servers.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import uvicorn

from gpu_bottleneck_exporter.web.app import DEFAULT_TELEMETRY_PATH, make_app
from gpu_bottleneck_exporter.web.guard import Guard
from gpu_bottleneck_exporter.web.handshake import Handshakes
from gpu_bottleneck_exporter.web.listen import BACKLOG
from gpu_bottleneck_exporter.web.protocol import Limits, limited

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Sequence

    from gpu_bottleneck_exporter.web.content import Content
    from gpu_bottleneck_exporter.web.reload import WebConfigFile

_TICK_SECONDS = 1.0


class WebServer:
    """Serves a content until `stop`; one object serves once.

    Logging stays the caller's: uvicorn gets no logging set-up, and from it come
    errors only, so that strangers who send nonsense cannot fill the log.

    A web configuration file puts `guard.Guard` around the pages and, where it wants TLS,
    `handshake.Handshakes` below the connections.
    """

    def __init__(
        self,
        content: Content,
        sockets: Sequence[socket.socket],
        telemetry_path: str = DEFAULT_TELEMETRY_PATH,
        *,
        limits: Limits | None = None,
        web_config: WebConfigFile | None = None,
    ) -> None:
        """Prepares the server; nothing runs before `serve`.

        Args:
            content: What the pages say.
            sockets: Listening sockets, as from `listen.bind`. `serve` closes them.
            telemetry_path: Where scrapes go.
            limits: On what clients may hold; by default those of `Limits`.
            web_config: TLS, users and headers.

        Raises:
            ExporterError: If the telemetry path is not usable.
        """
        limits = limits or Limits()
        self._sockets = list(sockets)
        self._app = make_app(content, telemetry_path)
        self._guard = Guard(self._app, web_config) if web_config else None
        protocol = limited(limits)
        tls = web_config is not None and web_config.current().tls is not None
        self._handshakes = Handshakes(protocol, web_config) if web_config and tls else None
        # Each argument that is the default elsewhere is named where an environment
        # variable or an installed extra could otherwise change it.
        config = uvicorn.Config(
            self._guard or self._app,
            interface="asgi3",
            http=self._handshakes or protocol,  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            workers=1,
            proxy_headers=False,
            server_header=False,
            log_config=None,
            log_level="error",
            access_log=False,
            backlog=BACKLOG,
            timeout_keep_alive=limits.keep_alive,
            timeout_graceful_shutdown=limits.grace,
        )
        self._server = _Server(config, self._handshakes)

    @property
    def connections(self) -> int:
        """Connections that are open now."""
        if self._handshakes is not None:
            return len(self._handshakes.open)
        return len(self._server.server_state.connections)

    async def serve(self) -> None:
        """Serves until `stop` or cancellation; closes all its sockets and threads.

        A thread inside a call into the content ends after that call.
        """
        try:
            await self._server.serve(self._sockets)
        finally:
            self._app.close()
            if self._guard is not None:
                self._guard.close()
            await self._hang_up()

    def stop(self) -> None:
        """Lets `serve` end, soon; callable from any thread and from signal handlers."""
        self._server.exit()

    async def _hang_up(self) -> None:
        """Closes what uvicorn leaves open: after the grace period, and on cancellation."""
        for listener in getattr(self._server, "servers", ()):
            listener.close()
        for sock in self._sockets:
            sock.close()
        state = self._server.server_state
        for task in list(state.tasks):
            task.cancel()
        # Cancelled requests answer 503 before their connections go.
        await asyncio.gather(*state.tasks, return_exceptions=True)
        for connection in list(state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        if self._handshakes is not None:
            self._handshakes.hang_up()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and waking once a second, not ten times.

    The program has handlers of its own, and ten wakings were a fifth of its idle cost.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _woken: asyncio.Event

    def __init__(self, config: uvicorn.Config, handshakes: Handshakes | None) -> None:
        super().__init__(config)
        self._handshakes = handshakes

    async def main_loop(self) -> None:
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # 0: renew the Date header each time
            # Not asyncio.wait_for: it makes a task each time.
            alarm = self._loop.call_later(_TICK_SECONDS, self._woken.set)
            await self._woken.wait()
            self._woken.clear()
            alarm.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._accept_no_more()
        if self._handshakes is not None:
            self._handshakes.hang_up_resting()
        await super().shutdown(sockets)

    async def _accept_no_more(self) -> None:
        # Before listeners are closed: asyncio loses a connection that it is just accepting then.
        loop = asyncio.get_running_loop()
        for listener in self.servers:
            for sock in listener.sockets:
                loop.remove_reader(sock.fileno())
        await asyncio.sleep(0)

    def exit(self) -> None:
        """Let `serve` end, from any thread."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            # The loop may close between the two: then there is nothing left to wake.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
