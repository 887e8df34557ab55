"""The modes in which chart, unit and docs run the exporter, and how to stage one.

Stages namespaces, mounts, user and capabilities: these decide what the exporter can read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import gpu_bottleneck_exporter
from support.command import Server
from support.rights import Way, _after, _unshared, as_user, with_cgroups_of_its_own
from support.tools import require

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Mode:
    """The rights and files of the exporter; user and group have the same number."""

    user: int
    capabilities: frozenset[str] = frozenset()
    """Capabilities as setpriv calls them."""
    container: bool = True
    host_pids: bool = False
    read_only: bool = True
    lent: frozenset[Path] = frozenset()
    """Host folders that a container sees, read-only."""
    sealed: frozenset[Path] = frozenset()
    """Mounts whose submounts are read-only, too."""
    hidepid: str = ""
    """The option of this name with which /proc is mounted; empty: /proc as it is."""
    arguments: tuple[str, ...] = ("serve",)
    variables: Mapping[str, str] = field(default_factory=dict)

    def collects(self, name: str) -> bool:
        """Whether the collector is on."""
        return self.variables.get(f"GPU_EXPORTER_COLLECTOR_{name.upper()}") != "false"

    @property
    def without(self) -> frozenset[str]:
        """Signals that are not expected."""
        return frozenset(filter(None, self.variables.get("GPU_EXPORTER_WITHOUT", "").split(",")))

    @property
    def rights(self) -> Way:
        return as_user(self.user, *self.capabilities)


def way(mode: Mode, folder: Path, hosts: Mapping[Path, Path], groups: tuple[Path, ...]) -> Way:
    """Words that stage `mode`; under a read-only root, only `folder` stays writable.

    `hosts`: stand-ins for the host's folders. `groups`: the container's control groups.
    """
    pids = () if mode.host_pids else ("--pid", "--fork", "--kill-child", "--mount-proc")
    cgroups = _cgroups(mode, groups) if mode.container else ()
    mounts = [
        *_opened(folder),
        *(line for path in sorted(mode.lent & hosts.keys()) for line in _lent(hosts[path], path)),
        *(_read_only(path, recursive=path in mode.sealed) for path in sorted(mode.lent)),
        *([f"mount -t proc -o hidepid={mode.hidepid} proc /proc"] if mode.hidepid else []),
        *([*_bound(folder, folder), "mount -o remount,bind,ro /"] if mode.read_only else []),
    ]
    return (*cgroups, *_unshared("--mount", *pids), *_after(*mounts), *mode.rights)


def inside(server: Server, mode: Mode) -> Way:
    """Words that run a command where `server` runs, as `kubectl exec` and `docker exec` do."""
    pid = server.process.pid
    if not mode.host_pids:  # in its own PID namespace, it is a child of unshare
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    spaces = (f"--target={pid}", "--mount", "--pid", "--cgroup")
    return (require("nsenter", "util-linux"), *spaces, "--", *mode.rights)


def _cgroups(mode: Mode, groups: tuple[Path, ...]) -> Way:
    """Runtimes show a container its own control groups; under cgroup v1 the host's if shared."""
    lent = CGROUPS in mode.lent
    if lent and not (CGROUPS / "cgroup.controllers").exists():
        return ()
    return with_cgroups_of_its_own(groups, mounted=not lent)


def _lent(source: Path, target: Path) -> Iterator[str]:
    """`source` at `target`; a missing target folder is created in memory."""
    if not target.exists():
        parent = next(parent for parent in target.parents if parent.exists())
        yield f"mount -t tmpfs -o mode=755 tmpfs {parent}"
    yield from _bound(source, target)


def _read_only(path: Path, *, recursive: bool) -> str:
    """Mounts read-only as Kubernetes does with readOnly, or also with recursiveReadOnly."""
    listed = f"findmnt --list --noheadings --output=TARGET --submounts '{path}'"
    result = listed if recursive else f"echo '{path}'"
    return f'{result} | while read -r at; do mount -o remount,bind,ro "$at"; done'


def _opened(folder: Path) -> Iterator[str]:
    """Make interpreter and packages readable for all users if they lie in a closed folder.

    In a home folder, for example, nothing but these remains visible.
    """
    ours = Path(gpu_bottleneck_exporter.__file__).parents[1]
    paths = (Path(sys.base_prefix), Path(sys.prefix), ours)
    closed = sorted((at, path) for path in paths if (at := _closed(path)))
    for at, result in groupby(closed, key=lambda each: each[0]):
        fields = {path: folder / f"kept{path}" for _, path in result}
        yield from _all_bound((path, copy) for path, copy in fields.items())
        yield f"mount -t tmpfs -o mode=755 tmpfs {at}"
        yield from _all_bound((copy, path) for path, copy in fields.items())


def _closed(path: Path) -> Path | None:
    """The outermost parent of `path` that other users cannot enter."""
    folders = [path, *path.parents]
    return next((at for at in reversed(folders) if not at.stat().st_mode & 0o001), None)


def _all_bound(pairs: Iterable[tuple[Path, Path]]) -> Iterator[str]:
    for source, target in pairs:
        yield from _bound(source, target)


def _bound(source: Path, target: Path) -> Iterator[str]:
    yield f"mkdir -p '{target}'"
    yield f"mount --bind '{source}' '{target}'"
