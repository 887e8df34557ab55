"""Where the file is that a thread waits for: on this machine or on another.

Takes the permission to ptrace. Only what the kernel itself knows is read: no file and no mount is
asked, as that may be one that never answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.borrow import RefusedError, link_of
from gpu_bottleneck_exporter.host.files import MANY_BYTES, read, read_part, understood
from gpu_bottleneck_exporter.host.mounts import (
    is_fuse,
    is_remote,
    mount_id,
    mounts,
    mounts_of_open_files,
)
from gpu_bottleneck_exporter.host.waits import FUSE_CHANNELS, REMOTE_CHANNELS

_STAYS_NS = 10_000_000_000
"""Mounts and open files change seldom."""
_MOST_KEPT = 256
_IO_URING = "anon_inode:[io_uring]"


class Place(Enum):
    """Where a file system has its data."""

    LOCAL = "local"
    REMOTE = "remote"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow at each look."""


_PLACES = {True: Place.REMOTE, False: Place.LOCAL, None: Place.UNKNOWN}


class _Wait(NamedTuple):
    """What a thread waits in."""

    mount: int | None
    """Number of the mount of the file that its system call is about."""
    channel: str


class Places:
    """Finds them for the processes of one GPU; used by one thread."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._kinds: dict[str, tuple[int, dict[int, str]]] = {}
        """By mount namespace: until when they hold, and types of file systems by mount."""
        self._open: dict[int, tuple[int, Place]] = {}
        """By process: until when it holds, and where all of its open files are."""

    def of(self, pid: int, tid: int, now_ns: int) -> Place:
        """Where the file is for which thread `tid` of process `pid` waits. Raises NoRoomError."""
        kinds = self._kinds_for(pid, now_ns)
        place = _common(kinds.values())
        if place is not Place.UNKNOWN or not kinds:
            return place  # all are alike, mostly local ones
        # Aside, for the locks of an execve, and of an epoll that takes over the file's number.
        wait = aside.call(pid, partial(_wait_of, f"{self._proc}/{pid}", tid))
        if wait is None:
            return Place.UNKNOWN
        if wait.mount is not None:
            return _common(kind for number, kind in kinds.items() if number == wait.mount)
        if wait.channel.startswith(REMOTE_CHANNELS):
            return Place.REMOTE
        if wait.channel.startswith(FUSE_CHANNELS):
            return _common(kind for kind in kinds.values() if is_fuse(kind))
        return self._of_open_files(pid, now_ns)

    def _kinds_for(self, pid: int, now_ns: int) -> dict[int, str]:
        try:
            namespace = os.readlink(f"{self._proc}/{pid}/ns/mnt")  # noqa: PTH115 - half the time
        except OSError:
            return {}
        until_ns, kinds = self._kinds.get(namespace, (0, {}))
        if now_ns >= until_ns:
            table = read_part(f"{self._proc}/{pid}/mountinfo", MANY_BYTES)
            whole = table.text if table and table.whole else ""
            kinds = {mount.number: mount.kind for mount in mounts(whole)}
            self._forget_if_many()
            self._kinds[namespace] = now_ns + _STAYS_NS, kinds
        return kinds

    def _of_open_files(self, pid: int, now_ns: int) -> Place:
        """For page faults, paths, AIO and io_uring, which name no file of their own."""
        until_ns, place = self._open.get(pid, (0, Place.UNKNOWN))
        if now_ns >= until_ns:
            place = _common(mounts_of_open_files(self._proc, pid).values())
            self._forget_if_many()
            self._open[pid] = now_ns + _STAYS_NS, place
        return place

    def _forget_if_many(self) -> None:
        if len(self._kinds) + len(self._open) >= _MOST_KEPT:
            self._kinds.clear()
            self._open.clear()


def _common(kinds: Iterable[str]) -> Place:
    """Where these file systems are, if all of them are in the same place."""
    places = {_PLACES[is_remote(kind)] for kind in kinds}
    return places.pop() if len(places) == 1 else Place.UNKNOWN


@understood
def _wait_of(process: str, tid: int) -> _Wait | None:
    """None if it waits for no file by now."""
    call = (read(f"{process}/task/{tid}/syscall") or "running").split()
    if call[0] == "running":
        return None
    channel = read(f"{process}/task/{tid}/wchan") or ""
    # The first argument of all calls that wait for an open file; of others it is a pointer, or
    # AT_FDCWD. A page fault is no call: -1.
    number = int(call[1], 16) if int(call[0]) >= 0 else None
    try:
        link = None if number is None else link_of(f"{process}/fd", number)
    except RefusedError:
        return None
    if link is None or link == _IO_URING:
        return _Wait(None, channel)
    if not link.startswith("/") or link.startswith("/dev/"):
        return None
    return _Wait(mount_id(read(f"{process}/fdinfo/{number}") or ""), channel)
