"""A remote file system, mounted through FUSE: `... NAME cached|direct`.

Its only file is large, and every read from it takes a while. `direct`: the kernel caches nothing
and passes each read on; otherwise it caches pages and reads ahead.
"""

# mypy: disable-error-code="import-not-found,import-untyped,misc"

from __future__ import annotations

import stat
import sys
import time

import mfusepy

from stacks.servers.listen import FOLDER, announce

SIZE = 8 * 2**30
LATE_SECONDS = 0.06


class Files(mfusepy.Operations):
    """A folder with one file."""

    use_ns = True

    def init_with_config(self, _connection: object, config: object) -> None:
        """Report that it is up."""
        if sys.argv[2] == "direct":
            config.direct_io = 1  # type: ignore[attr-defined]
        announce(sys.argv[1], 0)

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


if __name__ == "__main__":
    (FOLDER / "mount").mkdir()
    mfusepy.FUSE(Files(), f"{FOLDER / 'mount'}", foreground=True, nothreads=False, allow_other=True)
