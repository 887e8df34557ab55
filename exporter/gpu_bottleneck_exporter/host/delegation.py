"""Which part of a control group's path nobody but root can have made.

A user may make groups below one that was delegated to them, and name them as they like: after
a pod, a container, a job of somebody else. A folder that is root's own is where only root makes
others, so all folders up to the first that is not, this one included, are root's.
"""

from __future__ import annotations

import stat
from pathlib import Path

from gpu_bottleneck_exporter.host.cgroup import find_group

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def made_by_root(sysfs: Path, controllers: str, path: str) -> str:
    """The beginning of `path` that is root's making; all of it where that cannot be seen.

    `controllers` and `path` are those of a line in /proc/PID/cgroup, `sysfs` the host's.
    """
    mount = _mount(sysfs / "fs/cgroup", controllers)
    folder = find_group(mount, path) if mount else None
    if mount is None or folder is None:
        return path
    try:
        parts = folder.relative_to(mount).parts
        count = _made_by_owner_of(mount, parts)
    except (OSError, ValueError):
        return path
    return "/" + "/".join(parts[:count])


def _made_by_owner_of(mount: Path, parts: tuple[str, ...]) -> int:
    """How many of the folders `parts` below `mount` only the owner of `mount` can have made."""
    owner, folder = mount.stat().st_uid, mount
    for count, part in enumerate(parts):
        found = folder.stat()
        if found.st_uid != owner or found.st_mode & _OTHERS_WRITE:
            return count
        folder /= part
    return len(parts)


def _mount(cgroups: Path, controllers: str) -> Path | None:
    if not controllers:
        pure = (cgroups / "cgroup.controllers").exists()
        return cgroups if pure else _folder(cgroups / "unified")
    names = (controllers.removeprefix("name="), *controllers.split(","))
    return next((found for name in names if (found := _folder(cgroups / name))), None)


def _folder(path: Path) -> Path | None:
    return path if path.is_dir() else None
