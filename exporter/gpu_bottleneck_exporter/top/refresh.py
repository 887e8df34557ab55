"""Reads a source in the background, so that keys work whatever the network does."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.top.source import Source

_STALE_SECONDS = 10.0
"""After so long without a new reading, the last one is no longer shown."""


@dataclass(frozen=True, slots=True)
class Latest:
    """What there is to show."""

    source: str
    node: Node | None = None
    error: str | None = None
    """Why there is no new reading; None while all is well."""
    error_since: float = 0.0
    """Monotonic seconds."""
    bug: BaseException | None = None


class Refresher:
    """The thread and its last result; a daemon, so it ends with the program."""

    def __init__(self, source: Source, interval_seconds: float) -> None:
        self._source = source
        self._interval = interval_seconds
        self.latest = Latest(source.name)
        self._read_at = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading; does not wait for a reading in progress."""
        self._stop.set()

    def read(self) -> Latest:
        """Read once, now, for callers without the thread."""
        now = time.monotonic()
        try:
            node = self._source.read()
        except ExporterError as error:
            self.latest = self._failed(str(error), now)
        else:
            self._read_at = time.monotonic()
            self.latest = replace(self.latest, node=node, error=None)
        return self.latest

    def _failed(self, error: str, now: float) -> Latest:
        since = self.latest.error_since if self.latest.error else now
        stale = now - self._read_at > max(_STALE_SECONDS, 3 * self._interval)
        node = None if stale else self.latest.node
        return replace(self.latest, node=node, error=error, error_since=since)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.read()
                self._stop.wait(self._interval)
        except BaseException as error:  # noqa: BLE001 - raised again where it can be seen
            self.latest = replace(self.latest, bug=error)
