"""The exporter as a process of its own, on a virtual board that somebody else made and feeds.

    python tests/support/board_exporter.py BOARD PORT

serves the board through the driver in Python; `over_nvml` starts the normal command
line on the C stand-in for the driver's library. Port 0 lets the kernel choose.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HOST = "127.0.0.1"
_PATIENCE_SECONDS = 60
_LOG_BYTES = 100_000
_SERVING = re.compile(r"serving on http://[^:]+:(\d+)/")


@dataclass(frozen=True)
class Exporter:
    """A running exporter."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def target(self) -> str:
        """What Prometheus is to scrape."""
        return f"{HOST}:{self.port}"


@contextmanager
def over_board(board: Path, port: int = 0) -> Iterator[Exporter]:
    """The exporter over the driver in Python."""
    with started([sys.executable, __file__, f"{board}", f"{port}"], {}) as exporter:
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
        subprocess.Popen(command, env=environment, stderr=log) as process,
    ):
        try:
            yield Exporter(process, _port(process, log))
        finally:
            process.kill()


def _port(process: subprocess.Popen[bytes], log: IO[bytes]) -> int:
    """The port the exporter says it serves on; raises when it ended instead."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if found := _SERVING.search(_text(log)):
            return int(found[1])
        time.sleep(0.02)
    raise RuntimeError(f"the exporter has not started:\n{_text(log)}")


def _text(log: IO[bytes]) -> str:
    # The exporter writes at the file's position, which reading must not move.
    return os.pread(log.fileno(), _LOG_BYTES, 0).decode()


def main(board: str, port: str) -> None:
    """Serve the board file `board` until SIGTERM."""
    # Imported by the exporter's process only.
    from gpu_bottleneck_exporter.driver.board import Board  # noqa: PLC0415
    from gpu_bottleneck_exporter.driver.virtual import VirtualDriver  # noqa: PLC0415
    from gpu_bottleneck_exporter.serve import serve  # noqa: PLC0415
    from gpu_bottleneck_exporter.settings import Settings  # noqa: PLC0415
    from gpu_bottleneck_exporter.web.listen import bind  # noqa: PLC0415

    sockets = bind(f"{HOST}:{port}")
    sys.stderr.write(f"serving on http://{HOST}:{sockets[0].getsockname()[1]}/metrics\n")
    sys.stderr.flush()
    serve(Settings(), lambda: VirtualDriver(Board(Path(board))), sockets)


if __name__ == "__main__":
    main(*sys.argv[1:])
