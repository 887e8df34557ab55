"""Where the node document comes from: this machine's sampler, or another exporter."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

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
_METRICS = "/metrics"


class Source(Protocol):
    """One node."""

    name: str
    """For the heading."""

    def read(self) -> Node:
        """The node now. Raises ExporterError, in one sentence, if it cannot be read."""
        ...

    def close(self) -> None:
        """Stop what runs in the background."""
        ...


class Local:
    """This machine, through our own sampler."""

    def __init__(
        self, settings: Settings, open_driver: Callable[[], Driver], interval_seconds: float
    ) -> None:
        self.name = "this machine"
        self._ended: list[str] = []
        self._sampler = Sampler(open_driver, enabled(settings), settings, self._ended.append)
        self._node = LocalNode(self._sampler, max(_WINDOW_SECONDS, 3 * interval_seconds))
        self._sampler.start()

    def read(self) -> Node:
        """The sampler's state."""
        if self._ended:
            raise ExporterError(self._ended[0])
        self._node.record()
        return self._node.read()

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()


class Remote:
    """Another exporter, through its node document; connects directly, without a proxy."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """`url` may hold user:password. Raises ExporterError."""
        parts = _parsed(url)
        self.name = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, self.name, _path(parts.path), parts.query, ""))
        self._headers = {"Accept": "application/json", **_authorization(parts)}
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=_trust(ca_file)),
            _NoRedirect(),
        )

    def read(self) -> Node:
        """Ask it once."""
        body = self._body()
        if len(body) > MOST_BYTES:
            raise ExporterError(f"{self._url} answers with more than {MOST_BYTES >> 20} MiB")
        try:
            return node_in(body)
        except ValueError as error:
            raise ExporterError(f"{self._url} serves no node of this exporter") from error

    def close(self) -> None:
        """Does nothing: nothing runs in the background."""

    def _body(self) -> bytes:
        request = urllib.request.Request(self._url, headers=self._headers)  # noqa: S310 - http(s) only, see _parsed
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as reply:
                body: bytes = reply.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                why = f"{error.code} {printable(error.reason)}"
            if error.code == HTTPStatus.NOT_FOUND:
                why += ": no exporter, or an older one, which `top` cannot show"
            raise ExporterError(f"{self._url} answers {why}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = printable(_reason(error))
            raise ExporterError(f"cannot read {self._url}: {reason}") from error
        return body


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the password is meant for the given address only."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


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


def _path(path: str) -> str:
    """Where the document is: beside the metrics, whose path people have at hand."""
    return path.rstrip("/").removesuffix(NODE_PATH).removesuffix(_METRICS) + NODE_PATH


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
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"{inner.verify_message} (see --ca-file)"
    if isinstance(inner, TimeoutError):
        return f"no answer within {_TIMEOUT_SECONDS:.0f} s"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return str(inner) or type(inner).__name__
