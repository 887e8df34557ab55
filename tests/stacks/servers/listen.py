"""Where a server listens: it writes its port to the case's folder."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(os.environ["STACKS_FOLDER"])
PORT = int(os.environ["STACKS_PORT"])
"""Free for the loop, which is not the server."""


def announce(name: str, port: int) -> None:
    """Write it atomically, as others wait for the file."""
    unfinished = FOLDER / f"{name}.port.new"
    unfinished.write_text(f"{port}")
    unfinished.rename(FOLDER / f"{name}.port")
