"""The memory of another process, read without stopping it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from gpu_bottleneck_exporter.host.files import raise_if_file_limit

MAX_READ_BYTES = 262_144
"""Bound on a read: a very long function's line table."""
Item = TypeVar("Item")


class UnreadableError(Exception):
    """Memory that changed during the read, or is implausible."""


class NoMemoryError(Exception):
    """An unreadable process; the message is a clause with the reason."""


class ProcessMemory:
    """A process's memory, by /proc/PID/mem: a third of process_vm_readv's cost."""

    def __init__(self, folder: str, until: float) -> None:
        """`folder`: /proc/PID. Raises NoMemoryError, FileLimitError."""
        self.until = until
        """Deadline (`time.monotonic`) of all reads."""
        try:
            self._file = os.open(f"{folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_if_file_limit(error)
            takes = "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or to be its user"
            raise NoMemoryError(f"reading its memory takes {takes}: {error.strerror}") from None

    def __del__(self) -> None:
        # Not earlier: a hung read may resume in another file.
        with suppress(AttributeError):
            os.close(self._file)

    def timely(self, items: Iterable[Item]) -> Iterator[Item]:
        """`items` up to the deadline. Raises UnreadableError then."""
        for number, item in enumerate(items):
            # 1024 items take less than a millisecond.
            if not number % 1024 and time.monotonic() > self.until:
                raise UnreadableError
            yield item

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes at `address`. Raises UnreadableError, NoMemoryError."""
        is_plausible = 0 < address < 1 << 63 and 0 <= size <= MAX_READ_BYTES
        if not is_plausible or time.monotonic() > self.until:
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
        """The 64-bit word at `address`."""
        return word(self.read(address, 8), 0)


def word(raw: bytes, at: int, size: int = 8) -> int:
    """The little-endian number in the `size` bytes from `at`."""
    return int.from_bytes(raw[at : at + size], "little")
