"""Files named by users, which may be pipes, endless, or devices."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError

_SHOWN_CHARACTERS = 60
"""Of a text in an error, which is one line."""


def read(what: str, path: Path, most: int) -> bytes:
    """A regular file of at most `most` bytes.

    Raises:
        SettingsError: That `what` cannot be read, is larger, or is a pipe, a socket or a device,
            where nobody may be at the other end.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")  # noqa: TRY301
            data = file.read(most + 1)
    except (OSError, ValueError) as error:  # no file can have such a name
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{what} cannot be read: {reason}") from error
    if len(data) > most:
        raise SettingsError(f"{what} is larger than {most >> 10} KiB")
    return data


def shown(text: str) -> str:
    """A text from a file, quoted, on one line and shortened."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")
