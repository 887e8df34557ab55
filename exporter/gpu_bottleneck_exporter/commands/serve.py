"""The `serve` command: content, sampler, HTTP server, signals, shutdown."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import NoReturn

import click

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.commands.notify import Supervisor, reporting
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.exposition.render import Exposition
from gpu_bottleneck_exporter.jobs.ledger import Ledger
from gpu_bottleneck_exporter.jobs.store import claim
from gpu_bottleneck_exporter.jsontext import dumps
from gpu_bottleneck_exporter.nodeview.build import LocalNode
from gpu_bottleneck_exporter.nodeview.wire import document
from gpu_bottleneck_exporter.pod import in_a_pod
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.web.listen import bind
from gpu_bottleneck_exporter.web.reload import WebConfigFile
from gpu_bottleneck_exporter.web.server import WebServer

log = logging.getLogger(__name__)


class ExporterContent:
    """The exporter as `web.routes.Content`."""

    def __init__(self, sampler: Sampler, settings: Settings, ledger: Ledger) -> None:
        self._sampler = sampler
        self._ledger = ledger
        self._settings = settings
        self._exposition = Exposition(sampler, enabled(settings))
        self.recorder = LocalNode(sampler)
        # Clients within a second share a response, and its memory.
        self._page, self._document = map(lru_cache(maxsize=1), (self._status_page, self._node))

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The result of a scrape, and its content type."""
        return self._exposition.render(accept)

    def status_page(self) -> bytes:
        """The status page."""
        return self._page(int(time.monotonic()))

    def _status_page(self, _: int) -> bytes:
        # Imported late: it takes a megabyte and is rarely used.
        from gpu_bottleneck_exporter.web.status.page import status_page  # noqa: PLC0415

        page = status_page(
            self.recorder.read(),
            telemetry_path=self._settings.telemetry_path,
            runbooks=self._settings.runbook_base,
        )
        return page.encode(errors="replace")

    def node(self) -> bytes:
        """The node document."""
        return self._document(int(time.monotonic()))

    def _node(self, _: int) -> bytes:
        return f"{dumps(document(self.recorder.read()))}\n".encode()

    def jobs(self, since: float) -> Iterator[bytes]:
        """Jobs that ended after `since` or run, in parts."""
        return self._ledger.documents(since)

    def job(self, name: str) -> bytes | None:
        """The job with id `name`."""
        text = self._ledger.document(name)
        return text.encode() if text else None

    def sample_stacks(self, uuid: str) -> str | None:
        """Sample stacks for a minute. Returns the error, if any."""
        if self._sampler.lines is None:
            return "Start the exporter with --collector.stacks to sample stacks."
        if uuid not in {gpu.identity.uuid for gpu in self._sampler.state().gpus}:
            return "There is no such GPU."
        self._sampler.lines.request(uuid)
        return None

    def healthy(self) -> tuple[bool, str]:
        """Liveness of the sampler, without the driver, which no restart repairs."""
        standstill = self._sampler.standstill()
        return standstill is None, standstill or "the sampler is running"

    def ready(self) -> tuple[bool, str]:
        """Readiness: every GPU was read once, or there is no driver."""
        return self._sampler.ready, self._sampler.status


def listening(settings: Settings) -> tuple[socket.socket, WebConfigFile | None]:
    """Bind the socket and print its address, load the web configuration, lock the state file.

    Raises SettingsError if one of them fails.
    """
    file = settings.web_config_file
    web_config = WebConfigFile(Path(file)) if file else None
    if settings.jobs_state_file:
        claim(settings.jobs_state_file)
    listener = bind(settings.listen_address)
    scheme = "https" if web_config and web_config.active.tls else "http"
    host, port = listener.getsockname()[:2]
    if host in ("::", "0.0.0.0"):  # noqa: S104 - compared, not bound
        # A pod's log is read elsewhere.
        host = socket.gethostname() if in_a_pod() else "localhost"
    host = f"[{host}]" if ":" in host else host
    base = f"{scheme}://{host}:{port}"
    with contextlib.suppress(OSError):  # serve even if the log's disk is full
        click.echo(f"status page on {base}/\nserving on {base}{settings.telemetry_path}", err=True)
    return listener, web_config


def serve(
    settings: Settings,
    open_driver: Callable[[], Driver],
    listener: socket.socket,
    web_config: WebConfigFile | None = None,
    *,
    at_a_terminal: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP rereads the web configuration.

    Args:
        settings: Settings of the exporter.
        open_driver: Opens the driver.
        listener: The socket to serve on.
        web_config: TLS, users and headers.
        at_a_terminal: Whether to exit on SIGHUP, which a closed terminal sends.

    Raises:
        ExporterError: If using the driver takes a new process.
    """
    _share_one_heap()
    ending = (signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if at_a_terminal else []))
    fatal: list[str] = []

    def end(reason: str) -> None:
        fatal.append(reason)
        server.stop()

    ledger = Ledger(settings)
    sampler = Sampler(open_driver, enabled(settings), settings, end, [ledger.enqueue])
    content = ExporterContent(sampler, settings, ledger)
    server = WebServer(content, listener, settings.telemetry_path, web_config=web_config)
    nothing = partial(log.info, "nothing to reload: there is no --web.config.file")
    reread = web_config.reload if web_config else nothing
    signal.signal(signal.SIGHUP, lambda *_: reread())
    for number in ending:
        signal.signal(number, lambda *_: server.stop())
    ledger.start(sampler)
    sampler.start()
    content.recorder.start()
    _spare_the_collector()
    try:
        with reporting(sampler, server, Supervisor(os.environ), settings.deadline_seconds):
            server.serve()
    finally:
        sampler.stop()
        ledger.stop()
    if fatal:
        raise ExporterError(fatal[0])


def leave() -> NoReturn:
    """Exit without Python's finalization.

    It would abort a thread in bcrypt's Rust code, and await the driver.
    """
    logging.shutdown()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # either may be closed
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(0)


def _share_one_heap() -> None:
    """Have all threads share one heap: glibc would half fill one each."""
    m_arena_max = -8  # mallopt(3)
    with contextlib.suppress(AttributeError):  # other C libraries have only one heap
        ctypes.CDLL(None).mallopt(m_arena_max, 1)


def _spare_the_collector() -> None:
    """Run the cycle collector rarely, and never over the modules.

    Only errors create cycles, and the search took 5 to 10 % of the host sampler's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000)
