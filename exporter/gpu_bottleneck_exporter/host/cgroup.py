"""The control groups of a process: limits, throttling, memory, pressure; v1, v2 and hybrid."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path

from gpu_bottleneck_exporter.host.files import KeptFile, read
from gpu_bottleneck_exporter.host.pressure import stalled_by_resource

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED_BYTES = 2**60
"""Cgroup v1 writes "no limit" as the largest multiple of a page."""
_V1_CPU = ("cpu", "cpu,cpuacct")
_NAMESPACE_DEPTH = 3
"""Kubernetes' levels above a container: kubepods.slice, the slice of its QoS class, the pod."""
_MOST_LEVELS = 64
"""A job may nest thousands of groups in one that was delegated to it."""
_REFAULTS = re.compile(r"^workingset_refault(?:_file|_anon)? (\d+)$", re.MULTILINE)
"""Lines of memory.stat; a kernel has either the plain one or the other two."""


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """Memory of a cgroup: bytes in use, page cache included, and the limit if there is one."""

    folder: Path
    used_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Throttling:
    """Throttling by CPU quotas so far."""

    throttled_ns: int | None
    """Summed over all levels; None without the CPU controller."""
    periods: int
    """Quota periods, at the level where the quota ran out most often."""
    throttled_periods: int
    """Periods in which it ran out."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Counters of a cgroup so far; None or empty if they cannot be read."""

    throttling: Throttling | None = None
    refault_bytes: int | None = None
    pressure_ns: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Nanoseconds stalled by (resource, kind)."""

    @property
    def throttled_ns(self) -> int | None:
        """Nanoseconds for which CPU quotas throttled its tasks (cpu.stat), own and inherited."""
        return self.throttling.throttled_ns if self.throttling else None


class Cgroup:
    """The cgroups of one process: folders on this machine, None where there is none.

    `unified` is the cgroup v2 folder; `cpu` and `memory` are the folders of these controllers,
    under v2 the same one.
    """

    def __init__(self, unified: Path | None, cpu: Path | None, memory: Path | None) -> None:
        self.unified = unified
        self.cpu = cpu
        self.memory = memory
        self.counted = Counted()
        """As of the last `look`."""
        self._kept: dict[Path, KeptFile] = {}
        self._cpu_levels = _levels(cpu)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cgroup) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Path | None, ...]:
        return self.unified, self.cpu, self.memory

    def look(self) -> None:
        """Read the counters."""
        self.counted = Counted(self.throttling(), self.refault_bytes(), self.pressure_ns())

    def close(self) -> None:
        """Close the descriptors."""
        for file in self._kept.values():
            file.close()

    def _read(self, path: Path) -> str | None:
        """Read through a descriptor that stays open: for files that are read every tick."""
        if path not in self._kept:
            self._kept[path] = KeptFile(path)
        text = self._kept[path].read()
        return None if text is None else text.decode()

    def throttling(self) -> Throttling | None:
        """From cpu.stat of all levels, as a quota of any level throttles; None if unreadable."""
        texts = [text for level in self._cpu_levels if (text := self._read(level / "cpu.stat"))]
        if not texts:
            return None
        known = [value for text in texts if (value := _throttled(text)) is not None]
        most = max((_periods(text) for text in texts), key=lambda found: found[1])
        return Throttling(sum(known) if known else None, *most)

    def cpu_limit(self) -> tuple[Path, float] | None:
        """The tightest CPU quota of all levels: its folder, and cores; None without a quota."""
        limits = [
            (level, quota) for level in _levels(self.cpu) if (quota := _quota(level)) is not None
        ]
        return min(limits, key=lambda limit: limit[1], default=None)

    def memory_level(self) -> MemoryLevel | None:
        """The level with the tightest memory limit, its own or an ancestor's."""
        levels = [
            MemoryLevel(level, used, _memory_limit(level))
            for level in _levels(self.memory)
            if (used := _used(level)) is not None
        ]
        return min(levels, key=lambda level: _tightness(level.limit_bytes), default=None)

    def refault_bytes(self) -> int | None:
        """Bytes that were evicted and had to be read in again (memory.stat)."""
        text = self._read(self.memory / "memory.stat") if self.memory else None
        if text is None:
            return None
        pages = [int(value) for value in _REFAULTS.findall(text)]
        return sum(pages) * PAGE_BYTES if pages else None

    def pressure_ns(self) -> dict[tuple[str, str], int]:
        """Nanoseconds stalled by (resource, kind); v2 only, and only if PSI is enabled."""
        if self.unified is None:
            return {}
        folder = self.unified
        return stalled_by_resource(lambda resource: self._read(folder / f"{resource}.pressure"))


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
        for group in [group for group in self._known if group not in wanted]:
            self._known.pop(group).close()


