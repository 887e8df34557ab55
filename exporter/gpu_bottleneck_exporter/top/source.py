"""Where the node document comes from: this machine's sampler, or another exporter."""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.model import Node
from gpu_bottleneck_exporter.nodeview.wire import MOST_BYTES, NODE_PATH, node_in
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

_TIMEOUT_SECONDS = 5.0
_WINDOW_SECONDS = 15.0
"""The span of the shares of this machine."""


class Local:
    """This machine, through our own sampler."""

    name = "this machine"

    def __init__(
        self, settings: Settings, open_driver: Callable[[], Driver], interval_seconds: float
    ) -> None:
        self._ended: list[str] = []
        self._sampler = Sampler(open_driver, enabled(settings), settings, self._ended.append)
        self._node = LocalNode(self._sampler, max(_WINDOW_SECONDS, 3 * interval_seconds))
        self._sampler.start()

    def read(self) -> Node:
        """The sampler's state. Raises ExporterError if it has ended."""
        if self._ended:
            raise ExporterError(self._ended[0])
        self._node.record()
        return self._node.read()

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()


class Remote:
    """Another exporter; connects directly, without a proxy, and follows no redirect."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """`url` may hold user:password. Raises SettingsError."""
        self._parts = parts = _parsed(url)
        self.name = parts.netloc.rpartition("@")[2]
        # Beside the metrics, whose path people have at hand.
        prefix = parts.path.rstrip("/").removesuffix(NODE_PATH).removesuffix("/metrics")
        self._path = prefix + NODE_PATH
        self._url = f"{parts.scheme}://{self.name}{self._path}"
        self._headers = {"Accept": "application/json", **_authorization(parts)}
        self._trusted = _trust(ca_file)

    def read(self) -> Node:
        """Ask it once. Raises ExporterError, in one sentence."""
        connection = self._connection()
        try:
            connection.request("GET", self._path, headers=self._headers)
            with connection.getresponse() as reply:
                body = reply.read(MOST_BYTES + 1)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ExporterError(f"cannot read {self._url}: {printable(_reason(error))}") from error
        finally:
            connection.close()
        if reply.status != HTTPStatus.OK:
            raise ExporterError(f"{self._url} answers {reply.status} {printable(reply.reason)}")
        if len(body) > MOST_BYTES:
            raise ExporterError(f"{self._url} answers with more than {MOST_BYTES >> 20} MiB")
        try:
            return node_in(body)
        except ValueError as error:
            raise ExporterError(f"{self._url} serves no node of this exporter") from error

    def close(self) -> None:
        """Does nothing: nothing runs in the background."""

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, port or 80, timeout=_TIMEOUT_SECONDS)
        return http.client.HTTPSConnection(
            host, port or 443, timeout=_TIMEOUT_SECONDS, context=self._trusted
        )


Source = Local | Remote


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        bare = url.rpartition("@")[2]  # without its password, for the terminal
        raise SettingsError(f"--url must be like http://node7:10170, not {bare!r}")
    return parts


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
