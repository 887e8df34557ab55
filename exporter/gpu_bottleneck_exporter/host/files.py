"""Reading small kernel files, once or again and again."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_FEW_BYTES = 1024
_MORE = 8
_MUCH = 65536


def read(path: Path | str) -> str | None:
    """The text of `path`, or None where it cannot be read now.

    A file that belongs to a process may vanish at any moment, a pressure file may be
    there and refuse (EOPNOTSUPP): both are no news.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Not read_bytes: that takes twice as long, and thousands are read this way.
        parts = list(iter(lambda: os.read(descriptor, _MUCH), b""))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def allow_many_files() -> None:
    """Raise the limit of open files as far as we may: a process of 64 workers takes 260."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class KeptFile:
    """A file read every tick through one descriptor: a tenth of the cost of opening it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._room = _FEW_BYTES

    def read(self) -> bytes | None:
        """What it says now, None where it cannot be read."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            # Little room at first: room for more than is there costs more than a second read.
            while len(text := os.pread(self._descriptor, self._room, 0)) == self._room:
                self._room *= _MORE
        except OSError:
            self.close()
            return None
        return text

    def close(self) -> None:
        """Give the descriptor back; the next `read` opens the file again."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
