"""What loading a sample of a batch of four costs, in datasets of several libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import cache, partial

from stacks.loops.common import MEBIBYTE, QUICK, WAIT, Load, burn, fetch, slow, together, url
from stacks.loops.files import direct
from stacks.loops.threads import decoding

BATCH = 4
_SHARE = WAIT / BATCH
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


KINDS: dict[str, Callable[[], Load]] = {
    "burn": lambda: burning,
    "quick": lambda: quick,
    "fetch": lambda: partial(fetch, 2 * _SHARE),
    "curl": lambda: by_curl,
    "child": lambda: by_child,
    "locked": lambda: _lock.acquire,  # it is never released
    "threads": lambda: together(decoding(_SHARE), 2),
    "direct": lambda: direct(MEBIBYTE),
}


@cache
def sample(kind: str) -> Load:
    """What loads a sample, made in the process that does."""
    return KINDS[kind]()
