"""Reads a source in the background, so that keys work whatever the network does."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.nodeview.history import History
from gpu_bottleneck_exporter.nodeview.model import NodeView
from gpu_bottleneck_exporter.top.source import Source

WINDOW_SECONDS = 15.0
_STALE_SECONDS = 10.0
"""After so long without a new reading, the last one is no longer shown."""


@dataclass(frozen=True, slots=True)
class Latest:
    """What there is to show."""

    source: str
    window_seconds: float
    view: NodeView | None = None
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
        window = max(WINDOW_SECONDS, 3 * interval_seconds)
        self._history = History(window, window)
        self.latest = Latest(source.name, window)
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
            reading = self._source.read()
        except ExporterError as error:
            self.latest = self._failed(str(error), now)
        else:
            now = self._read_at = time.monotonic()
            self._history.add(now, reading)
            view = self._history.view(now, reading)
            self.latest = replace(self.latest, view=view, error=None)
        return self.latest

    def _failed(self, error: str, now: float) -> Latest:
        since = self.latest.error_since if self.latest.error else now
        stale = now - self._read_at > max(_STALE_SECONDS, 3 * self._interval)
        view = None if stale else self.latest.view
        return replace(self.latest, view=view, error=error, error_since=since)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.read()
                self._stop.wait(self._interval)
        except BaseException as error:  # noqa: BLE001 - raised again where it can be seen
            self.latest = replace(self.latest, bug=error)
