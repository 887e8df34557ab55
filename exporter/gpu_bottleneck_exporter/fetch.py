"""Other servers' answers over HTTP: bounded, without a proxy, following no redirect.

Several are asked at once, with a deadline for all.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial, reduce
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import click

from gpu_bottleneck_exporter.errors import ExporterError, SettingsError, printable

Answer = TypeVar("Answer")
TIMEOUT_SECONDS = 5.0
"""For each step of an answer, which takes milliseconds."""


class Server:
    """A server at a URL of http or https, which may hold user:password."""

    def __init__(
        self,
        url: str,
        ca_file: Path | None = None,
        known_paths: Iterable[str] = (),
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`known_paths`: what `url` may end with, as people have it at hand.

        Raises SettingsError for `ca_file`.
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
        self._connect = partial(connection, self.name, timeout=timeout_seconds)

    def get(self, path: str, most_bytes: int, refused: tuple[int, ...] = ()) -> bytes:
        """The body of `path`, also of an answer whose status is `refused`.

        Raises ExporterError, in one sentence.
        """
        url = self.address(path.partition("?")[0])
        try:
            with closing(self._connect()) as connection:
                connection.request("GET", self._prefix + path, headers=self._headers)
                with connection.getresponse() as reply:
                    body = reply.read(most_bytes + 1)
                    if reply.length and len(body) <= most_bytes:
                        raise http.client.IncompleteRead(body, reply.length)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ExporterError(f"cannot read {url}: {printable(self._reason(error))}") from error
        if reply.status not in (HTTPStatus.OK, *refused):
            raise ExporterError(f"{url} answers {reply.status} {printable(reply.reason)}")
        if len(body) > most_bytes:
            raise ExporterError(f"{url} answers with more than {most_bytes >> 20} MiB")
        return body

    def address(self, path: str) -> str:
        """The URL of `path`, without a password."""
        return f"{self._scheme}://{self.name}{self._prefix}{path}"

    def _reason(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"{error.verify_message} (see --ca-file)"
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout:.0f} s"
        if isinstance(error, http.client.IncompleteRead):
            return "the answer ends too early"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror.lower()
        return f"{error}" or type(error).__name__


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


def gather(
    calls: Mapping[str, Callable[[], Answer]], deadline: float, at_once: int = 32, server: str = ""
) -> tuple[dict[str, Answer], list[str]]:
    """Answers by name within `deadline` seconds, and why others are missing; tells how far it is.

    A call that raises ExporterError is missing. `server`: which one is asked, if the names are not
    those of servers.
    """
    answers: dict[str, Answer] = {}
    errors: dict[str, str] = {}
    waiting, done = iter([*calls.items()]), threading.Semaphore(0)

    def work() -> None:
        for name, call in waiting:  # each thread takes what the others have not taken
            try:
                answers[name] = call()
            except ExporterError as error:  # noqa: PERF203 - each call counts
                errors[name] = f"{error}"
            finally:
                done.release()

    for _ in range(min(at_once, len(calls))):
        # Daemons, as a server that hangs must not keep the program from ending.
        threading.Thread(target=work, daemon=True).start()
    end, left = time.monotonic() + deadline, len(calls)
    while left and (now := time.monotonic()) < end:
        if done.acquire(timeout=min(end - now, 1.0)):
            left -= 1
        elif sys.stderr.isatty():
            click.echo(f"{len(calls) - left} of {len(calls)} answers", err=True)
    found, late = {**answers}, f"no answer within {deadline:.0f} s"
    missing = [name for name in calls if name not in found]
    return found, [errors.get(name, f"{server or name}: {late}") for name in missing]
