"""A remote file system, mounted through FUSE: `... NAME cached|direct`.

Its only file is large, and every read from it takes a while. `direct`: the kernel caches nothing
and passes each read on; otherwise it caches pages and reads ahead.
"""

# mypy: disable-error-code="import-not-found,import-untyped,misc"

from __future__ import annotations

import os
import stat
import time

import mfusepy

from stacks.loops.common import FOLDER
from stacks.servers.listen import announce

SIZE = 8 * 2**30
LATE_SECONDS = 0.06


class Files(mfusepy.Operations):
    """A folder with one file."""

    use_ns = True

    def __init__(self, name: str, how: str) -> None:
        self._told = name, how

    def init_with_config(self, _connection: object, config: object) -> None:
        """Report that it is up."""
        name, how = self._told
        if how == "direct":
            config.direct_io = 1  # type: ignore[attr-defined]
        announce(name, 0)

    def getattr(self, path: str, _handle: int | None = None) -> dict[str, int]:
        """What kind of file `path` is."""
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": SIZE}

    def readdir(self, _path: str, _handle: int) -> list[str]:
        """The one file."""
        return [".", "..", "data"]

    def read(self, _path: str, size: int, _offset: int, _handle: int) -> bytes:
        """Zeros, late."""
        time.sleep(LATE_SECONDS)
        return bytes(size)


def main(name: str, how: str) -> None:
    """Serve until killed."""
    (FOLDER / "mount").mkdir()
    mount = f"{FOLDER / 'mount'}"
    source = os.environ.get("TESTS_RUN", name)  # see support/leftovers.py
    mfusepy.FUSE(
        Files(name, how), mount, foreground=True, nothreads=False, allow_other=True, fsname=source
    )
