"""Sources of the node that `top` shows: this machine or another exporter."""

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
from gpu_bottleneck_exporter.nodeview.wire import MAX_DOCUMENT_BYTES, NODE_PATH, node_in
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings


class Local:
    """This machine, by a sampler of our own."""

    name = "this machine"

    def __init__(
        self, settings: Settings, open_driver: Callable[[], Driver], interval_seconds: float
    ) -> None:
        self._ended: list[str] = []
        self._sampler = Sampler(open_driver, enabled(settings), settings, self._ended.append)
        window = max(15.0, 3 * interval_seconds)
        self._node = LocalNode(self._sampler, window, judged_seconds=0.0)
        self._sampler.start()

    def read(self) -> Node:
        """The sampler's state. Raises ExporterError if it has ended."""
        if self._ended:
            raise ExporterError(self._ended[0])
        self._node.record()
        return self._node.read()

    def settle(self) -> None:
        """Withhold verdicts until the first window is full."""
        self._node.settle()

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()


class Remote:
    """Another exporter."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """`url` may have user:password. Raises SettingsError for `ca_file`."""
        # /metrics is accepted, too: its URL is at hand.
        self._server = Server(url, ca_file, (NODE_PATH, "/metrics"))
        self.name = self._server.name

    def read(self) -> Node:
        """The exporter's node. Raises ExporterError."""
        body = self._server.get(NODE_PATH, MAX_DOCUMENT_BYTES)
        try:
            return node_in(body)
        except ValueError as error:
            url = self._server.address(NODE_PATH)
            raise ExporterError(f"{url} serves no node of this exporter") from error

    def settle(self) -> None:
        """Do nothing: the exporter settles itself."""

    def close(self) -> None:
        """Do nothing: nothing runs in the background."""


Source = Local | Remote


class Feed:
    """Reads a source in the background, so that the network never blocks keys."""

    def __init__(self, source: Source, interval_seconds: float) -> None:
        self.source = source
        self.node: Node | None = None
        """Last reading; None when 10 s and three intervals old."""
        self.error: str | None = None
        """Error of the last reading; None if it succeeded."""
        self.error_since = 0.0
        """Monotonic seconds of the first of these errors."""
        self.bug: Exception | None = None
        """Exception that ended the thread."""
        self._interval = interval_seconds
        self._read_at = time.monotonic()

    def start(self) -> None:
        """Read at each interval, in a daemon thread."""
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
            if time.monotonic() - self._read_at > max(10, 3 * self._interval):
                self.node = None
            self.error = f"{error}"

    def _run(self) -> None:
        try:
            while True:
                self.read()
                time.sleep(self._interval)
        except Exception as error:  # noqa: BLE001 - raised again by the screen
            self.bug = error