def cgroup_of(text: str, sysfs: Path) -> Cgroup:
    """The cgroups that `text`, a /proc/PID/cgroup file, names, below `sysfs`/fs/cgroup.

    The machine's root cgroup counts as none: it belongs to no process in particular.
    """
    root = sysfs / "fs/cgroup"
    paths = _paths(text)
    pure = (root / "cgroup.controllers").exists()
    unified = find_group(root if pure else root / "unified", paths.get(""))
    if pure:
        return Cgroup(unified, unified, unified)
    cpu = next(
        (find_group(root / name, paths.get("cpu")) for name in _V1_CPU if (root / name).is_dir()),
        None,
    )
    memory = find_group(root / "memory", paths.get("memory"))
    return Cgroup(unified, cpu or unified, memory or unified)


def hidden(text: str, sysfs: Path) -> set[str]:
    """Which of a process's cgroups (`cpu`, `memory`, `unified`) cannot be found.

    `text` is its /proc/PID/cgroup file. The machine's root cgroup is never reported.
    """
    paths, found = _paths(text), cgroup_of(text, sysfs)
    folders = {"cpu": found.cpu, "memory": found.memory, "unified": found.unified}
    unified = paths.get("", "/")
    named = {"cpu": paths.get("cpu", unified), "memory": paths.get("memory", unified)}
    named["unified"] = unified
    return {name for name, folder in folders.items() if folder is None and named[name] != "/"}


def _paths(text: str) -> Mapping[str, str]:
    """Path by controller; the v2 hierarchy has the empty name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for controller in controllers.split(",") if path else ():
            found[controller] = path
    return found


def find_group(root: Path, path: str | None) -> Path | None:
    """The folder of cgroup `path` below `root`, the mount of its hierarchy; None if not visible.

    In a private cgroup namespace the path is relative to our own cgroup. A job may nest groups
    until their path exceeds PATH_MAX: such a group counts as not visible.
    """
    try:
        return _find(root, path) if path is not None and root.is_dir() else None
    except OSError:
        return None


def _find(root: Path, path: str) -> Path | None:
    if path.startswith("/..") and _is_v2(root):
        return None  # our mount shows our own cgroup only, and the process is outside of it
    below = [part for part in path.split("/") if part not in ("", "..")]
    if not below:
        # In a container, the root of our mount is the container's own cgroup.
        return root if _is_v2(root) else None
    folder = root.joinpath(*below)
    if folder.is_dir():
        return folder
    return _search(root, "/".join(below)) if "/.." in path else None


def _search(root: Path, below: str) -> Path | None:
    """The only folder that ends in `below`: a relative path does not show where it begins."""
    for depth in range(1, _NAMESPACE_DEPTH + 1):
        matches = list(root.glob("*/" * depth + escape(below)))
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def _levels(folder: Path | None) -> list[Path]:
    """The cgroup and its ancestors without the machine's root; of very many, both ends."""
    found = [*_all_levels(folder)]
    middle = _MOST_LEVELS // 2
    return found if len(found) <= _MOST_LEVELS else [*found[:middle], *found[-middle:]]


def _all_levels(folder: Path | None) -> Iterator[Path]:
    while folder is not None and ((folder.parent / "cgroup.procs").exists() or _is_v2(folder)):
        yield folder
        folder = folder.parent


def _is_v2(folder: Path) -> bool:
    """Whether it is a v2 cgroup other than the machine's root, which has no cgroup.type."""
    return (folder / "cgroup.type").exists()


def _periods(text: str) -> tuple[int, int]:
    found = dict(line.split() for line in text.splitlines())
    return int(found.get("nr_periods", 0)), int(found.get("nr_throttled", 0))


def _throttled(text: str) -> int | None:
    for name, _, value in (line.partition(" ") for line in text.splitlines()):
        if name == "throttled_usec":  # v2
            return int(value) * 1000
        if name == "throttled_time":  # v1, in nanoseconds
            return int(value)
    return None


def _quota(level: Path) -> float | None:
    text = read(level / "cpu.max")
    if text is not None:
        quota, period = text.split()
        return None if quota == "max" else int(quota) / int(period)
    quota, period = (read(level / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    if not quota or not period or int(quota) < 0:  # v1 writes -1 for no limit
        return None
    return int(quota) / int(period)


def _used(level: Path) -> int | None:
    text = read(level / "memory.current") or read(level / "memory.usage_in_bytes")
    return int(text) if text else None


def _tightness(limit: int | None) -> int:
    return _UNLIMITED_BYTES if limit is None else limit


def _memory_limit(level: Path) -> int | None:
    text = (read(level / "memory.max") or read(level / "memory.limit_in_bytes") or "max").strip()
    return None if text == "max" or int(text) >= _UNLIMITED_BYTES else int(text)
