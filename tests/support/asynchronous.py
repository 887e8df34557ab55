"""The library of system calls in asynchronous.c, which Python lacks: rings and kernel AIO."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

from fake_nvml.build import compiled

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror")


class Wait(IntEnum):
    """How a process waits for what it submitted."""

    IN_CALL = 0
    """A wait in io_uring_enter, or in io_getevents."""
    ON_EVENTFD = 1
    """A wait in poll on an eventfd."""
    IN_EPOLL = 2
    """A wait in epoll on the ring's own descriptor."""


def library(folder: Path) -> Path:
    """The library, built in `folder`."""
    return compiled("asynchronous I/O", folder, [_SOURCE], _FLAGS)
