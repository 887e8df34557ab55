"""A file system that never answers, as of a network whose server is gone."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.tools import _missing

_MNT_DETACH = 2


@contextmanager
def hanging(folder: Path) -> Iterator[Callable[[], None]]:
    """`folder` hangs whoever looks into it, until what is yielded is called, and at the end.

    FUSE without the program behind it: the kernel waits for its first word. Those who wait
    get ENOTCONN when it ends.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        _missing(f"FUSE is missing: {error}")
    ended: list[None] = []

    def end() -> None:
        if not ended:
            ended.append(None)
            os.close(device)

    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    try:
        if libc.mount(b"hangs", bytes(folder), b"fuse", 0, options.encode()):
            _missing(f"mounting is not allowed: {os.strerror(ctypes.get_errno())}")
        try:
            yield end
        finally:
            end()
            libc.umount2(bytes(folder), _MNT_DETACH)
    finally:
        end()
