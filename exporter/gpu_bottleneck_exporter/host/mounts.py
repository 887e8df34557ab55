"""Mounts of a process, and places of its open files' data.

Reads only the kernel's own tables. Open files take the permission to ptrace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import memory_reads, proc_reads
from gpu_bottleneck_exporter.host.descriptors import descriptors, fields, is_file, link_of
from gpu_bottleneck_exporter.host.files import (
    MAX_CACHE_ENTRIES,
    MAX_TABLE_BYTES,
    none_if_malformed,
    read,
    read_bounded,
)
from gpu_bottleneck_exporter.host.rings import RING
from gpu_bottleneck_exporter.host.waits import FUSE_CHANNELS, REMOTE_CHANNELS

REMOTE_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("9p", "afs", "panfs", "wekafs", "pvfs2", "orangefs", "ocfs2", "gfs2", "virtiofs"),
    }
)
"""File system types in mountinfo with data on another machine."""
_MOUNT_LINE = re.compile(
    r"^([0-9]+) \S+ (\S+) (\S+) (\S+) \S+ (?:\S+ )*?- (\S+) ",  # id, device, root, point, type
    re.MULTILINE,
)
"""A line of mountinfo (proc_pid_mountinfo(5)); `-` ends optional fields."""
_TTL_NS = 10_000_000_000
"""Lifetime of cached mounts, which seldom change."""
EPOLL = "anon_inode:[eventpoll]"
"""Link of an epoll instance."""


class Place(Enum):
    """The place of a file system's data."""

    LOCAL = "local"
    REMOTE = "remote"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow."""


def place_of(kind: str) -> Place:
    """The place of file systems of type `kind`.

    FUSE is remote, but for `fuseblk` on block devices.
    """
    # Of containers without root: these show files of other mounts.
    if kind in ("fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll"):
        return Place.UNKNOWN
    remote = kind in REMOTE_TYPES or (_is_fuse(kind) and kind != "fuseblk")
    return Place.REMOTE if remote else Place.LOCAL


def _is_fuse(kind: str) -> bool:
    return kind.partition(".")[0] in ("fuse", "fuseblk")


class Mount(NamedTuple):
    """One line of mountinfo."""

    number: str
    device: str
    """`major:minor` as in st_dev, unique even for a tmpfs."""
    root: str
    """Mounted folder of the file system."""
    point: str
    kind: str
    """Type of the file system."""

    @property
    def is_without_device(self) -> bool:
        """Whether the kernel itself reads no block device for it."""
        remote = self.kind in REMOTE_TYPES or _is_fuse(self.kind)
        return remote or self.device.startswith("0:")


def mounts(process: Path) -> list[Mount]:
    """Mounts in a /proc folder, without permission; none if mountinfo exceeds 1 MiB.

    A file on a mount that was cut off would pass for one on the mount above.
    """
    table = read_bounded(process / "mountinfo", MAX_TABLE_BYTES)
    lines = _MOUNT_LINE.findall(table.text) if table and table.whole else ()
    return [
        Mount(number, device, root, _unescaped(point), kind)
        for number, device, root, point, kind in lines
    ]


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), path)


def mount_points(process: Path) -> dict[str, Mount]:
    """Mounts by point; the last one hides earlier ones."""
    return {mount.point: mount for mount in mounts(process)}


def mounts_of_open_files(proc: Path, pid: int) -> dict[str, str]:
    """File system types of open files by mount point; none without the permission to ptrace."""
    points = mount_points(proc / str(pid))
    paths = [link for _, link in descriptors(proc, pid) if is_file(link)]
    return {mount.point: mount.kind for path in paths if (mount := _longest(points, path))}


def _longest(points: dict[str, Mount], path: str) -> Mount | None:
    while path != "/":
        if path in points:
            return points[path]
        path = path.rpartition("/")[0] or "/"
    return points.get("/")


class Places:
    """The places of files that one GPU's processes wait for. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._due_ns = 0
        self._types: dict[str, Mapping[str, str]] = {}
        """Types by mount number per mount namespace; by mount point per pid with open files."""

    def locate(self, pid: int, tid: int, now_ns: int) -> Place:
        """Place of the file that thread `tid` of `pid` waits for. Raises FileLimitError."""
        self._renew(now_ns)
        if not (kinds := self._mounted(pid)):
            pid, kinds = tid, self._mounted(tid)  # after the end of the first thread
        place = _common(kinds.values())
        if place is not Place.UNKNOWN or not kinds:
            return place  # all mounts are of one place
        wait = self._wait_of(pid, tid)
        if wait is None:
            return Place.UNKNOWN
        mount, channel = wait
        if mount is not None:
            return _common(kind for number, kind in kinds.items() if number == mount)
        if channel.startswith(REMOTE_CHANNELS):
            return Place.REMOTE
        if channel.startswith(FUSE_CHANNELS):
            return _common(kind for kind in kinds.values() if _is_fuse(kind))
        # Page faults, paths, AIO and io_uring name no file.
        open_files = self._cached(f"{pid}", lambda: mounts_of_open_files(self._proc, pid))
        return _common(open_files.values())

    def is_without_device(self, pid: int, tid: int, now_ns: int) -> bool:
        """Whether thread `tid` of `pid` waits for a file on no block device.

        FUSE and many remote file systems do not account for I/O.
        """
        self._renew(now_ns)
        wait = self._wait_of(pid, tid)
        if wait is None:
            return False
        number, channel = wait
        if number is None:
            return channel.startswith((*FUSE_CHANNELS, *REMOTE_CHANNELS))
        process = self._proc / f"{pid}"
        without = self._cached(
            f"{pid} without",
            lambda: {at.number: at.kind for at in mounts(process) if at.is_without_device},
        )
        return number in without

    def _renew(self, now_ns: int) -> None:
        if now_ns >= self._due_ns or len(self._types) >= MAX_CACHE_ENTRIES:
            self._due_ns = now_ns + _TTL_NS
            self._types.clear()

    def _wait_of(self, pid: int, tid: int) -> tuple[str | None, str] | None:
        # With a timeout, for the locks of an execve or an epoll.
        return memory_reads.call(pid, partial(_wait_of, f"{self._proc}/{pid}", tid))

    def _mounted(self, pid: int) -> Mapping[str, str]:
        process = self._proc / str(pid)
        namespace = None
        with suppress(PermissionError):
            namespace = proc_reads.call(pid, partial(link_of, f"{process}/ns", "mnt"))
        if namespace is None:
            return {}
        return self._cached(
            namespace, lambda: {mount.number: mount.kind for mount in mounts(process)}
        )

    def _cached(self, key: str, read_now: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        if key not in self._types:
            self._types[key] = read_now()
        return self._types[key]


def _common(kinds: Iterable[str]) -> Place:
    places = {place_of(kind) for kind in kinds}
    return places.pop() if len(places) == 1 else Place.UNKNOWN


@none_if_malformed
def _wait_of(process: str, tid: int) -> tuple[str | None, str] | None:
    """Mount number of the file in a thread's system call, and its wait channel; None: no file."""
    call = (read(f"{process}/task/{tid}/syscall") or "").split()
    channel = read(f"{process}/task/{tid}/wchan") or ""
    # Fails for `running`, and without the permission.
    if int(call[0]) < 0:  # a page fault
        return None, channel
    # The first argument of all calls that wait for an open file.
    number = int(call[1], 16)
    try:
        link = link_of(f"{process}/fd", number)
    except PermissionError:
        return None
    if link is None or link in (RING, EPOLL):
        return None, channel
    if not is_file(link):
        return None
    return fields(read(f"{process}/fdinfo/{number}") or "").get("mnt_id"), channel
