"""Recorded kernel files, laid out as the kernel does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path


def lay(root: Path, files: Mapping[str, str]) -> Path:
    """Write `files`, given by path, below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def links(folder: Path, *targets: str) -> Path:
    """Links to `targets`, numbered from 3, as in /proc/PID/fd."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, target in enumerate(targets, start=3):
        (folder / f"{number}").symlink_to(target)
    return folder


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


def process(  # noqa: PLR0913 - what a process shows, each with a default
    proc: Path,
    pid: int,
    *,
    read_bytes: int | None = 0,
    received_bytes: int = 0,
    cpu_ticks: int = 15,
    ended_ticks: int = 0,
    ran_ns: int = 1,
    children: Iterable[int] = (),
    cgroup: str = "/job",
    started_seconds: int = 50,
    state: str = "S",
) -> None:
    """A process; `read_bytes` None: it may not be known."""
    start = started_seconds * os.sysconf("SC_CLK_TCK")
    fields = (
        f"{state} 1 0 0 0 0 0 0 0 4 0 {cpu_ticks} 0 {ended_ticks} 0 20 0 1 0 {start} {'0 ' * 30}"
    )
    traffic = f"{received_bytes} 0 0 0 0 0 0 0 {2 * received_bytes} 0"
    files = {
        "stat": f"{pid} (a b) {fields}",
        "schedstat": f"{ran_ns} 2 3\n",
        "wchan": "futex_wait" if state == "S" else "0",
        "cgroup": f"0::{cgroup}\n",
        "status": "Cpus_allowed_list:\t0-3\n",
        "cmdline": "python\0",
        "net/dev": f"\n\neth0: {traffic}\n",
        "io": f"rchar: 0\nwchar: 0\nsyscw: 0\nread_bytes: {read_bytes}\nwrite_bytes: 0\n",
        f"task/{pid}/children": "".join(f"{child} " for child in children),
    }
    if read_bytes is None:
        files["io"] = ""
    lay(proc / str(pid), files)


def end(proc: Path, pid: int) -> None:
    """Let process `pid` end: its files, which may be open, say nothing any more."""
    for file in (proc / str(pid)).rglob("*"):
        if file.is_file():
            file.write_text("")
