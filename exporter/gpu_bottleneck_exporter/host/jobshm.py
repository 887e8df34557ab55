"""The /dev/shm of a process, opened without trusting what the job put there.

A job may place a link there that leads to our files, or mount a file system that never answers.
So mountinfo is read first, which the kernel writes; no link is followed; and from Linux 5.12 on
only names in the kernel's cache are resolved (RESOLVE_CACHED), as mount points always are. What
is opened must be the tmpfs that mountinfo names.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bottleneck_exporter.host.files import check_room, read
from gpu_bottleneck_exporter.host.machine import SharedMemory, shared_memory
from gpu_bottleneck_exporter.host.mounts import Mount, is_remote, mount_points

_PLACE = ("dev", "shm")
_MOST_ABOVE = ("/", "/dev")
_OPENAT2 = 437
"""The same number on every architecture."""
_NO_MAGICLINKS, _NO_SYMLINKS, _IN_ROOT, _CACHED = 0x02, 0x04, 0x10, 0x20
"""RESOLVE_* flags of linux/openat2.h."""
_HOW = struct.Struct("=QQQ")
"""struct open_how: flags, mode, resolve."""
_UNKNOWN_TO_THE_KERNEL = frozenset({errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""EPERM comes from seccomp profiles that do not know openat2."""
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def job_shared_memory(proc: Path, pid: int) -> tuple[int, SharedMemory] | None:
    """The tmpfs that process `pid` has at /dev/shm: its st_dev, which is unique, and its sizes.

    None if there is none or it is out of reach. Takes the permission to ptrace the process.
    Raises NoRoomError.
    """
    points = mount_points(proc / str(pid))
    at_place = points.get("/" + "/".join(_PLACE))
    if at_place is None or at_place.kind != "tmpfs" or not _answers(points):
        return None
    try:
        with _opened(proc / str(pid) / "root") as root, _below(root) as place:
            if _mount_number(proc, place) != at_place.number:
                return None
            memory = shared_memory(place)
            return None if memory is None else (os.fstat(place).st_dev, memory)
    except OSError as error:
        check_room(error)
        return None


def _answers(points: dict[str, Mount]) -> bool:
    """Whether the mounts above are local: a remote file system may never answer."""
    above = (points[point].kind for point in _MOST_ABOVE if point in points)
    return all(is_remote(kind) is False for kind in above)


@contextmanager
def _opened(path: Path | str, folder: int | None = None) -> Iterator[int]:
    # /proc/PID/root is a link, the only one that is followed.
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
    # Without openat2: one component at a time, each with O_NOFOLLOW.
    with _opened(_PLACE[0], root) as above, _opened(_PLACE[1], above) as descriptor:
        yield descriptor


@contextmanager
def _closed(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _mount_number(proc: Path, descriptor: int) -> int | None:
    """The mount that our `descriptor` leads to, from fdinfo: the file system is not queried."""
    for line in (read(proc / "self/fdinfo" / str(descriptor)) or "").splitlines():
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return int(value)
    return None
