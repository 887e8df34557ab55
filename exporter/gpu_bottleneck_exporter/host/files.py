"""Reading small kernel files, once or again and again."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_BYTES = 65536
_FEW_BYTES = 1024


def read(path: Path) -> str | None:
    """The text of `path`, or None where it cannot be read now.

    A file that belongs to a process may vanish at any moment, a pressure file may be
    there and refuse (EOPNOTSUPP): both are no news.
    """
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return None


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

    def read(self) -> bytes | None:
        """What it says now, None where it cannot be read."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._descriptor, _FEW_BYTES, 0)
            # Room for more than is there costs more than a second read, where one is needed.
            return text if len(text) < _FEW_BYTES else os.pread(self._descriptor, _BYTES, 0)
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """Give the descriptor back; the next `read` opens the file again."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
