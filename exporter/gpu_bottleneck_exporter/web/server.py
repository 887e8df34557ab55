"""The HTTP server: uvicorn over sockets that are already open.

Measured against the other servers by `tests/bench/http_servers.py`.
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
from gpu_bottleneck_exporter.web.framing import OneLength
from gpu_bottleneck_exporter.web.guard import Guard
from gpu_bottleneck_exporter.web.listen import BACKLOG
from gpu_bottleneck_exporter.web.protocol import LimitedProtocol, Limits
from gpu_bottleneck_exporter.web.watch import WebConfigWatch

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from gpu_bottleneck_exporter.web.content import Content
    from gpu_bottleneck_exporter.web.reload import WebConfigFile

logger = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_FILES_ELSEWHERE = 128
"""Of the exporter itself, and of connections that are just being accepted and closed."""
_HEAD_BYTES = 16 * 1024
"""That a client can have kept for it before its request's head ends."""


class WebServer:
    """Serves a content until `stop`; one object serves once.

    Logging stays the caller's: uvicorn gets no logging set-up, and from it come
    errors only, so that strangers who send nonsense cannot fill the log.

    Below the HTTP connections are `arrival.Arrivals`; a web configuration file puts
    `guard.Guard` around the pages and, where it wants TLS, `handshake` between the two.
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
        self._watch = WebConfigWatch(web_config) if web_config else None
        self._guard = Guard(self._app, self._watch) if self._watch else None
        tls = web_config is not None and web_config.active.tls is not None
        self._arrivals = Arrivals(_possible(limits), self._watch if tls else None)
        # Each argument that is the default elsewhere is named where an environment
        # variable or an installed extra could otherwise change it.
        config = uvicorn.Config(
            OneLength(self._guard or self._app),
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
        """Connections that are open now."""
        return len(self._arrivals.open)

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
            if self._watch is not None:
                self._watch.close()
            await self._hang_up()

    def reload(self) -> None:
        """Reads the web configuration again; callable from any thread and signal handlers."""
        self._server.soon(self._reload)

    def _reload(self) -> None:
        if self._watch is None:
            logger.info("Nothing to read again: there is no --web.config.file.")
        else:
            self._reloading = asyncio.ensure_future(self._watch.reload())

    def stop(self) -> None:
        """Lets `serve` end, soon; callable from any thread and from signal handlers."""
        self._server.exit()

    async def _hang_up(self) -> None:
        """Closes what uvicorn leaves open: after the grace period, and on cancellation."""
        await self._server.shut()
        for sock in self._sockets:
            sock.close()
        state = self._server.server_state
        for task in list(state.tasks):
            task.cancel()
        # Cancelled requests answer 503 before their connections go.
        await asyncio.gather(*state.tasks, return_exceptions=True)
        self._arrivals.hang_up()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, and waking once a second, not ten times.

    The program has handlers of its own, and ten wakings were a fifth of its idle cost.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _door: Door | None = None

    def __init__(self, config: uvicorn.Config, arrivals: Arrivals) -> None:
        super().__init__(config)
        self._arrivals = arrivals
        self._early: list[Callable[[], object]] = []
        self._wake: Callable[[], object] = bool

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # the door is ours
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
        while not await self.on_tick(0):  # 0: renew the Date header each time
            self._arrivals.rush.look(len(self._arrivals.open))
            # Not asyncio.wait_for: it makes a task each time.
            alarm = self._loop.call_later(_TICK_SECONDS, woken.set)
            await woken.wait()
            woken.clear()
            alarm.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.shut()
        self._arrivals.hang_up_resting()
        await super().shutdown(sockets)

    async def shut(self) -> None:
        """Accept no more; once is enough."""
        if self._door is not None:
            await self._door.shut()

    def exit(self) -> None:
        """Let `serve` end, from any thread."""
        self.should_exit = True
        self.soon(self._wake)

    def soon(self, work: Callable[[], object]) -> None:
        """Do `work` on the event loop, once that runs and unless it has ended; from any thread."""
        if self._loop is None:
            self._early.append(work)
        elif not self._loop.is_closed():
            # The loop may close between the two: then there is nothing left to wake.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(work)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _possible(limits: Limits) -> Limits:
    """The limits, with no more connections than half of the files that can be spared."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    spared = max(files // 8, (files - _FILES_ELSEWHERE) // 2)
    return replace(limits, connections=min(limits.connections, spared))
