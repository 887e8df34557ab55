"""Other servers' answers over HTTP: bounded in time and bytes, no proxy, no redirect.

Several are asked at once, with a deadline for all.
"""

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
TIMEOUT_SECONDS = 5.0
"""Deadline of an exchange, from the name's look-up to the last byte; it takes milliseconds."""
_ADDRESSES = 3
"""Addresses of a name that are tried before the deadline, should none of them answer."""
_FRAMING_BYTES = 2**20
"""Bound on status line, headers, chunk sizes and trailers together; 256 MiB in chunks of 4 KiB
have half of it."""
_MOST_SAID = 200
"""Characters of a server's own words in an error."""


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
        self._connect = partial(connection, self.name, timeout=timeout_seconds / _ADDRESSES)

    def get(self, path: str, most_bytes: int, refused: tuple[int, ...] = ()) -> bytes:
        """The body of `path`, also of an answer whose status is `refused`.

        Raises ExporterError, in one sentence.
        """
        url = self.address(path.partition("?")[0])
        deadline, most = time.monotonic() + self._timeout, most_bytes + _FRAMING_BYTES

        def exchange() -> bytes:
            try:
                with closing(self._connect()) as connection:
                    connection.request("GET", self._prefix + path, headers=self._headers)
                    channel: Any = _Channel(connection.sock, deadline, most)
                    with http.client.HTTPResponse(channel, method="GET") as reply:
                        reply.begin()
                        body = reply.read(most_bytes + 1)
                        if reply.length and len(body) <= most_bytes:
                            raise http.client.IncompleteRead(body, reply.length)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise ExporterError(f"cannot read {url}: {self._reason(error)}") from error
            if reply.status not in (HTTPStatus.OK, *refused):
                said = printable(reply.reason, _MOST_SAID)
                raise ExporterError(f"{url} answers {reply.status} {said}")
            if len(body) > most_bytes:
                raise ExporterError(f"{url} answers with more than {most_bytes >> 20} MiB")
            return body

        # In a thread: the look-up of a name has no timeout, and each of its addresses has one.
        answers, missing = gather({f"cannot read {url}": exchange}, self._timeout)
        if missing:
            raise ExporterError(missing[0])
        return answers.popitem()[1]

    def address(self, path: str) -> str:
        """The URL of `path`, without a password."""
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
        return printable(f"{error}" or type(error).__name__, _MOST_SAID)


class _Channel(socket.SocketIO):
    """The receiving side of a socket for `http.client`, bounded in time and bytes.

    The timeout of a socket bounds a single `recv`: an answer of a byte now and then never ends.
    """

    def __init__(self, line: socket.socket, deadline: float, most_bytes: int) -> None:
        super().__init__(line, "r")
        self._line, self._deadline, self._bytes_left = line, deadline, most_bytes

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - Python 3.10 has no type for it
        if (seconds := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError
        self._line.settimeout(seconds)
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
    calls: Mapping[str, Callable[[], Answer]], deadline: float, at_once: int = 64, server: str = ""
) -> tuple[dict[str, Answer], list[str]]:
    """Answers by name within `deadline` seconds, and why others are missing; tells how far it is.

    A call that raises ExporterError is missing. `server`: which one is asked, if the names are not
    those of servers.
    """
    answers: dict[str, Answer] = {}
    errors: dict[str, str] = {}
    done = threading.Semaphore(0)
    waiting = takewhile(lambda _: time.monotonic() < end, [*calls.items()])
    end, left = time.monotonic() + deadline, len(calls)

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
    while left and (now := time.monotonic()) < end:
        if done.acquire(timeout=min(end - now, 1.0)):
            left -= 1
        elif len(calls) > 1 and sys.stderr.isatty():
            click.echo(f"{len(calls) - left} of {len(calls)} answers", err=True)
    found, late = {**answers}, f"no answer within {deadline:.0f} s"
    missing = [name for name in calls if name not in found]
    return found, [errors.get(name, f"{server or name}: {late}") for name in missing]
