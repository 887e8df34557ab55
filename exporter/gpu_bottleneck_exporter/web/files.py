"""Files named by users, which may be pipes, endless, or devices."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_SHOWN_CHARACTERS = 60


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file, at most `limit` + 1 bytes: one more shows that it is too large.

    Raises:
        OSError: If it cannot be read, or is a pipe, a socket or a device, where nobody may be
            at the other end; `strerror` says so.
        ValueError: If no file can have this name.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(limit + 1)


def shown(text: str) -> str:
    """A text from a file, quoted, on one line and shortened."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
