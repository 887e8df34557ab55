"""The exporter as a separate process, on a virtual board that something else made and feeds.

`over_board` starts it over the driver in Python, `over_nvml` the normal command line on the C
stand-in for the driver's library. Port 0 lets the kernel choose.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from support import board_server
from support.tools import WITH_US
from support.waiting import until

HOST = "127.0.0.1"
_LOG_BYTES = 100_000
_SERVING = re.compile(r"serving on http://[^:]+:(\d+)/")


@dataclass(frozen=True)
class Exporter:
    """A running exporter."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def target(self) -> str:
        """The address for Prometheus to scrape."""
        return f"{HOST}:{self.port}"


@contextmanager
def over_board(board: Path, port: int = 0, state: Path | None = None) -> Iterator[Exporter]:
    """The exporter over the driver in Python; `state`: the file of its ledger."""
    more = [f"{state}"] if state else []
    command = [sys.executable, board_server.__file__, f"{board}", f"{port}", *more]
    with started(command, {}) as exporter:
        yield exporter


@contextmanager
def over_nvml(library: Path, board: Path, port: int = 0) -> Iterator[Exporter]:
    """The exporter over pynvml and the stand-in at `library`."""
    command = [sys.executable, "-m", "gpu_bottleneck_exporter", "serve"]
    command += ["--web.listen-address", f"{HOST}:{port}"]
    places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board}"}
    with started(command, places) as exporter:
        yield exporter


@contextmanager
def started(command: list[str], places: dict[str, str]) -> Iterator[Exporter]:
    """The exporter that `command` starts, with `places` in its environment."""
    environment = {**os.environ, **places}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen([*WITH_US, *command], env=environment, stderr=log) as process,
    ):
        try:
            yield Exporter(process, _port(process, log))
        finally:
            process.kill()


def _port(process: subprocess.Popen[bytes], log: IO[bytes]) -> int:
    """The port that the exporter reports; raises if it has ended instead."""
    found = until(
        lambda: _SERVING.search(_text(log)),
        lambda: f"the exporter: {_text(log)}",
        unless=lambda: process.poll() is not None,
    )
    return int(found[1])


def _text(log: IO[bytes]) -> str:
    # The exporter writes at the file's position, so reading must not move it.
    return os.pread(log.fileno(), _LOG_BYTES, 0).decode()
