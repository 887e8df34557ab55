"""What loading a sample of a batch of four costs, in datasets of several libraries."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from stacks.loops.common import FOLDER, MEBIBYTE, QUICK, WAIT, burn, fetch, slow, url

BATCH = 4
_SHARE = WAIT / BATCH
_SIZE = 96 * MEBIBYTE
_lock = threading.Lock()


burning = partial(burn, _SHARE)
quick = partial(burn, QUICK / BATCH)


def by_curl() -> None:
    """By a separate program."""
    command = ["curl", "--silent", "--output", os.devnull, url(slow(3 * _SHARE))]
    subprocess.run(command, check=True)


def by_child() -> None:
    """By a separate program that computes, like ffmpeg."""
    code = "import zlib, os; [zlib.compress(os.urandom(2**20)) for _ in range(3)]"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def by_threads() -> None:
    """Decoded by two threads of the worker, which need no interpreter lock."""
    with ThreadPoolExecutor(2) as pool:
        for part in [pool.submit(_unpack) for _ in range(2)]:
            part.result()


def direct() -> None:
    """From the disk, bypassing the page cache."""
    path = FOLDER / "data"
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, MEBIBYTE)
    block = random.randrange(_SIZE // MEBIBYTE)  # noqa: S311 - no secret
    os.preadv(descriptor, [buffer], block * MEBIBYTE)
    os.close(descriptor)


def prepare(kind: str) -> None:
    """Make the data that `kind` reads."""
    if kind == "direct":
        with open(FOLDER / "data", "wb") as file:
            file.writelines(os.urandom(MEBIBYTE) for _ in range(_SIZE // MEBIBYTE))


def _unpack() -> None:
    for _ in range(3):
        zlib.decompress(_PACKED)


_PACKED = zlib.compress(bytes(6 * MEBIBYTE) + os.urandom(MEBIBYTE // 2), 1)
KINDS: dict[str, Callable[[], object]] = {
    "burn": burning,
    "quick": quick,
    "fetch": partial(fetch, 2 * _SHARE),
    "curl": by_curl,
    "child": by_child,
    "locked": _lock.acquire,  # it is never released
    "threads": by_threads,
    "direct": direct,
}
