"""Shared memory (/dev/shm) of a process and of the machine, with no trust in what a job put there.

A job may place a link there that leads to our files, or mount a file system that never answers.
So mountinfo is read first, which the kernel writes; no link is followed; what is opened must be
the tmpfs that mountinfo names; and all is done aside, as a job may mount another one meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.descriptors import fields
from gpu_bottleneck_exporter.host.files import check_room, read
from gpu_bottleneck_exporter.host.mounts import Place, mount_points, place_of

_POINT = "/dev/shm"  # noqa: S108 - looked at only
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SharedMemory(NamedTuple):
    """A tmpfs: its size and the bytes in use."""

    size_bytes: int
    used_bytes: int


def shared_memory_of(proc: Path, pid: int) -> tuple[int, SharedMemory] | None:
    """The tmpfs that process `pid` has at /dev/shm: its st_dev, which is unique, and its sizes.

    None if there is none or it is out of reach. Takes the permission to ptrace the process.
    Raises NoRoomError.
    """
    points = mount_points(proc / str(pid))
    mount = points.get(_POINT)
    above = {place_of(points[point].kind) for point in ("/", "/dev") if point in points}
    if mount is None or mount.kind != "tmpfs" or above - {Place.LOCAL}:
        return None
    return aside.call(pid, partial(_look, proc, pid, mount.number))


def _look(proc: Path, pid: int, mount: str) -> tuple[int, SharedMemory] | None:
    # The dot makes /proc/PID/root, which is a link, the only one that is followed.
    try:
        with (
            _opened(f"{proc}/{pid}/root/.") as root,
            _opened("dev", root) as above,
            _opened("shm", above) as place,
        ):
            # From fdinfo, as that asks no file system.
            if fields(read(f"{proc}/self/fdinfo/{place}") or "").get("mnt_id") != mount:
                return None
            return os.fstat(place).st_dev, _sizes(place)
    except OSError as error:
        check_room(error)
        return None


@contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sizes(place: int | str) -> SharedMemory:
    stat = os.statvfs(place)
    size = stat.f_blocks * stat.f_frsize
    return SharedMemory(size, size - stat.f_bfree * stat.f_frsize)


def hosts_shared_memory(proc: Path) -> SharedMemory | None:
    """The /dev/shm of process 1, if we may ptrace it; else ours if it is the same.

    A container in the host's PID namespace sees the host's /proc, but its own /dev/shm. Comparing
    mount namespaces does not help: reading that of process 1 takes the permission to ptrace it,
    and a service with PrivateTmp= has its own too, with the host's /dev/shm. So the file systems
    are compared, at this mount point only: elsewhere the host has those it created for pods.
    """
    found = shared_memory_of(proc, 1)
    if found is not None:
        return found[1]
    mount, device = mount_points(proc / "1").get(_POINT), Path(_POINT).stat().st_dev
    ours = mount is not None and mount.device == f"{os.major(device)}:{os.minor(device)}"
    return _sizes(_POINT) if ours else None
