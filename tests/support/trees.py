"""Recorded kernel files, laid out as the kernel does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def lay(root: Path, files: Mapping[str, str]) -> Path:
    """Write `files`, given by path, below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cgroup_v2(sysfs: Path, files: Mapping[str, str]) -> Path:
    """A pure cgroup v2 machine; folders named in `files` are cgroups. Returns the mount."""
    mount = sysfs / "fs/cgroup"
    lay(mount, {"cgroup.controllers": "cpuset cpu io memory pids\n", "cgroup.procs": "1\n"})
    return _grow(mount, files, {"cgroup.procs": "", "cgroup.type": "domain\n"})


def cgroup_v1(sysfs: Path, files: Mapping[str, str]) -> Path:
    """A machine with v1 controllers, the first parts of the paths. Returns their parent."""
    mount = sysfs / "fs/cgroup"
    mount.mkdir(parents=True, exist_ok=True)
    return _grow(mount, files, {"cgroup.procs": ""})


def _grow(mount: Path, files: Mapping[str, str], each: Mapping[str, str]) -> Path:
    lay(mount, files)
    for name in files:
        folder = (mount / name).parent
        while folder != mount:
            lay(folder, {file: text for file, text in each.items() if not (folder / file).exists()})
            folder = folder.parent
    return mount
