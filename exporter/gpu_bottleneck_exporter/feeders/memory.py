"""Memory of workers, and what a job may still take, as predictions need it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from gpu_bottleneck_exporter.host.aside import aside
from gpu_bottleneck_exporter.host.cgroup import PAGE_BYTES, Cgroup
from gpu_bottleneck_exporter.host.files import numbers, read
from gpu_bottleneck_exporter.host.process import living_thread

_PRIVATE = re.compile(r"^Private_\w+:\s+(\d+) kB$", re.MULTILINE)
_WALKED_BYTES = 2 * 2**30
"""Of a larger process the kernel takes long to add its pages up."""


def private_bytes(proc: Path, pid: int) -> float | None:
    """Memory that a process shares with no other (/proc/PID/smaps_rollup); None if unreadable.

    Of a large one an upper bound: its resident memory without files and shared memory, which
    counts pages that it still shares with the process it was forked from.
    """
    folder = f"{proc}/{living_thread(proc, pid)}"
    fields = numbers(read(f"{folder}/statm") or "") or []
    # Size, resident, shared; all are zero for a process that has ended.
    if len(fields) < 3 or not fields[1]:  # noqa: PLR2004
        return None
    resident, shared = fields[1] * PAGE_BYTES, fields[2] * PAGE_BYTES
    walk = partial(read, f"{folder}/smaps_rollup")
    # Adding up takes the lock of its memory, which may be held for ever.
    if resident <= _WALKED_BYTES and (text := aside.call(pid, walk)):
        return float(sum(int(kib) for kib in _PRIVATE.findall(text)) * 1024)
    return float(max(resident - shared, 0))


def free_bytes(groups: frozenset[Cgroup], available: float | None) -> float | None:
    """Memory that a job may still take: `available` on the machine, or less by its limits.

    Page cache that is not in use is free (memory.stat's inactive_file, as the kubelet counts).
    """
    left = [] if available is None else [available]
    for group in groups:
        level = group.memory_level()
        if level is not None and level.limit_bytes is not None:
            cache = level.cache_bytes("inactive_file") or 0
            left.append(float(max(level.limit_bytes - level.used_bytes + cache, 0)))
    return min(left, default=None)
