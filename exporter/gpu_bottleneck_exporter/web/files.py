"""Files named by the user, which may be pipes, devices or endless."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from gpu_bottleneck_exporter.errors import SettingsError


def read(subject: str, path: Path, max_bytes: int) -> bytes:
    """Read a regular file.

    Raises SettingsError, which begins with `subject`, if the file cannot be read, is larger, or may
    block, such as a pipe.
    """
    try:
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")  # noqa: TRY301
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: an invalid file name
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{subject} cannot be read: {reason}") from error
    if len(data) > max_bytes:
        raise SettingsError(f"{subject} is larger than {max_bytes >> 10} KiB")
    return data


def shown(text: str, max_characters: int = 60) -> str:
    """Quote text from a file on one line, truncated."""
    return repr(text if len(text) <= max_characters else f"{text[:max_characters]}…")
