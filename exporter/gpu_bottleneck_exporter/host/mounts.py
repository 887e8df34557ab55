"""The mounts of a process: on which it has files open, and where the data of these is.

The latter takes the permission to ptrace. Only what the kernel itself knows is read: no file and
no mount is asked, as that may be one that never answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.aside import aside, proc_reads
from gpu_bottleneck_exporter.host.descriptors import descriptors, fields, is_file, link_of
from gpu_bottleneck_exporter.host.files import (
    MANY_BYTES,
    MOST_REMEMBERED,
    read,
    read_part,
    understood,
)
from gpu_bottleneck_exporter.host.rings import RING
from gpu_bottleneck_exporter.host.waits import FUSE_CHANNELS, REMOTE_CHANNELS

REMOTE = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("9p", "afs", "panfs", "wekafs", "pvfs2", "orangefs", "ocfs2", "gfs2", "virtiofs"),
    }
)
"""File systems whose data is on another machine, by their type in mountinfo."""
_LAYERS = frozenset({"fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll"})
"""Of containers without root: they show files of other mounts, wherever these are."""
_MOUNT = re.compile(
    r"^([0-9]+) \S+ (\S+) (\S+) (\S+) \S+ (?:\S+ )*?- (\S+) ",  # id, device, root, point, type
    re.MULTILINE,
)
"""A line of mountinfo (proc_pid_mountinfo(5)); a `-` ends its optional fields."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_NO_FILES = frozenset({RING, "anon_inode:[eventpoll]"})
"""Links of descriptors on which a thread waits for other descriptors' files."""
_NO_DEVICE = "0:"
"""How `major:minor` begins of file systems without a block device."""
_STAYS_NS = 10_000_000_000
"""How long the types of mounts hold: mounts and open files change seldom."""


class Place(Enum):
    """The place where a file system has its data."""

    LOCAL = "local"
    REMOTE = "remote"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__
    """Enum's own __hash__ runs in Python, which is slow at each look."""


def place_of(kind: str) -> Place:
    """The place where file systems of type `kind` have their data.

    FUSE: elsewhere. The kernel has file systems for local data, `fuseblk` for block devices among
    them.
    """
    if kind in _LAYERS:
        return Place.UNKNOWN
    remote = kind in REMOTE or (_is_fuse(kind) and kind != "fuseblk")
    return Place.REMOTE if remote else Place.LOCAL


def _is_fuse(kind: str) -> bool:
    """Whether a program of its own answers for this type of file system."""
    return kind.partition(".")[0] in ("fuse", "fuseblk")


class Mount(NamedTuple):
    """One line of a /proc/PID/mountinfo file."""

    number: str
    device: str
    """`major:minor` as in st_dev: unique to the file system, even for a tmpfs."""
    root: str
    """The folder of the file system that is mounted."""
    point: str
    kind: str
    """Type of the file system."""

    @property
    def is_without_device(self) -> bool:
        """Whether the kernel itself reads no block device for it."""
        remote = self.kind in REMOTE or _is_fuse(self.kind)
        return remote or self.device.startswith(_NO_DEVICE)


def mounts(process: Path) -> list[Mount]:
    """The mounts of `process`, a folder in /proc; needs no permission.

    Empty if mountinfo cannot be read or is longer than 1 MiB: a file on a mount that was cut off
    would pass for one on the mount above.
    """
    table = read_part(process / "mountinfo", MANY_BYTES)
    lines = _MOUNT.findall(table.text) if table and table.whole else ()
    return [
        Mount(number, device, root, _OCTAL.sub(lambda code: chr(int(code[1], 8)), point), kind)
        for number, device, root, point, kind in lines
    ]


def mount_points(process: Path) -> dict[str, Mount]:
    """The mounts of `process` by their points; the last one on a point hides earlier ones."""
    return {mount.point: mount for mount in mounts(process)}


def mounts_of_open_files(proc: Path, pid: int) -> dict[str, str]:
    """The file systems on which process `pid` has files open: type by mount point.

    Looks at 512 descriptors at most. Empty without the permission to ptrace, or if mountinfo is
    longer than 1 MiB.
    """
    points = mount_points(proc / str(pid))
    paths = [link for _, link in descriptors(proc, pid) if is_file(link)]
    return {found.point: found.kind for path in paths if (found := _longest(points, path))}


