"""Where readings come from: this machine's GPUs, or another exporter's metrics."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families

from gpu_bottleneck_exporter.collectors import enabled
from gpu_bottleneck_exporter.driver.protocol import Driver
from gpu_bottleneck_exporter.errors import ExporterError, SettingsError
from gpu_bottleneck_exporter.nodeview.local import LocalNode
from gpu_bottleneck_exporter.nodeview.metrics import reading_of
from gpu_bottleneck_exporter.nodeview.model import Reading
from gpu_bottleneck_exporter.sampling.sampler import Sampler
from gpu_bottleneck_exporter.settings import Settings

_TIMEOUT_SECONDS = 5.0
_LARGEST_BYTES = 64 * 2**20
"""Sixteen GPUs are 150 kB."""


class Source(Protocol):
    """One node."""

    name: str
    """For the heading."""

    def read(self) -> Reading:
        """The node now. Raises ExporterError, in one sentence, if it cannot be read."""
        ...

    def close(self) -> None:
        """Stop what runs in the background."""
        ...


class Local:
    """This machine, through our own sampler."""

    def __init__(self, settings: Settings, open_driver: Callable[[], Driver]) -> None:
        self.name = "this machine"
        self._ended: list[str] = []
        collectors = enabled(settings)
        self._sampler = Sampler(open_driver, collectors, settings, self._ended.append)
        self._node = LocalNode(self._sampler, collectors)
        self._sampler.start()

    def read(self) -> Reading:
        """The sampler's state."""
        if self._ended:
            raise ExporterError(self._ended[0])
        return self._node.read()

    def close(self) -> None:
        """Stop sampling."""
        self._sampler.stop()


class Remote:
    """Another exporter, through its metrics; connects directly, without a proxy."""

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        """`url` may leave out /metrics and hold user:password. Raises ExporterError."""
        parts = _parsed(url)
        self.name = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, self.name, parts.path or "/metrics", parts.query, ""))
        self._headers = {"Accept": "text/plain", **_authorization(parts)}
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=_trust(ca_file)),
            _NoRedirect(),
        )

    def read(self) -> Reading:
        """One scrape."""
        text = self._text()
        try:
            reading = reading_of(text_string_to_metric_families(text))
        except (ValueError, KeyError) as error:
            raise ExporterError(f"{self._url} does not serve metrics") from error
        if reading.version is None and not reading.gpus:
            raise ExporterError(f"{self._url} serves no metrics of this exporter")
        return reading

    def close(self) -> None:
        """Does nothing: nothing runs in the background."""

    def _text(self) -> str:
        request = urllib.request.Request(self._url, headers=self._headers)  # noqa: S310 - http(s) only, see _parsed
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as reply:
                body: bytes = reply.read(_LARGEST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                raise ExporterError(f"{self._url} answers {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise ExporterError(f"cannot read {self._url}: {_reason(error)}") from error
        return body.decode(errors="replace")


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
        raise SettingsError(f"--url must be like http://node7:10170/metrics, not {bare!r}")
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
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"{inner.verify_message} (see --ca-file)"
    if isinstance(inner, TimeoutError):
        return f"no answer within {_TIMEOUT_SECONDS:.0f} s"
    if isinstance(inner, OSError) and inner.strerror:
        return inner.strerror.lower()
    return str(inner) or type(inner).__name__
