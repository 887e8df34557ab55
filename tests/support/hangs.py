"""A file system that never answers, like a network one whose server is down."""

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
    """Make access to `folder` hang until the yielded function is called, or until the end.

    This is FUSE without the program behind it: the kernel waits for its first message. Waiting
    processes get ENOTCONN at the end.
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
