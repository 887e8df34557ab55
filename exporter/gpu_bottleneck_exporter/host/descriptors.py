"""What a process has open, as /proc/PID/fd and /proc/PID/fdinfo name it: no file is asked.

Takes the permission to ptrace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from gpu_bottleneck_exporter.host.files import listed

_MOST = 512
"""Descriptors of a process that are looked at."""


class RefusedError(OSError):
    """We may not look at descriptors of this process, or it holds up who does."""


def link_of(folder: str, number: int) -> str | None:
    """What descriptor `number` is, as /proc/PID/fd names it; None if it is not open.

    The kernel writes this text without asking any file system. Raises RefusedError.
    """
    try:
        return os.readlink(f"{folder}/{number}")  # noqa: PTH115 - half the time
    except PermissionError as error:  # with CAP_DAC_READ_SEARCH alone they can only be listed
        raise RefusedError(str(error)) from error
    except OSError:
        return None


def is_socket(link: str) -> bool:
    """Whether a link in /proc/PID/fd names a socket."""
    return link.startswith("socket:[")


def is_file(link: str) -> bool:
    """Whether it names a file of a file system, or a FIFO; devices are none."""
    return link.startswith("/") and not link.startswith("/dev/")


def descriptors(proc: Path, pid: int) -> Iterator[tuple[int, str]]:
    """Numbers and links of what is open; none without the permission. Raises NoRoomError."""
    folder = f"{proc}/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in map(int, listed(folder, _MOST)[0]):
            link = link_of(folder, number)
            if link is not None:
                yield number, link


def fields(fdinfo: str) -> dict[str, str]:
    """The fields of a /proc/PID/fdinfo file, such as `mnt_id`."""
    pairs = (line.partition(":") for line in fdinfo.splitlines())
    return {name: value.strip() for name, _, value in pairs}
