"""Where a server listens: it writes its port to the case's folder."""

from __future__ import annotations

from stacks.loops.common import FOLDER


def announce(name: str, port: int) -> None:
    """Write it atomically, as others wait for the file."""
    unfinished = FOLDER / f"{name}.port.new"
    unfinished.write_text(f"{port}")
    unfinished.rename(FOLDER / f"{name}.port")
