"""Control groups (limits, throttling, memory, pressure; v1, v2, hybrid); PSI files."""

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

from gpu_bottleneck_exporter.host.files import MAX_TABLE_BYTES, KeptFiles, read

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UNMAPPED_UID = 65_534
"""Uid of users without a mapping in a user namespace."""
_FLAT_KEYED = re.compile(r"^(\w+) ([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """The memory of a cgroup: bytes used with page cache, and any limit."""

    folder: Path
    used_bytes: int
    limit_bytes: int | None

    def cache_bytes(self, *lists: str) -> int | None:
        """Page cache in these LRU lists, groups below included; None if unknown."""
        stat = dict(_FLAT_KEYED.findall(read(f"{self.folder}/memory.stat") or ""))
        # Cgroup v1 also has sizes without the groups below.
        sizes = [stat.get(f"total_{name}", stat.get(name)) for name in lists]
        return None if None in sizes else sum(int(size or 0) for size in sizes)


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """The counters of a cgroup; None or empty if unreadable."""

    throttled_ns: int | None = None
    """Time throttled by its own and inherited CPU quotas."""
    periods: int | None = None
    """Quota periods, at the level most often out of quota."""
    throttled_periods: int | None = None
    """Periods out of quota, at the same level."""
    refault_bytes: int | None = None
    """Bytes evicted and read again."""
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Time stalled by (resource, kind); v2 with PSI only."""


@dataclass(unsafe_hash=True)
class Cgroup:
    """The cgroup folders of one process, None if absent; under v2 all the same."""

    unified: Path | None
    cpu: Path | None
    memory: Path | None
    counters: CgroupSample = field(default=CgroupSample(), compare=False)
    """Last `read_counters`."""
    files: KeptFiles = field(default_factory=KeptFiles, compare=False)

    def read_counters(self) -> CgroupSample:
        """Read the counters."""
        stats = [cpu for level in self._cpu_levels if (cpu := self._numbers(f"{level}/cpu.stat"))]
        # A quota at any level throttles.
        throttled = [ns for cpu in stats if (ns := _throttled_ns(cpu)) is not None]
        most = max(stats, key=lambda cpu: cpu.get("nr_throttled", 0), default={})
        memory = self._numbers(f"{self.memory}/memory.stat") if self.memory else {}
        # Either the plain line or the other two.
        names = ("workingset_refault", "workingset_refault_anon", "workingset_refault_file")
        pages = [memory[name] for name in names if name in memory]
        self.counters = CgroupSample(
            sum(throttled) if throttled else None,
            most.get("nr_periods"),
            most.get("nr_throttled"),
            sum(pages) * PAGE_BYTES if pages else None,
            stalled_by_resource(self._pressure),
        )
        return self.counters

    @cached_property
    def _cpu_levels(self) -> list[Path]:
        return _levels(self.cpu)

    @cached_property
    def _memory_levels(self) -> list[Path]:
        return _levels(self.memory)

    def _numbers(self, path: str) -> dict[str, int]:
        """A flat keyed file; empty if unreadable."""
        return {name: int(value) for name, value in _FLAT_KEYED.findall(self.files.text(path))}

    def _pressure(self, resource: str) -> str:
        return self.files.text(f"{self.unified}/{resource}.pressure") if self.unified else ""

    def cpu_limit(self) -> tuple[Path, float] | None:
        """Folder and cores of the tightest CPU quota of all levels, if any."""
        limits = [
            (level, quota) for level in self._cpu_levels if (quota := _quota(level)) is not None
        ]
        return min(limits, key=lambda limit: limit[1], default=None)

    def memory_level(self) -> MemoryLevel | None:
        """The level of the tightest memory limit."""
        levels = [
            MemoryLevel(level, int(used), _memory_limit(level))
            for level in self._memory_levels
            if (used := read(f"{level}/memory.current") or read(f"{level}/memory.usage_in_bytes"))
        ]
        limited = [level for level in levels if level.limit_bytes is not None]
        return min(limited or levels, key=lambda level: level.limit_bytes or 0, default=None)


class Cgroups:
    """The cgroups of all feeders, each read once a tick."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._groups: dict[Cgroup, Cgroup] = {}

    def get(self, text: str) -> Cgroup:
        """The cgroup in `text`, a /proc/PID/cgroup file; a new one is read."""
        group = cgroup_of(text, self._sysfs)
        if group not in self._groups:
            group.read_counters()
            self._groups[group] = group
        return self._groups[group]

    def read_counters(self) -> None:
        """Read all counters."""
        for group in self._groups:
            group.read_counters()

    def retain(self, used: Collection[Cgroup]) -> None:
        """Drop all others."""
        for group in self._groups.keys() - used:
            self._groups.pop(group).files.clear()


def cgroup_of(text: str, sysfs: Path) -> Cgroup:
    """The cgroups in `text`, a /proc/PID/cgroup file, without the machine's root."""
    paths = _paths(text)
    unified = find_group(hierarchy(sysfs, ""), paths.get(""))
    cpu = find_group(hierarchy(sysfs, "cpu,cpuacct"), paths.get("cpu"))
    memory = find_group(hierarchy(sysfs, "memory"), paths.get("memory"))
    return Cgroup(unified, cpu or unified, memory or unified)


def hierarchy(sysfs: Path, controllers: str) -> Path | None:
    """The mount of `controllers`; empty: v2, also of a hybrid machine."""
    root = sysfs / "fs/cgroup"
    if not controllers and (root / "cgroup.controllers").exists():
        return root
    names = [controllers.removeprefix("name="), *controllers.split(",")]
    names = names if controllers else ["unified"]
    return next((root / name for name in names if (root / name).is_dir()), None)


def hidden_controllers(text: str, sysfs: Path) -> set[str]:
    """Invisible cgroups (`cpu`, `memory`, `unified`) in a /proc/PID/cgroup file."""
    paths, group = _paths(text), cgroup_of(text, sysfs)
    return {
        name
        for name in ("cpu", "memory", "unified")
        if getattr(group, name) is None and paths.get(name, paths.get("", "/")) != "/"
    }


def _paths(text: str) -> Mapping[str, str]:
    """Path by controller; v2 is the empty name."""
    return {name: path for names, path in memberships(text) for name in names.split(",")}


def memberships(text: str) -> list[tuple[str, str]]:
    """Controllers and path per line of /proc/PID/cgroup."""
    return re.findall(r"^[^:\n]*:([^:\n]*):(.+)$", text, re.MULTILINE)


def find_group(root: Path | None, path: str | None) -> Path | None:
    """The folder of `path` below `root`, the mount of its hierarchy; None if not visible.

    In a private namespace, the path is relative to our own cgroup.
    """
    below = _below(root, path) if root and path is not None else None
    # In a container, our mount's root is the container's cgroup.
    if root is None or below is None or not (below or _is_v2(root)):
        return None
    folder = root.joinpath(*below)
    # Path.is_dir raises for a long name.
    return folder if os.path.isdir(folder) else None  # noqa: PTH112 - see above


def _below(root: Path, path: str) -> Sequence[str] | None:
    """The folders of `path` below mount `root`; None if it begins outside."""
    parts = [part for part in path.split("/") if part]
    below = [part for part in parts if part != ".."]
    if below == parts:
        return below
    base = _namespace_root(root)
    if base is not None:
        level = len(base) - len(parts) + len(below)
        return [*base[:level], *below] if level >= 0 else None
    if _is_v2(root) or not below:
        return None  # our mount shows our own cgroup only
    return _search(root, below)


@cache
def _namespace_root(mount: Path) -> Sequence[str] | None:
    """The folders from `mount` to our namespace's root, which the kernel does not report.

    It is our own group in a container, found by our pid; None if unknown.
    """
    own = {path for _, path in memberships(read("/proc/self/cgroup") or "")}
    # 40 µs per group, once.
    for folder, *_ in islice(os.walk(mount), 16_384) if own == {"/"} else ():
        if f"{os.getpid()}" in (read(f"{folder}/cgroup.procs", MAX_TABLE_BYTES) or "").split():
            return (mount / folder).relative_to(mount).parts
    return None


def _search(root: Path, below: Sequence[str]) -> Sequence[str] | None:
    """The only folder that ends in `below`, a relative path of unknown start."""
    # kubepods.slice, its QoS class and its pod, in Kubernetes.
    for depth in range(4):
        tops = root.glob("/".join("*" * depth)) if depth else [root]
        groups = (top.joinpath(*below) for top in tops)
        matches = [group for group in groups if os.path.isdir(group)]  # noqa: PTH112 - as above
        if matches:
            return matches[0].relative_to(root).parts if len(matches) == 1 else None
    return None


def _levels(folder: Path | None) -> list[Path]:
    """The cgroup and its ancestors without the root; of more than 64, both ends."""
    above = (folder, *folder.parents) if folder else ()
    levels = [path for path in above if (path.parent / "cgroup.procs").exists() or _is_v2(path)]
    # A job may nest thousands of groups in a delegated one.
    outer = max(len(levels) - 32, 32)
    return [*levels[:32], *levels[outer:]]


def _is_v2(folder: Path) -> bool:
    """Whether it is a v2 cgroup; the machine's root has no cgroup.type."""
    return (folder / "cgroup.type").exists()


def _throttled_ns(stat: Mapping[str, int]) -> int | None:
    """Time throttled in cpu.stat; None without the CPU controller."""
    microseconds = stat.get("throttled_usec")
    return stat.get("throttled_time") if microseconds is None else microseconds * 1000


def _quota(level: Path) -> float | None:
    v1 = (read(f"{level}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    # Without a quota, v2 writes `max` and v1 -1.
    quota = re.fullmatch(r"([0-9]+)\s+([0-9]+)\s*", read(f"{level}/cpu.max") or " ".join(v1))
    return int(quota[1]) / int(quota[2]) if quota else None


def _memory_limit(level: Path) -> int | None:
    """Bytes beyond which its processes are throttled or killed."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    texts = [(read(f"{level}/{name}") or "max").strip() for name in names]
    limits = [int(text) for text in texts if text != "max"]
    # V1 writes the largest multiple of a page for no limit.
    return min((limit for limit in limits if limit < 2**60), default=None)


def root_owned_prefix(sysfs: Path, controllers: str, path: str) -> str:
    """The beginning of `path` that only root can have created; else `/`.

    Users may create groups of any name in a delegated one, but not in a folder of root. The prefix
    includes the first folder that is not root's, and ends at one that cannot be found.

    `controllers` and `path` are a line of /proc/PID/cgroup.
    """
    mount = hierarchy(sysfs, controllers)
    parts = _below(mount, path) if mount else None
    return "/" + "/".join(owned_prefix(mount, parts) if mount and parts else ())


def owned_prefix(mount: Path, parts: Sequence[str]) -> Sequence[str]:
    """The first of nested folders `parts` that only `mount`'s owner can have created."""
    count, folder = 0, f"{mount}"
    with suppress(OSError, ValueError):  # missing, too long, or no path
        state = mount.stat()
        owner = state.st_uid
        for part in parts if owner != _UNMAPPED_UID else ():
            if state.st_uid != owner or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                break
            folder += f"/{part}"
            state = os.lstat(folder)
            count += 1
    return parts[:count]


def stalled_ns(text: str) -> Mapping[str, int]:
    """Stall time by kind (some, full) in a PSI file."""
    totals = re.findall(r"^(some|full) .*\btotal=([0-9]+)$", text, re.MULTILINE)
    return {kind: int(total) * 1000 for kind, total in totals}


def stalled_by_resource(text_of: Callable[[str], str]) -> dict[tuple[str, str], int]:
    """Stall time in ns by (resource, kind); `text_of` reads PSI files."""
    return {
        (resource, kind): value
        for resource in ("cpu", "io", "memory")
        for kind, value in stalled_ns(text_of(resource)).items()
    }
