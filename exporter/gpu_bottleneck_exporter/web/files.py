"""Files that people name, which may be pipes, endless, or on a file system that hangs."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def read_regular(path: Path, limit: int) -> bytes:
    """Reads a file that is one; of more than `limit` bytes one byte more than that.

    Raises:
        OSError: If it cannot be read or is a pipe, a socket or a device, on whose other
            end nobody may be; `strerror` says so.
        ValueError: If it has a name that no file can have.
    """
    # Without O_NONBLOCK opening a pipe waits for somebody to write to it.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(limit + 1)


def in_time(seconds: float, work: Callable[[], T]) -> T:
    """Does `work` in a thread that is left alone if it takes too long.

    Raises:
        TimeoutError: If it does, as on a network file system whose server is gone.
    """
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:  # noqa: BLE001 - raised again, in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="web-config", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
