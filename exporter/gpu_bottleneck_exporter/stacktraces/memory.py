"""Another process's memory, read as a debugger would, without stopping the process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from gpu_bottleneck_exporter.host.files import raise_if_file_limit

MOST_AT_ONCE = 262_144
"""Bytes: the table of lines of a very long function."""
_ITEMS_PER_CHECK = 1024
"""Between two checks of the deadline: these take less than a millisecond."""
T = TypeVar("T")


class UnreadableError(Exception):
    """What should be there is not: the process changed it meanwhile, or it is nonsense."""


class NoMemoryError(Exception):
    """The process cannot be read at all: the message, a clause about it, says why."""


class Memory:
    """What a process has in /proc/PID/mem: it costs a third of process_vm_readv through ctypes."""

    def __init__(self, folder: str, until: float) -> None:
        """`folder`: /proc/PID. Raises NoMemoryError, FileLimitError."""
        self.until = until
        """When to stop (`time.monotonic`), whatever is asked for next."""
        try:
            self._file = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_if_file_limit(error)
            takes = "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or to be its user"
            raise NoMemoryError(f"reading its memory takes {takes}: {error.strerror}") from None

    def __del__(self) -> None:
        # Not before: a read that hangs may go on much later, and must not read another file then.
        with suppress(AttributeError):
            os.close(self._file)

    def timely(self, items: Iterable[T]) -> Iterator[T]:
        """`items`, until the time is over. Raises UnreadableError then."""
        for number, item in enumerate(items):
            if not number % _ITEMS_PER_CHECK and time.monotonic() > self.until:
                raise UnreadableError
            yield item

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`. Raises UnreadableError, NoMemoryError."""
        makes_sense = 0 < address < 1 << 63 and 0 <= size <= MOST_AT_ONCE
        if not makes_sense or time.monotonic() > self.until:
            raise UnreadableError
        try:
            raw = os.pread(self._file, size, address)
        except OSError:
            raise UnreadableError from None
        if size and not raw:
            raise NoMemoryError("it has ended, or runs another program by now")
        if len(raw) < size:
            raise UnreadableError
        return raw

    def pointer(self, address: int) -> int:
        """The address that is stored at `address`."""
        return word(self.read(address, 8), 0)


def word(raw: bytes, at: int, size: int = 8) -> int:
    """The number of `size` bytes that begins at `at`."""
    return int.from_bytes(raw[at : at + size], "little")
