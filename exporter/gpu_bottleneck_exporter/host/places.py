"""Where the file is that a thread waits for: on this machine or on another.

Takes the permission to ptrace. Only what the kernel itself knows is read: no file and no mount is
asked, as that may be one that never answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.descriptors import fields, is_file, link_of
from gpu_bottleneck_exporter.host.files import read, understood
from gpu_bottleneck_exporter.host.mounts import (
    is_fuse,
    is_remote,
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


class Places:
    """Finds them for the processes of one GPU; used by one thread."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._known: dict[str, tuple[int, Mapping[str, str]]] = {}
        """By mount namespace or pid: until when they hold, and types of file systems: of all
        mounts by their number, of those with open files by their point."""

    def of(self, pid: int, tid: int, now_ns: int) -> Place:
        """Where the file is for which thread `tid` of process `pid` waits. Raises NoRoomError."""
        process = self._proc / str(pid)
        kinds = self._mounted(process, now_ns)
        place = _common(kinds.values())
        if place is not Place.UNKNOWN or not kinds:
            return place  # all are alike, mostly local ones
        # Aside, for the locks of an execve, and of an epoll that takes over the file's number.
        wait = aside.call(pid, partial(_wait_of, f"{process}", tid))
        if wait is None:
            return Place.UNKNOWN
        mount, channel = wait
        if mount is not None:
            return _common(kind for number, kind in kinds.items() if number == mount)
        if channel.startswith(REMOTE_CHANNELS):
            return Place.REMOTE
        if channel.startswith(FUSE_CHANNELS):
            return _common(kind for kind in kinds.values() if is_fuse(kind))
        # Page faults, paths, AIO and io_uring name no file of their own.
        files = self._kept(f"{pid}", now_ns, partial(mounts_of_open_files, self._proc, pid))
        return _common(files.values())

    def _mounted(self, process: Path, now_ns: int) -> Mapping[str, str]:
        try:
            namespace = os.readlink(f"{process}/ns/mnt")  # noqa: PTH115 - half the time
        except OSError:
            return {}
        return self._kept(
            namespace, now_ns, lambda: {f"{mount.number}": mount.kind for mount in mounts(process)}
        )

    def _kept(
        self, key: str, now_ns: int, read: Callable[[], Mapping[str, str]]
    ) -> Mapping[str, str]:
        until_ns, kinds = self._known.get(key, (0, {}))
        if now_ns >= until_ns:
            kinds = read()
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = now_ns + _STAYS_NS, kinds
        return kinds


def _common(kinds: Iterable[str]) -> Place:
    """Where these file systems are, if all of them are in the same place."""
    places = {_PLACES[is_remote(kind)] for kind in kinds}
    return places.pop() if len(places) == 1 else Place.UNKNOWN


@understood
def _wait_of(process: str, tid: int) -> tuple[str | None, str] | None:
    """The number of the mount of the file that a system call is about, and the wait channel.

    None if it waits for no file by now.
    """
    call = (read(f"{process}/task/{tid}/syscall") or "running").split()
    if call[0] == "running":
        return None
    channel = read(f"{process}/task/{tid}/wchan") or ""
    if int(call[0]) < 0:  # a page fault
        return None, channel
    # The first argument of all calls that wait for an open file; of others it is a pointer, or
    # AT_FDCWD.
    number = int(call[1], 16)
    try:
        link = link_of(f"{process}/fd", number)
    except PermissionError:
        return None
    if link is None or link == _IO_URING:
        return None, channel
    if not is_file(link):
        return None
    return fields(read(f"{process}/fdinfo/{number}") or "").get("mnt_id"), channel
