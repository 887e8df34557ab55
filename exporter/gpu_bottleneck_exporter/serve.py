"""Running: the sampler in the background, the HTTP server in front, signals and the end."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import socket
from collections.abc import Callable, Sequence

from gpu_bottleneck_exporter.collectors import ALL
from gpu_bottleneck_exporter.collectors.base import Collector
from gpu_bottleneck_exporter.content import ExporterContent
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.web.reload import WebConfigFile

_ALLOCATIONS = 5_000
"""Net allocations between two looks for cycles; Python's own default is 700.

Errors make some, and so many objects may be in memory for nothing.
"""
_M_ARENA_MAX = -8
"""mallopt(3)."""


def enabled_collectors(settings: Settings) -> tuple[Collector, ...]:
    """The collectors that were not switched off."""
    return tuple(c for c in ALL if c.name not in settings.disabled_collectors)


def serve(
    settings: Settings,
    open_driver: Callable[[], Driver],
    sockets: Sequence[socket.socket],
    web_config: WebConfigFile | None = None,
    *,
    at_a_terminal: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP rereads the web configuration.

    Args:
        settings: Of the exporter.
        open_driver: How to get at the GPUs.
        sockets: Where clients come in.
        web_config: TLS, users and headers.
        at_a_terminal: Whether SIGHUP, which comes when a terminal is closed, is to end it.

    Raises:
        ExporterError: When the driver can only be used by a new process.
    """
    _share_one_heap()
    ending = (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if at_a_terminal else []))
    asyncio.run(_serve(settings, open_driver, sockets, web_config, ending))


def _share_one_heap() -> None:
    """Keep glibc from giving each thread a heap of its own: a thread per GPU would fill many a bit.

    They seldom allocate at the same time, as one Python runs at a time.
    """
    with contextlib.suppress(AttributeError):  # other C libraries have one heap anyway
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _spare_the_collector() -> None:
    """Let Python look for cycles seldom, and never among the modules.

    Readings make none; looking for them took a twentieth to a tenth of the watching
    thread's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)


async def _serve(
    settings: Settings,
    open_driver: Callable[[], Driver],
    sockets: Sequence[socket.socket],
    web_config: WebConfigFile | None,
    ending: Sequence[signal.Signals],
) -> None:
    # Imported late: uvicorn costs start-up time that `once` and `check` need not pay.
    from gpu_bottleneck_exporter.notify import reporting, supervisor  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.server import WebServer  # noqa: PLC0415

    fatal: list[str] = []
    boss = supervisor(os.environ)

    def stop(*_: object) -> None:
        if boss is not None:
            boss.tell("STOPPING=1")
        server.stop()

    def end(reason: str) -> None:
        fatal.append(reason)
        stop()

    collectors = enabled_collectors(settings)
    sampler = Sampler(open_driver, collectors, settings, end)
    content = ExporterContent(sampler, collectors, settings.telemetry_path, settings.runbook_base)
    server = WebServer(content, sockets, settings.telemetry_path, web_config=web_config)
    # Not the event loop's handlers: with it they would go, and a second signal would kill.
    signal.signal(signal.SIGHUP, lambda *_: server.reload())
    for number in ending:
        signal.signal(number, stop)
    sampler.start()
    content.recorder.start()
    _spare_the_collector()
    try:
        async with reporting(sampler, boss, settings.deadline_seconds):
            await server.serve()
    finally:
        content.recorder.stop()
        sampler.stop()
    if fatal:
        raise ExporterError(fatal[0])
