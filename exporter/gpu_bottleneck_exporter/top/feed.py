"""What a source shows, read in the background: keys work whatever the network does."""

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


class Feed:
    """The last result of a source."""

    def __init__(self, source: Source, interval_seconds: float) -> None:
        self._source = source
        self._interval = interval_seconds
        self._read_at = time.monotonic()
        self.latest = Latest(source.name)
        self.bug: Exception | None = None
        """What ended the thread, to be raised where it can be seen."""

    def start(self) -> None:
        """Read at each interval, in a thread that ends with the program."""
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def read(self) -> Latest:
        """Read once, now."""
        now = time.monotonic()
        try:
            self.latest = replace(self.latest, node=self._source.read(), error=None)
            self._read_at = time.monotonic()
        except ExporterError as error:
            since = self.latest.error_since if self.latest.error else now
            stale = now - self._read_at > max(_STALE_SECONDS, 3 * self._interval)
            node = None if stale else self.latest.node
            self.latest = replace(self.latest, node=node, error=f"{error}", error_since=since)
        return self.latest

    def _run(self) -> None:
        try:
            while True:
                self.read()
                time.sleep(self._interval)
        except Exception as error:  # noqa: BLE001 - raised again where it can be seen
            self.bug = error
