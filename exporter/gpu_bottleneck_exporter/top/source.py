"""The node document that `top` shows: of this machine's sampler, or of another exporter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError
from gpu_bottleneck_exporter.fetch import Server
from gpu_bottleneck_exporter.nodeview.build import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import MOST_BYTES, NODE_PATH, node_in
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

_WINDOW_SECONDS = 15.0
"""The span of the shares of this machine."""
_STALE_SECONDS = 10.0
"""After so long without a new reading, the last one is no longer shown."""


class Local:
    """This machine, through our own sampler."""

    name = "this machine"

    def __init__(
        self, settings: Settings, open_driver: Callable[[], Driver], interval_seconds: float
    ) -> None:
        self._ended: list[str] = []
        self._sampler = Sampler(open_driver, enabled(settings), settings, self._ended.append)
        window = max(_WINDOW_SECONDS, 3 * interval_seconds)
        self._node = LocalNode(self._sampler, window, judged_seconds=0.0)
        self._sampler.start()

    def read(self) -> Node:
        """The sampler's state. Raises ExporterError if it has ended."""
        if self._ended:
            raise ExporterError(self._ended[0])
        self._node.record()
        return self._node.read()

    def settle(self) -> None:
        """Give no verdict before the first window is full: who watches can wait for it."""
        self._node.settle()

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()


class Remote:
    """Another exporter."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """`url`, of http or https, may hold user:password. Raises SettingsError for `ca_file`."""
        # Beside the metrics, whose path people have at hand.
        self._server = Server(url, ca_file, (NODE_PATH, "/metrics"))
        self.name = self._server.name

    def read(self) -> Node:
        """Ask it once. Raises ExporterError, in one sentence."""
        body = self._server.get(NODE_PATH, MOST_BYTES)
        try:
            return node_in(body)
        except ValueError as error:
            told = f"{self._server.address(NODE_PATH)} serves no node of this exporter"
            raise ExporterError(told) from error

    def settle(self) -> None:
        """Does nothing: an exporter settles by itself."""

    def close(self) -> None:
        """Does nothing: nothing runs in the background."""


Source = Local | Remote


class Feed:
    """What a source shows, read in the background: keys work whatever the network does."""

    def __init__(self, source: Source, interval_seconds: float) -> None:
        self.source = source
        self.node: Node | None = None
        """The last reading; None before the first, and once it is too old to be shown."""
        self.error: str | None = None
        """Why there is no new reading; None while all is well."""
        self.error_since = 0.0
        """Monotonic seconds."""
        self.bug: Exception | None = None
        """What ended the thread, to be raised where it can be seen."""
        self._interval = interval_seconds
        self._read_at = time.monotonic()

    def start(self) -> None:
        """Read at each interval, in a thread that ends with the program."""
        self.source.settle()
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def read(self) -> None:
        """Read once, now."""
        now = time.monotonic()
        try:
            self.node, self.error = self.source.read(), None
            self._read_at = time.monotonic()
        except ExporterError as error:
            if self.error is None:
                self.error_since = now
            if time.monotonic() - self._read_at > max(_STALE_SECONDS, 3 * self._interval):
                self.node = None
            self.error = f"{error}"

    def _run(self) -> None:
        try:
            while True:
                self.read()
                time.sleep(self._interval)
        except Exception as error:  # noqa: BLE001 - raised again where it can be seen
            self.bug = error
