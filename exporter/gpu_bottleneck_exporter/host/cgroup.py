"""The control groups of a process: limits, throttling, memory, pressure; v1, v2 and hybrid.

Also the pressure of the whole machine, whose files (/proc/pressure) have the same form.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MANY_BYTES, KeptFiles, read

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RESOURCES = ("cpu", "io", "memory")
"""Those whose pressure stall information (PSI) the kernel gives."""
_UNLIMITED_BYTES = 2**60
"""Cgroup v1 writes "no limit" as the largest multiple of a page."""
_NAMESPACE_DEPTH = 3
"""Kubernetes' levels above a container: kubepods.slice, the slice of its QoS class, the pod."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNMAPPED = 65_534
"""The uid under which a user namespace shows all users that it has no number for."""
_MOST_SEARCHED = 16_384
"""Groups of a hierarchy that are searched for our own: 40 µs each, once."""
_MOST_LEVELS = 64
"""A job may nest thousands of groups in one that was delegated to it."""
_FLAT_KEYED = re.compile(r"^(\w+) ([0-9]+)$", re.MULTILINE)
_REFAULTS = ("workingset_refault", "workingset_refault_anon", "workingset_refault_file")
"""Lines of memory.stat; a kernel has either the plain one or the other two."""
_MEMBERSHIP = re.compile(r"^[^:\n]*:([^:\n]*):(.+)$", re.MULTILINE)
_QUOTA = re.compile(r"([0-9]+)\s+([0-9]+)\s*")
"""Quota and period; v2 writes `max` for no quota, v1 -1."""
_STALLED = re.compile(r"^(some|full) .*\btotal=([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """Memory of a cgroup: bytes in use, page cache included, and the limit if there is one."""

    folder: Path
    used_bytes: int
    limit_bytes: int | None

    def cache_bytes(self, *lists: str) -> int | None:
        """Page cache in these LRU lists (memory.stat), of groups below, too; None if unknown."""
        stat = dict(_FLAT_KEYED.findall(read(f"{self.folder}/memory.stat") or ""))
        # Cgroup v1 has a list without the groups below as well.
        found = [stat.get(f"total_{name}", stat.get(name)) for name in lists]
        return None if None in found else sum(int(size or 0) for size in found)


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a cgroup so far; None or empty if they cannot be read."""

    throttled_ns: int | None = None
    """For which CPU quotas throttled its tasks, its own quota and inherited ones."""
    periods: int | None = None
    """Quota periods, at the level where the quota ran out most often."""
    throttled_periods: int | None = None
    """Periods in which it ran out."""
    refault_bytes: int | None = None
    """Evicted, and read in again."""
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Stalled by (resource, kind); v2 only, and only if PSI is enabled."""


@dataclass(unsafe_hash=True)
class Cgroup:
    """The cgroups of one process: folders on this machine, None where there is none.

    `unified` is the cgroup v2 folder; `cpu` and `memory` are the folders of these controllers,
    under v2 the same one.
    """

    unified: Path | None
    cpu: Path | None
    memory: Path | None
    counted: Counted = field(default=Counted(), compare=False)
    """As of the last `look`."""
    files: KeptFiles = field(default_factory=KeptFiles, compare=False)
    """Those that stay open between looks."""

    def look(self) -> Counted:
        """Read the counters."""
        stats = [one for level in self._cpu_levels if (one := self._numbers(f"{level}/cpu.stat"))]
        # A quota of any level throttles.
        known = [ns for one in stats if (ns := _throttled_ns(one)) is not None]
        most = max(stats, key=lambda one: one.get("nr_throttled", 0), default={})
        memory = self._numbers(f"{self.memory}/memory.stat") if self.memory else {}
        pages = [memory[name] for name in _REFAULTS if name in memory]
        self.counted = Counted(
            sum(known) if known else None,
            most.get("nr_periods"),
            most.get("nr_throttled"),
            sum(pages) * PAGE_BYTES if pages else None,
            stalled_by_resource(self._pressure),
        )
        return self.counted

    @cached_property
    def _cpu_levels(self) -> list[Path]:
        return _levels(self.cpu)

    @cached_property
    def _memory_levels(self) -> list[Path]:
        return _levels(self.memory)

    def _numbers(self, path: str) -> dict[str, int]:
        """A file of a name and a number per line (flat keyed); empty if it cannot be read."""
        return {name: int(value) for name, value in _FLAT_KEYED.findall(self.files.text(path))}

    def _pressure(self, resource: str) -> str:
        return self.files.text(f"{self.unified}/{resource}.pressure") if self.unified else ""

    def cpu_limit(self) -> tuple[Path, float] | None:
        """The tightest CPU quota of all levels: its folder, and cores; None without a quota."""
        limits = [
            (level, quota) for level in self._cpu_levels if (quota := _quota(level)) is not None
        ]
        return min(limits, key=lambda limit: limit[1], default=None)

    def memory_level(self) -> MemoryLevel | None:
        """The level with the tightest memory limit, its own or an ancestor's."""
        levels = [
            MemoryLevel(level, int(used), _memory_limit(level))
            for level in self._memory_levels
            if (used := read(f"{level}/memory.current") or read(f"{level}/memory.usage_in_bytes"))
        ]
        limited = [level for level in levels if level.limit_bytes is not None]
        return min(limited or levels, key=lambda level: level.limit_bytes or 0, default=None)


class Cgroups:
    """The cgroups of all feeders: each is read once a tick, however many processes share it."""

    def __init__(self, sysfs: Path) -> None:
        """`sysfs`: the host's."""
        self._sysfs = sysfs
        self._known: dict[Cgroup, Cgroup] = {}

    def of(self, text: str) -> Cgroup:
        """The one that `text`, a /proc/PID/cgroup file, names; its counters are read if new."""
        found = cgroup_of(text, self._sysfs)
        if found not in self._known:
            found.look()
            self._known[found] = found
        return self._known[found]

    def look(self) -> None:
        """Read all counters."""
        for group in self._known:
            group.look()

    def keep(self, wanted: Collection[Cgroup]) -> None:
        """Forget all others."""
        for group in self._known.keys() - wanted:
            self._known.pop(group).files.clear()


def cgroup_of(text: str, sysfs: Path) -> Cgroup:
    """The cgroups that `text`, a /proc/PID/cgroup file, names, below `sysfs`/fs/cgroup.

    The machine's root cgroup counts as none: it belongs to no process in particular.
    """
    paths = _paths(text)
    unified = find_group(hierarchy(sysfs, ""), paths.get(""))
    cpu = find_group(hierarchy(sysfs, "cpu,cpuacct"), paths.get("cpu"))
    memory = find_group(hierarchy(sysfs, "memory"), paths.get("memory"))
    return Cgroup(unified, cpu or unified, memory or unified)


def hierarchy(sysfs: Path, controllers: str) -> Path | None:
    """The mount of the hierarchy of `controllers`, as /proc/PID/cgroup names them.

    None without one. Empty: the v2 hierarchy, which a hybrid machine has beside those of v1.
    """
    root = sysfs / "fs/cgroup"
    if not controllers and (root / "cgroup.controllers").exists():
        return root
    names = [controllers.removeprefix("name="), *controllers.split(",")]
    names = names if controllers else ["unified"]
    return next((root / name for name in names if (root / name).is_dir()), None)


def hidden(text: str, sysfs: Path) -> set[str]:
    """Which of a process's cgroups (`cpu`, `memory`, `unified`) cannot be found.

    `text` is its /proc/PID/cgroup file. The machine's root cgroup is never reported.
    """
    paths, found = _paths(text), cgroup_of(text, sysfs)
    return {
        name
        for name in ("cpu", "memory", "unified")
        if getattr(found, name) is None and paths.get(name, paths.get("", "/")) != "/"
    }


def _paths(text: str) -> Mapping[str, str]:
    """Path by controller; the v2 hierarchy has the empty name."""
    return {name: path for names, path in memberships(text) for name in names.split(",")}


def memberships(text: str) -> list[tuple[str, str]]:
    """Controllers and path of each line of `text`, a /proc/PID/cgroup file."""
    return _MEMBERSHIP.findall(text)


def find_group(root: Path | None, path: str | None) -> Path | None:
    """The folder of cgroup `path` below `root`, the mount of its hierarchy; None if not visible.

    In a private cgroup namespace the path is relative to our own cgroup. A job may nest groups
    until their path exceeds PATH_MAX: such a group counts as not visible.
    """
    below = _below(root, path) if root and path is not None else None
    # In a container, the root of our mount is the container's own cgroup.
    if root is None or below is None or not (below or _is_v2(root)):
        return None
    folder = root.joinpath(*below)
    # Not Path.is_dir, which raises where a name is too long.
    return folder if os.path.isdir(folder) else None  # noqa: PTH112 - see above


def _below(root: Path, path: str) -> Sequence[str] | None:
    """The folders of `path` below mount `root`; None if it begins outside of it."""
    parts = [part for part in path.split("/") if part]
    below = [part for part in parts if part != ".."]
    if below == parts:
        return below
    base = _namespace_root(root)
    if base is not None:
        level = len(base) - len(parts) + len(below)
        return [*base[:level], *below] if level >= 0 else None
    if _is_v2(root) or not below:
        return None  # our mount shows our own cgroup only, and the process is outside of it
    return _search(root, below)


@cache
def _namespace_root(mount: Path) -> Sequence[str] | None:
    """The folders from `mount` to the root of our own cgroup namespace; None if unknown.

    The kernel names groups relative to that root, and does not say where it is: in a container it
    is our own group, which lists our pid.
    """
    own = {path for _, path in memberships(read("/proc/self/cgroup") or "")}
    for folder, *_ in islice(os.walk(mount), _MOST_SEARCHED) if own == {"/"} else ():
        if f"{os.getpid()}" in (read(f"{folder}/cgroup.procs", MANY_BYTES) or "").split():
            return (mount / folder).relative_to(mount).parts
    return None


def _search(root: Path, below: Sequence[str]) -> Sequence[str] | None:
    """The only folder that ends in `below`: a relative path does not show where it begins."""
    for depth in range(_NAMESPACE_DEPTH + 1):
        tops = root.glob("/".join("*" * depth)) if depth else [root]
        groups = (top.joinpath(*below) for top in tops)
        matches = [group for group in groups if os.path.isdir(group)]  # noqa: PTH112 - as above
        if matches:
            return matches[0].relative_to(root).parts if len(matches) == 1 else None
    return None


def _levels(folder: Path | None) -> list[Path]:
    """The cgroup and its ancestors without the machine's root; of very many, both ends."""
    above = (folder, *folder.parents) if folder else ()
    found = [one for one in above if (one.parent / "cgroup.procs").exists() or _is_v2(one)]
    middle = _MOST_LEVELS // 2
    return found if len(found) <= _MOST_LEVELS else [*found[:middle], *found[-middle:]]


def _is_v2(folder: Path) -> bool:
    """Whether it is a v2 cgroup other than the machine's root, which has no cgroup.type."""
    return (folder / "cgroup.type").exists()


def _throttled_ns(stat: Mapping[str, int]) -> int | None:
    """Time throttled, by cpu.stat of v2 or of v1; None without the CPU controller."""
    microseconds = stat.get("throttled_usec")
    return stat.get("throttled_time") if microseconds is None else microseconds * 1000


def _quota(level: Path) -> float | None:
    v1 = (read(f"{level}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    found = _QUOTA.fullmatch(read(f"{level}/cpu.max") or " ".join(v1))
    return int(found[1]) / int(found[2]) if found else None


def _memory_limit(level: Path) -> int | None:
    """Bytes beyond which its processes are throttled or killed."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    texts = [(read(f"{level}/{name}") or "max").strip() for name in names]
    limits = [int(text) for text in texts if text != "max"]
    return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)


def made_by_root(sysfs: Path, controllers: str, path: str) -> str:
    """The beginning of `path` that only root can have created, as an absolute path; else `/`.

    Users may create groups below one that was delegated to them, and name them as they like, even
    after somebody else's pod, container or job. In a folder that belongs to root only root can
    create others. So all folders down to the first that is not root's, including it, are root's.
    Folders that cannot be found count for nothing: a name that is no UTF-8, a removed group
    (`(deleted)`), a hierarchy that is not mounted, a relative path that begins outside of it.

    `controllers` and `path` come from a line of /proc/PID/cgroup; `sysfs` is the host's.
    """
    mount = hierarchy(sysfs, controllers)
    parts = _below(mount, path) if mount else None
    return "/" + "/".join(verified(mount, parts) if mount and parts else ())


def verified(mount: Path, parts: Sequence[str]) -> Sequence[str]:
    """The first of the nested folders `parts` that only the owner of `mount` can have created."""
    count, folder = 0, f"{mount}"
    with suppress(OSError, ValueError):  # it is not there, no path can name it, or it is no path
        state = mount.stat()
        owner = state.st_uid
        for part in parts if owner != _UNMAPPED else ():
            if state.st_uid != owner or state.st_mode & _OTHERS_WRITE:
                break
            folder += f"/{part}"
            state = os.lstat(folder)
            count += 1
    return parts[:count]


def stalled_ns(text: str) -> Mapping[str, int]:
    """Nanoseconds stalled by kind (some, full), from the `total=` fields (µs) of a PSI file.

    Kinds that the file lacks are left out: before Linux 5.13, `full` of cpu.
    """
    return {kind: int(total) * 1000 for kind, total in _STALLED.findall(text)}


def stalled_by_resource(text_of: Callable[[str], str]) -> dict[tuple[str, str], int]:
    """Nanoseconds stalled by (resource, kind); `text_of` reads a resource's PSI file."""
    return {
        (resource, kind): value
        for resource in _RESOURCES
        for kind, value in stalled_ns(text_of(resource)).items()
    }
