"""A server that a test starts, waits for and ends."""

from __future__ import annotations

import http.client
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.prometheus import get, wait_until


@contextmanager
def daemon(command: Sequence[str], port: int, ready: str, log: Path) -> Iterator[int]:
    """Runs `command` until the end of the block; its pid, once path `ready` of `port` answers."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as child:
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
