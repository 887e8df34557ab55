"""VictoriaMetrics on a loopback port, which keeps its data in a folder across restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemon import HOST, daemon, free_port
from support.prometheus import Prometheus
from support.tools import require

PACKAGE = "victoria-metrics"


@contextmanager
def victoria_metrics(folder: Path, *flags: str, port: int | None = None) -> Iterator[Prometheus]:
    """The running server; its query API is that of Prometheus."""
    port = port or free_port()
    command = [
        require("victoria-metrics", PACKAGE),
        f"-storageDataPath={folder / 'engine'}",
        f"-httpListenAddr={HOST}:{port}",
        "-search.disableCache",
        "-memory.allowedBytes=256MB",
        "-loggerLevel=WARN",
        *flags,
    ]
    with daemon(command, port, "/health", folder / "engine.log") as pid:
        yield Prometheus(port, pid)
