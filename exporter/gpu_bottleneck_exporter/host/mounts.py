"""What a process has mounted, and on which file systems it has files open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import MANY_BYTES, listed, read_part

REMOTE = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("9p", "afs", "panfs", "wekafs", "pvfs2", "orangefs", "ocfs2", "gfs2", "virtiofs"),
    }
)
"""File systems whose data is on another machine, by their names in mountinfo."""
_MOST = 256
_DEVICE, _ROOT, _POINT, _FIRST_OPTIONAL = 2, 3, 4, 6
_OCTAL = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def mounts_of_open_files(proc: Path, pid: int) -> dict[str, str]:
    """By mount point, the type of each file system that process `pid` has a file open on.

    Of 256 descriptors at most; empty where we may not know, or there are too many mounts (1 MiB
    of them). Takes the right to ptrace.
    """
    table = read_part(proc / str(pid) / "mountinfo", MANY_BYTES)
    if table is None or not table.whole:
        return {}  # whose mount is missing would pass for its neighbour's
    points = {mount.point: mount.kind for mount in mounts(table.text)}
    found: dict[str, str] = {}
    for path in _open_files(proc / str(pid) / "fd"):
        point = _longest(points, path)
        if point is not None:
            found[point] = points[point]
    return found


def is_remote(kind: str) -> bool | None:
    """Whether a file system of this type is on another machine; None: it may be (FUSE)."""
    if kind in REMOTE:
        return True
    return None if kind.startswith("fuse") and kind != "fuseblk" else False


class Mount(NamedTuple):
    """One line of a /proc/PID/mountinfo file."""

    number: int
    point: str
    kind: str
    """Of its file system."""
    device: str
    """`major:minor` of its file system, as in st_dev: of this one only, also of a tmpfs."""
    root: str
    """The folder of its file system that is mounted."""


def mounts(text: str) -> Iterator[Mount]:
    """Those of a mountinfo file; the last one on a point hides those before it."""
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" in fields[_FIRST_OPTIONAL:-1] and fields[0].isdigit():
            kind = fields[fields.index("-", _FIRST_OPTIONAL) + 1]
            point = _plain(fields[_POINT])
            yield Mount(int(fields[0]), point, kind, fields[_DEVICE], fields[_ROOT])


def mount_at(process: Path, point: str) -> Mount | None:
    """What `process`, a folder in /proc, has mounted at `point`; takes no rights.

    None where there is nothing, it cannot be read, or there are too many mounts (1 MiB of them).
    """
    table = read_part(process / "mountinfo", MANY_BYTES)
    if table is None or not table.whole:
        return None
    return {mount.point: mount for mount in mounts(table.text)}.get(point)


def _plain(point: str) -> str:
    for code, character in _OCTAL.items():
        point = point.replace(code, character)
    return point


def _open_files(folder: Path) -> list[str]:
    paths = []
    try:
        names, _ = listed(folder, _MOST)
    except OSError:
        return []
    for name in names:
        with contextlib.suppress(OSError):
            paths.append(os.readlink(folder / name))  # noqa: PTH115 - half the time
    return [path for path in paths if path.startswith("/") and not path.startswith("/dev/")]


def _longest(points: dict[str, str], path: str) -> str | None:
    while path != "/":
        if path in points:
            return path
        path = path.rpartition("/")[0] or "/"
    return "/" if "/" in points else None
