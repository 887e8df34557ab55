"""The HTTP server: uvicorn on sockets that are already open.

`tests/bench/http_servers.py` compares it with other servers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from gpu_bottleneck_exporter.web.app import DEFAULT_TELEMETRY_PATH, make_app
from gpu_bottleneck_exporter.web.arrival import Arrivals
from gpu_bottleneck_exporter.web.door import Door
from gpu_bottleneck_exporter.web.framing import one_length
from gpu_bottleneck_exporter.web.guard import Guard
from gpu_bottleneck_exporter.web.handshake import check_asyncio
from gpu_bottleneck_exporter.web.listen import BACKLOG
from gpu_bottleneck_exporter.web.protocol import ClientLimits, LimitedProtocol
from gpu_bottleneck_exporter.web.watch import WebConfigWatch

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from gpu_bottleneck_exporter.web.content import Content
    from gpu_bottleneck_exporter.web.reload import WebConfigFile

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_FILES_ELSEWHERE = 128
"""Descriptors of the exporter itself, and of connections just being accepted or closed."""
_HEAD_BYTES = 16 * 1024
"""Of a request's head that may be buffered for a client before it is complete."""


class WebServer:
    """Serves a content until `stop`; one object serves once.

    Logging is up to the caller: uvicorn gets no logging configuration and logs errors only, so
    that malformed requests from strangers cannot fill the log.

    `arrival.Arrivals` sits below the HTTP connections. A web configuration file puts
    `guard.Guard` around the pages and, if it asks for TLS, `handshake` below HTTP.
    """

    def __init__(
        self,
        content: Content,
        sockets: Sequence[socket.socket],
        telemetry_path: str = DEFAULT_TELEMETRY_PATH,
        *,
        limits: ClientLimits | None = None,
        web_config: WebConfigFile | None = None,
    ) -> None:
        """Prepare the server; nothing runs before `serve`.

        Args:
            content: What the pages show.
            sockets: Listening sockets, as from `listen.bind`. `serve` closes them.
            telemetry_path: The path of the metrics.
            limits: On connections; by default those of `ClientLimits`.
            web_config: TLS, users and headers.

        Raises:
            ExporterError: If the telemetry path is not usable, or the configuration asks for TLS
                and this Python does not fit (`handshake.check_asyncio`).
        """
        limits = limits or ClientLimits()
        self._sockets = list(sockets)
        self._app = make_app(content, telemetry_path)
        self._watch = WebConfigWatch(web_config) if web_config else None
        self._guard = Guard(self._app, self._watch) if self._watch else None
        tls = web_config is not None and web_config.active.tls is not None
        if tls:
            check_asyncio()
        self._arrivals = Arrivals(_possible(limits), self._watch if tls else None)
        # Defaults are spelled out where an environment variable or an installed extra could
        # change them.
        config = uvicorn.Config(
            one_length(self._guard or self._app),
            interface="asgi3",
            http=LimitedProtocol,
            ws="none",
            lifespan="off",
            workers=1,
            proxy_headers=False,
            server_header=False,
            log_config=None,
            log_level="error",
            access_log=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_keep_alive=limits.keep_alive,
            timeout_graceful_shutdown=limits.grace,
        )
        self._server = _Server(config, self._arrivals)
        self._reloading: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._arrivals.open)

    async def serve(self) -> None:
        """Serve until `stop` or cancellation; closes all sockets and ends the threads.

        Does not wait for a call into the content that is in progress.
        """
        try:
            await self._server.serve(self._sockets)
        finally:
            self._app.close()
            if self._guard is not None:
                self._guard.close()
            if self._watch is not None:
                self._watch.close()
            await self._hang_up()

    def reload(self) -> None:
        """Reread the web configuration; callable from any thread and from signal handlers."""
        self._server.soon(self._reload)

    def _reload(self) -> None:
        if self._watch is None:
            logger.info("Nothing to reload: there is no --web.config.file.")
        else:
            self._reloading = asyncio.ensure_future(self._watch.reload())

    def stop(self) -> None:
        """Make `serve` end soon; callable from any thread and from signal handlers."""
        self._server.exit()

    async def _hang_up(self) -> None:
        """Close what uvicorn leaves open after the grace period and on cancellation."""
        await self._server.shut()
        for sock in self._sockets:
            sock.close()
        state = self._server.server_state
        for task in list(state.tasks):
            task.cancel()
        # Cancelled requests answer 503 before their connections are closed.
        await asyncio.gather(*state.tasks, return_exceptions=True)
        self._arrivals.hang_up()
        await asyncio.sleep(0)  # transports close their sockets in the loop's next turn


class _Server(uvicorn.Server):
    """uvicorn's server with our `Door`, without signal handlers, waking once a second.

    The program has its own handlers, and uvicorn's ten wake-ups a second were a fifth of its
    idle cost.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _door: Door | None = None

    def __init__(self, config: uvicorn.Config, arrivals: Arrivals) -> None:
        super().__init__(config)
        self._arrivals = arrivals
        self._early: list[Callable[[], object]] = []
        self._wake: Callable[[], object] = bool  # a no-op until the loop runs

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # no sockets: `Door` accepts the connections
        arguments = {
            "config": self.config,
            "server_state": self.server_state,
            "app_state": self.lifespan.state,
        }
        arrive = partial(self._arrivals, **arguments)
        self._door = Door(sockets or [], self._arrivals.places, arrive)
        self._door.open()

    async def main_loop(self) -> None:
        woken = asyncio.Event()
        self._wake = woken.set
        self._loop = asyncio.get_running_loop()
        for work in self._early:
            work()
        while not await self.on_tick(0):  # 0, as uvicorn renews the Date header every tenth tick
            self._arrivals.rush.look(len(self._arrivals.open))
            # Not asyncio.wait_for, which makes a task each time before Python 3.12.
            alarm = self._loop.call_later(_TICK_SECONDS, woken.set)
            await woken.wait()
            woken.clear()
            alarm.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.shut()
        self._arrivals.hang_up_resting()
        await super().shutdown(sockets)

    async def shut(self) -> None:
        """Stop accepting; may be called again."""
        if self._door is not None:
            await self._door.shut()

    def exit(self) -> None:
        """Make `serve` end; callable from any thread."""
        self.should_exit = True
        self.soon(self._wake)

    def soon(self, work: Callable[[], object]) -> None:
        """Run `work` on the event loop once it runs, unless it has ended; from any thread."""
        if self._loop is None:
            self._early.append(work)
        elif not self._loop.is_closed():
            # The loop may close after the check: then there is nothing left to wake.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(work)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _possible(limits: ClientLimits) -> ClientLimits:
    """The limits, with connections for at most half of the spare file descriptors."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    spared = max(files // 8, (files - _FILES_ELSEWHERE) // 2)
    return replace(limits, connections=min(limits.connections, spared))
