"""The mounts of a process, and the file systems on which it has files open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.descriptors import descriptors, is_file
from gpu_bottleneck_exporter.host.files import MANY_BYTES, read_part

REMOTE = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("9p", "afs", "panfs", "wekafs", "pvfs2", "orangefs", "ocfs2", "gfs2", "virtiofs"),
    }
)
"""File systems whose data is on another machine, by their type in mountinfo."""
_LAYERS = frozenset({"fuse.fuse-overlayfs", "fuse.squashfuse", "fuse.squashfuse_ll"})
"""Of containers without root: they show files of other mounts, wherever these are."""
_DEVICE, _ROOT, _POINT, _FIRST_OPTIONAL = 2, 3, 4, 6
"""Fields of a mountinfo line (proc_pid_mountinfo(5)); optional ones end with a `-`."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def mounts_of_open_files(proc: Path, pid: int) -> dict[str, str]:
    """The file systems on which process `pid` has files open: type by mount point.

    Looks at 512 descriptors at most. Empty without the permission to ptrace, or if mountinfo is
    longer than 1 MiB.
    """
    points = mount_points(proc / str(pid))
    paths = [link for _, link in descriptors(proc, pid) if is_file(link)]
    return {found.point: found.kind for path in paths if (found := _longest(points, path))}


def is_remote(kind: str) -> bool | None:
    """Whether this type of file system keeps its data on another machine; None: maybe.

    FUSE does: the kernel has file systems for local data, `fuseblk` for block devices among them.
    """
    if kind in _LAYERS:
        return None
    return kind in REMOTE or (is_fuse(kind) and kind != "fuseblk")


def is_fuse(kind: str) -> bool:
    """Whether a program of its own answers for this type of file system."""
    return kind in {"fuse", "fuseblk"} or kind.startswith("fuse.")


class Mount(NamedTuple):
    """One line of a /proc/PID/mountinfo file."""

    number: int
    point: str
    kind: str
    """Type of the file system."""
    device: str
    """`major:minor` as in st_dev: unique to the file system, even for a tmpfs."""
    root: str
    """The folder of the file system that is mounted."""


def mounts(process: Path) -> list[Mount]:
    """The mounts of `process`, a folder in /proc; needs no permission.

    Empty if mountinfo cannot be read or is longer than 1 MiB: a file on a mount that was cut off
    would pass for one on the mount above.
    """
    table = read_part(process / "mountinfo", MANY_BYTES)
    return [*_parsed(table.text)] if table and table.whole else []


def _parsed(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" in fields[_FIRST_OPTIONAL:-1] and fields[0].isdigit():
            kind = fields[fields.index("-", _FIRST_OPTIONAL) + 1]
            point = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[_POINT])
            yield Mount(int(fields[0]), point, kind, fields[_DEVICE], fields[_ROOT])


def mount_points(process: Path) -> dict[str, Mount]:
    """The mounts of `process` by their points; the last one on a point hides earlier ones."""
    return {mount.point: mount for mount in mounts(process)}


def _longest(points: dict[str, Mount], path: str) -> Mount | None:
    while path != "/":
        if path in points:
            return points[path]
        path = path.rpartition("/")[0] or "/"
    return points.get("/")
