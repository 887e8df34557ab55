"""The /dev/shm of a process, which may be anything: reached without asking what a job has made.

A job may put a link there that leads to our files, or mount a file system that never answers.
So its table of mounts is asked first, which the kernel writes by itself; no link is followed; and
where the kernel can (Linux 5.12), only names that it has at hand, as it has those that something
is mounted on. What is reached must be the tmpfs of the table.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MANY_BYTES, check_room, read, read_part
from gpu_bottleneck_exporter.host.machine import SharedMemory
from gpu_bottleneck_exporter.host.mounts import Mount, is_remote, mounts

_PLACE = ("dev", "shm")
_MOST_ABOVE = ("/", "/dev")
_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT, _CACHED = 0x02, 0x04, 0x10, 0x20
_HOW = struct.Struct("=QQQ")
_UNKNOWN_TO_THE_KERNEL = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""EPERM: of a seccomp profile that knows no openat2."""
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def job_shared_memory(proc: Path, pid: int) -> tuple[int, SharedMemory] | None:
    """The tmpfs that process `pid` has at /dev/shm, and what tells it from others.

    None where there is none, or it cannot be looked at. Takes the right to ptrace the process.
    """
    table = read_part(proc / str(pid) / "mountinfo", MANY_BYTES)
    if table is None or not table.whole:
        return None
    points = {mount.point: mount for mount in mounts(table.text)}
    at_place = points.get("/" + "/".join(_PLACE))
    if at_place is None or at_place.kind != "tmpfs" or not _answers(points):
        return None
    try:
        with _opened(proc / str(pid) / "root") as root, _below(root) as place:
            if _mount_number(proc, place) != at_place.number:
                return None
            found = os.fstatvfs(place)
            size = found.f_blocks * found.f_frsize
            memory = SharedMemory(size, size - found.f_bfree * found.f_frsize)
            return os.fstat(place).st_dev, memory
    except OSError as error:
        check_room(error)
        return None


def _answers(points: dict[str, Mount]) -> bool:
    """Whether what lies above is of this machine: another may not answer."""
    above = (points[point].kind for point in _MOST_ABOVE if point in points)
    return all(is_remote(kind) is False for kind in above)


@contextmanager
def _opened(path: Path | str, folder: int | None = None) -> Iterator[int]:
    # Of a process's root, /proc has a link.
    flags = _FLAGS if folder is not None else _FLAGS & ~os.O_NOFOLLOW
    with _closed(os.open(path, flags, dir_fd=folder)) as descriptor:
        yield descriptor


@contextmanager
def _below(root: int) -> Iterator[int]:
    how = _HOW.pack(_FLAGS, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _IN_ROOT | _CACHED)
    place = "/".join(_PLACE).encode()
    found = _libc.syscall(_OPENAT2, root, place, how, len(how))
    if found >= 0:
        with _closed(found) as descriptor:
            yield descriptor
        return
    code = ctypes.get_errno()
    if code not in _UNKNOWN_TO_THE_KERNEL:
        raise OSError(code, os.strerror(code))
    with _opened(_PLACE[0], root) as above, _opened(_PLACE[1], above) as descriptor:
        yield descriptor


@contextmanager
def _closed(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount_number(proc: Path, descriptor: int) -> int | None:
    """Which mount a descriptor of ours leads to; its file system is not asked."""
    for line in (read(proc / "self/fdinfo" / str(descriptor)) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return int(value)
    return None
