"""Shared memory (/dev/shm) of a process and of the machine, with no trust in a job.

A job may place a link or a blocking file system there. So no link is followed, the folder must be
the tmpfs in mountinfo, and all has a timeout.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import memory_reads
from gpu_bottleneck_exporter.host.descriptors import fields
from gpu_bottleneck_exporter.host.files import raise_if_file_limit, read
from gpu_bottleneck_exporter.host.mounts import Place, mount_points, place_of

_MOUNT_POINT = "/dev/shm"  # noqa: S108 - only inspected


class SharedMemory(NamedTuple):
    """The size and used bytes of a tmpfs."""

    size_bytes: int
    used_bytes: int


def shared_memory_of(proc: Path, pid: int) -> tuple[int, SharedMemory] | None:
    """st_dev and sizes of the tmpfs at a process's /dev/shm; None if out of reach.

    Takes the permission to ptrace. Raises FileLimitError.
    """
    points = mount_points(proc / str(pid))
    mount = points.get(_MOUNT_POINT)
    above = {place_of(points[point].kind) for point in ("/", "/dev") if point in points}
    if mount is None or mount.kind != "tmpfs" or above - {Place.LOCAL}:
        return None
    return memory_reads.call(pid, partial(_read_sizes, proc, pid, mount.number))


def _read_sizes(proc: Path, pid: int, mount: str) -> tuple[int, SharedMemory] | None:
    # The dot makes /proc/PID/root the only link that is followed.
    try:
        with (
            _opened(f"{proc}/{pid}/root/.") as root,
            _opened("dev", root) as dev,
            _opened("shm", dev) as shm,
        ):
            # fdinfo takes no access to a file system.
            if fields(read(f"{proc}/self/fdinfo/{shm}") or "").get("mnt_id") != mount:
                return None
            return os.fstat(shm).st_dev, _sizes(shm)
    except OSError as error:
        raise_if_file_limit(error)
        return None


@contextmanager
def _opened(path: str, folder: int | None = None) -> Iterator[int]:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, dir_fd=folder)
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

    A container in the host's PID namespace has its own, and PrivateTmp= makes another mount
    namespace with the host's: so file systems are compared, at this mount point only.
    """
    accessible = shared_memory_of(proc, 1)
    if accessible is not None:
        return accessible[1]
    mount, device = mount_points(proc / "1").get(_MOUNT_POINT), Path(_MOUNT_POINT).stat().st_dev
    ours = mount is not None and mount.device == f"{os.major(device)}:{os.minor(device)}"
    return _sizes(_MOUNT_POINT) if ours else None
