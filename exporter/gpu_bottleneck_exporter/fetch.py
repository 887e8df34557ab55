"""HTTP client with bounds on time and bytes; no proxies or redirects."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial, reduce
from http import HTTPStatus
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable

Answer = TypeVar("Answer")
_MAX_FRAMING_BYTES = 2**20
"""Bound on all that is no body; 256 MiB in 4 KiB chunks have half."""
_MAX_REASON_CHARACTERS = 200
"""Bound on a server's text in an error."""


class Server:
    """A server at an HTTP or HTTPS URL, which may contain user:password."""

    def __init__(
        self,
        url: str,
        ca_file: Path | None = None,
        known_paths: Iterable[str] = (),
        timeout_seconds: float = 5.0,
    ) -> None:
        """`timeout_seconds` covers an exchange, from name resolution to the last byte.

        `known_paths` are removed from the end of `url`. Raises SettingsError for `ca_file`.
        """
        parts = urlsplit(url)
        self.name = parts.netloc.rpartition("@")[2]
        """Host and port."""
        prefix = reduce(str.removesuffix, known_paths, parts.path.rstrip("/"))
        self._prefix = prefix.rstrip("/")
        self._scheme = parts.scheme
        self._timeout = timeout_seconds
        self._headers = {"Accept": "application/json", **_authorization(parts)}
        connection: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            connection = partial(http.client.HTTPSConnection, context=_trust(ca_file))
        # Leaves time for three addresses of a name.
        self._connect = partial(connection, self.name, timeout=timeout_seconds / 3)

    def get(self, path: str, max_bytes: int, accept_status: tuple[int, ...] = ()) -> bytes:
        """Body of `path`, if the status is 200 or in `accept_status`. Raises ExporterError."""
        url = self.address(path.partition("?")[0])
        deadline, limit = time.monotonic() + self._timeout, max_bytes + _MAX_FRAMING_BYTES

        def exchange() -> bytes:
            try:
                with closing(self._connect()) as connection:
                    connection.request("GET", self._prefix + path, headers=self._headers)
                    channel: Any = _BoundedSocket(connection.sock, deadline, limit)
                    with http.client.HTTPResponse(channel, method="GET") as reply:
                        reply.begin()
                        body = reply.read(max_bytes + 1)
                        if reply.length and len(body) <= max_bytes:
                            raise http.client.IncompleteRead(body, reply.length)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise ExporterError(f"cannot read {url}: {self._reason(error)}") from error
            if reply.status not in (HTTPStatus.OK, *accept_status):
                reason = printable(reply.reason, _MAX_REASON_CHARACTERS)
                raise ExporterError(f"{url} answers {reply.status} {reason}")
            if len(body) > max_bytes:
                raise ExporterError(f"{url} answers with more than {max_bytes >> 20} MiB")
            return body

        # In a thread, as name resolution has no timeout.
        answers, missing = gather({f"cannot read {url}": exchange}, self._timeout)
        if missing:
            raise ExporterError(missing[0])
        return answers.popitem()[1]

    def address(self, path: str) -> str:
        """URL of `path` without the password."""
        return f"{self._scheme}://{self.name}{self._prefix}{path}"

    def _reason(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"{error.verify_message} (see --ca-file)"
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout:.0f} s"
        if isinstance(error, http.client.IncompleteRead) or type(error) is ValueError:
            return "the answer ends too early, or is no HTTP"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror.lower()
        return printable(f"{error}" or type(error).__name__, _MAX_REASON_CHARACTERS)


class _BoundedSocket(socket.SocketIO):
    """The receiving side of a socket for `http.client`, with a deadline and a bound on bytes.

    A socket's own timeout applies to a single `recv`.
    """

    def __init__(self, sock: socket.socket, deadline: float, max_bytes: int) -> None:
        super().__init__(sock, "r")
        self._socket, self._deadline, self._bytes_left = sock, deadline, max_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - Python 3.10 has no type for it
        if (seconds := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)
        self._bytes_left -= (count := super().readinto(buffer) or 0)
        if self._bytes_left < 0:
            raise http.client.HTTPException("the answer is too long")
        return count


def _authorization(parts: SplitResult) -> dict[str, str]:
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    token = base64.b64encode(pair.encode("utf-8", "surrogateescape"))
    return {"Authorization": f"Basic {token.decode()}"}


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        reason = error.strerror or "it contains no certificate"
        raise SettingsError(f"--ca-file: cannot use {ca_file}: {reason}") from error


def gather(
    calls: Mapping[str, Callable[[], Answer]],
    deadline: float,
    concurrency: int = 64,
    server: str = "",
) -> tuple[dict[str, Answer], list[str]]:
    """Results by name within `deadline` seconds, and a reason per missing one; prints progress.

    A call is missing if it raises ExporterError or is late; `server` then replaces its name.
    """
    answers: dict[str, Answer] = {}
    errors: dict[str, str] = {}
    done = threading.Semaphore(0)
    pending = takewhile(lambda _: time.monotonic() < end, [*calls.items()])
    end, remaining = time.monotonic() + deadline, len(calls)

    def work() -> None:
        for name, call in pending:  # shared by the threads
            try:
                answers[name] = call()
            except ExporterError as error:  # noqa: PERF203 - each call counts
                errors[name] = f"{error}"
            finally:
                done.release()

    for _ in range(min(concurrency, len(calls))):
        # Daemons, as a hung server must not block the exit.
        threading.Thread(target=work, daemon=True).start()
    while remaining and (now := time.monotonic()) < end:
        if done.acquire(timeout=min(end - now, 1.0)):
            remaining -= 1
        elif len(calls) > 1 and sys.stderr.isatty():
            click.echo(f"{len(calls) - remaining} of {len(calls)} responses", err=True)
    results, late = {**answers}, f"no answer within {deadline:.0f} s"
    missing = [name for name in calls if name not in results]
    return results, [errors.get(name, f"{server or name}: {late}") for name in missing]
