"""The exporter as a separate process, on a virtual board that something else made and feeds.

`over_board` starts it over the driver in Python, `over_nvml` the normal command line on the C
stand-in for the driver's library.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from support import board_server
from support.command import ANY_PORT, COMMAND, Server, background

Exporter = Server


def over_board(board: Path) -> AbstractContextManager[Exporter]:
    """The exporter over the driver in Python."""
    return started([sys.executable, board_server.__file__, f"{board}"], {})


def over_nvml(library: Path, board: Path) -> AbstractContextManager[Exporter]:
    """The exporter over pynvml and the stand-in at `library`."""
    places = {"LD_LIBRARY_PATH": f"{library.parent}", "FAKE_NVML_BOARD": f"{board}"}
    return started([*COMMAND, "serve", *ANY_PORT], places)


@contextmanager
def started(command: list[str], places: dict[str, str]) -> Iterator[Exporter]:
    """The exporter that `command` starts, once it serves, with `places` in its environment."""
    with (
        tempfile.TemporaryDirectory() as folder,
        background(command, Path(folder), {**os.environ, **places}) as exporter,
    ):
        assert exporter.port
        yield exporter
