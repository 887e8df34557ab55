"""The node document that `top` shows: of this machine's sampler, or of another exporter."""

from __future__ import annotations

import base64
import http.client
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.nodeview.build import FIRST_SECONDS, LocalNode
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import MOST_BYTES, NODE_PATH, node_in
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

_TIMEOUT_SECONDS = 5.0
"""For each step of an answer, which takes milliseconds."""
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
        self._node.judged_seconds = FIRST_SECONDS

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()


class Remote:
    """Another exporter; connects directly, without a proxy, and follows no redirect."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """`url`, of http or https, may hold user:password. Raises SettingsError for `ca_file`."""
        parts = urlsplit(url)
        self.name = parts.netloc.rpartition("@")[2]
        # Beside the metrics, whose path people have at hand.
        prefix = parts.path.rstrip("/").removesuffix(NODE_PATH).removesuffix("/metrics")
        self._path = prefix + NODE_PATH
        self._url = f"{parts.scheme}://{self.name}{self._path}"
        self._headers = {"Accept": "application/json", **_authorization(parts)}
        connection: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            connection = partial(http.client.HTTPSConnection, context=_trust(ca_file))
        self._connect = partial(connection, self.name, timeout=_TIMEOUT_SECONDS)

    def read(self) -> Node:
        """Ask it once. Raises ExporterError, in one sentence."""
        try:
            with closing(self._connect()) as connection:
                connection.request("GET", self._path, headers=self._headers)
                with connection.getresponse() as reply:
                    body = reply.read(MOST_BYTES + 1)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ExporterError(f"cannot read {self._url}: {printable(_reason(error))}") from error
        if reply.status != HTTPStatus.OK:
            raise ExporterError(f"{self._url} answers {reply.status} {printable(reply.reason)}")
        if len(body) > MOST_BYTES:
            raise ExporterError(f"{self._url} answers with more than {MOST_BYTES >> 20} MiB")
        try:
            return node_in(body)
        except ValueError as error:
            raise ExporterError(f"{self._url} serves no node of this exporter") from error

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
            if now - self._read_at > max(_STALE_SECONDS, 3 * self._interval):
                self.node = None
            self.error = f"{error}"

    def _run(self) -> None:
        try:
            while True:
                self.read()
                time.sleep(self._interval)
        except Exception as error:  # noqa: BLE001 - raised again where it can be seen
            self.bug = error


def _authorization(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or "it contains no certificate"
        raise SettingsError(f"--ca-file: cannot use {ca_file}: {reason}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{error.verify_message} (see --ca-file)"
    if isinstance(error, TimeoutError):
        return f"no answer within {_TIMEOUT_SECONDS:.0f} s"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{error}" or type(error).__name__
