"""Reading small kernel files, once or again and again: never more of one than is stated here.

A job can make its command line and environment as large as its memory, have children and network
interfaces by the thousand, and mount what it likes: what it shapes is cut, and read as far as
that. All that is read below /proc and /sys is read by these two.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

_FEW_BYTES = 1024
_MORE = 8
MOST_BYTES = 65_536
"""Sixteen pages: of a command line, an environment, a status."""
MANY_BYTES = 1_048_576
"""Of lists with a line for each mount or interface, of which large nodes have thousands."""
_KEPT_BYTES = 262_144
"""Of a file that is kept open: a list of 32 000 children, of 1 500 disks."""
_ENDS = (b"\n", b"\0", b" ")


def read(path: Path | str, most: int = MOST_BYTES) -> str | None:
    """The text of `path`, or None where it cannot be read now; of a longer one the first part.

    At most `most` bytes, up to the last line, word or entry that is whole. A file that belongs
    to a process may vanish at any moment, a pressure file may be there and refuse (EOPNOTSUPP):
    both are no news.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Not read_bytes: that takes twice as long, and thousands are read this way.
        text = b""
        while len(text) <= most and (part := os.read(descriptor, most + 1 - len(text))):
            text += part
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return _whole(text, most).decode(errors="replace")


def _whole(text: bytes, most: int) -> bytes:
    """`text`, or what is whole of its first `most` bytes: half a number would be another one."""
    if len(text) <= most:
        return text
    return text[: max(text.rfind(end, 0, most) for end in _ENDS) + 1]


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
                if self._room > _KEPT_BYTES:
                    return _whole(text, _KEPT_BYTES)
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