def _longest(points: dict[str, Mount], path: str) -> Mount | None:
    while path != "/":
        if path in points:
            return points[path]
        path = path.rpartition("/")[0] or "/"
    return points.get("/")


class Places:
    """The places of files for which the processes of one GPU wait; used by one thread."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the host's."""
        self._proc = proc
        self._due_ns = 0
        self._known: dict[str, Mapping[str, str]] = {}
        """By mount namespace, types of all its mounts by their number; by pid, those on which it
        has files open by their point."""

    def of(self, pid: int, tid: int, now_ns: int) -> Place:
        """The place of the file that thread `tid` of `pid` waits for. Raises NoRoomError."""
        self._renew(now_ns)
        if not (kinds := self._mounted(pid)):
            pid, kinds = tid, self._mounted(tid)  # the first thread may have ended
        place = _common(kinds.values())
        if place is not Place.UNKNOWN or not kinds:
            return place  # all are alike, mostly local ones
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
        # Page faults, paths, AIO and io_uring name no file of their own.
        opened = self._kept(f"{pid}", lambda: mounts_of_open_files(self._proc, pid))
        return _common(opened.values())

    def is_without_device(self, pid: int, tid: int, now_ns: int) -> bool:
        """Whether thread `tid` of `pid` waits for a file on no block device.

        FUSE and the clients of many remote file systems do not account for I/O; those that do have
        shown it in the counters of the process.
        """
        self._renew(now_ns)
        wait = self._wait_of(pid, tid)
        if wait is None:
            return False
        number, channel = wait
        if number is None:
            return channel.startswith((*FUSE_CHANNELS, *REMOTE_CHANNELS))
        process = self._proc / f"{pid}"
        without = self._kept(
            f"{pid} without",
            lambda: {one.number: one.kind for one in mounts(process) if one.is_without_device},
        )
        return number in without

    def _renew(self, now_ns: int) -> None:
        if now_ns >= self._due_ns or len(self._known) >= MOST_REMEMBERED:
            self._due_ns = now_ns + _STAYS_NS
            self._known.clear()

    def _wait_of(self, pid: int, tid: int) -> tuple[str | None, str] | None:
        # Aside, for the locks of an execve, and of an epoll that takes over the file's number.
        return aside.call(pid, partial(_wait_of, f"{self._proc}/{pid}", tid))

    def _mounted(self, pid: int) -> Mapping[str, str]:
        process = self._proc / str(pid)
        namespace = None
        with suppress(PermissionError):
            namespace = proc_reads.call(pid, partial(link_of, f"{process}/ns", "mnt"))
        if namespace is None:
            return {}
        return self._kept(
            namespace, lambda: {mount.number: mount.kind for mount in mounts(process)}
        )

    def _kept(self, key: str, read_now: Callable[[], Mapping[str, str]]) -> Mapping[str, str]:
        if key not in self._known:
            self._known[key] = read_now()
        return self._known[key]


def _common(kinds: Iterable[str]) -> Place:
    """The place of these file systems, if all of them are in the same place."""
    places = {place_of(kind) for kind in kinds}
    return places.pop() if len(places) == 1 else Place.UNKNOWN


@understood
def _wait_of(process: str, tid: int) -> tuple[str | None, str] | None:
    """The number of the mount of the file that a system call is about, and the wait channel.

    None if it waits for no file by now.
    """
    call = (read(f"{process}/task/{tid}/syscall") or "").split()
    channel = read(f"{process}/task/{tid}/wchan") or ""
    # Fails for `running`, and for what may not be read.
    if int(call[0]) < 0:  # a page fault
        return None, channel
    # The first argument of all calls that wait for an open file; of others it is a pointer, or
    # AT_FDCWD.
    number = int(call[1], 16)
    try:
        link = link_of(f"{process}/fd", number)
    except PermissionError:
        return None
    if link is None or link in _NO_FILES:
        return None, channel
    if not is_file(link):
        return None
    return fields(read(f"{process}/fdinfo/{number}") or "").get("mnt_id"), channel
