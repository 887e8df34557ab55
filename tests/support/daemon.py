"""A server that a test starts, waits for and ends."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
PATIENCE_SECONDS = 60
"""How long to wait for what must come; never a measure of speed."""


def wait_until(condition: Callable[[], bool], what: str, give_up: Callable[[], bool]) -> None:
    """Wait until `condition` holds; raises when it does not come, or `give_up` says so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if give_up() or time.monotonic() > deadline:
            raise RuntimeError(f"{what} has not come")
        time.sleep(0.05)


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of one request, by no proxy; status 0 where nobody listens."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def daemon(
    command: Sequence[str],
    port: int,
    ready: str,
    log: Path,
    variables: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Runs `command` until the end of the block; its pid, once path `ready` of `port` answers.

    `variables` are added to its environment.
    """
    environment = {**os.environ, **(variables or {})}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as child,
    ):
        try:
            try:
                wait_until(
                    lambda: get(port, ready)[0] == http.client.OK,
                    command[0],
                    give_up=lambda: child.poll() is not None,
                )
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {log.read_text()}") from error
            yield child.pid
        finally:
            child.kill()
