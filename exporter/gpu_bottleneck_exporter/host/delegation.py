"""Which part of a control group's path only root can have created.

Users may create groups below one that was delegated to them, and name them as they like, even
after somebody else's pod, container or job. In a folder that belongs to root only root can create
others. So all folders down to the first that is not root's, including it, were created by root.
"""

from __future__ import annotations

import stat
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import find_group, hierarchy

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def made_by_root(sysfs: Path, controllers: str, path: str) -> str:
    """The beginning of `path` that root created; all of it if the folder cannot be found.

    `controllers` and `path` come from a line of /proc/PID/cgroup; `sysfs` is the host's.
    """
    mount = hierarchy(sysfs, controllers)
    folder = find_group(mount, path)
    if mount is None or folder is None:
        return path
    try:
        parts = folder.relative_to(mount).parts
        count = _made_by_owner_of(mount, parts)
    except (OSError, ValueError):
        return path
    return "/" + "/".join(parts[:count])


def _made_by_owner_of(mount: Path, parts: tuple[str, ...]) -> int:
    """How many of the folders `parts` below `mount` only the owner of `mount` can have created."""
    owner, folder = mount.stat().st_uid, mount
    for count, part in enumerate(parts):
        found = folder.stat()
        if found.st_uid != owner or found.st_mode & _OTHERS_WRITE:
            return count
        folder /= part
    return len(parts)
