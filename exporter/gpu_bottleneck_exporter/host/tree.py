"""Descendants of processes, without reading the whole process table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import MANY_BYTES, listed, numbers, read, read_part
from gpu_bottleneck_exporter.host.process import parse_stat, processes

MOST_DESCENDANTS = 32_768
"""Per root; more are not followed."""
_MOST_THREADS = 8_192
"""Threads of a process whose children are read."""
Children = tuple[list[int], bool]
"""Pids of a process's children, and whether these are all."""


class Trees(NamedTuple):
    """Descendants by root, and the roots whose descendants are incomplete (`cut`)."""

    of: dict[int, set[int]]
    cut: set[int]


def trees(
    proc: Path,
    roots: Iterable[int],
    stop_at: frozenset[int],
    known: Callable[[int], list[int] | None] = lambda _: None,
) -> Trees:
    """For each root its descendants, without those in `stop_at` and their descendants.

    Walks /proc/PID/task/TID/children (8 µs a thread) for processes whose children are not `known`.
    On kernels without that file, scans all of /proc once.
    """
    roots = list(roots)
    # The file needs CONFIG_PROC_CHILDREN.
    names = any((proc / f"{root}/task/{root}/children").exists() for root in roots)
    table = _scan(proc) if roots and not names else {}

    def children(pid: int) -> Children:
        if not names:
            return table.get(pid, []), True
        found = known(pid)
        return _children(proc, pid) if found is None else (found, True)

    found = {root: _follow(children, root, stop_at) for root in roots}
    cut = {root for root, (_, whole) in found.items() if not whole}
    return Trees({root: pids for root, (pids, _) in found.items()}, cut)


def _children(proc: Path, pid: int) -> Children:
    folder = f"{proc}/{pid}/task"
    try:
        tasks, whole = listed(folder, _MOST_THREADS)
    except OSError:
        return [], True
    # Each thread lists only the children that it started itself.
    parts = [read_part(f"{folder}/{task}/children", MANY_BYTES) for task in tasks]
    found = [child for part in parts if part for child in numbers(part.text) or ()]
    return found, whole and all(part.whole for part in parts if part)


def _scan(proc: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = defaultdict(list)
    for pid in processes(proc):
        if stat := parse_stat(read(proc / f"{pid}/stat")):
            children[stat.parent].append(pid)
    return children


def _follow(
    children: Callable[[int], Children], root: int, stop_at: frozenset[int]
) -> tuple[set[int], bool]:
    found: set[int] = set()
    pending = [root]
    whole = True
    while pending and len(found) < MOST_DESCENDANTS:
        pids, all_of_them = children(pending.pop())
        whole = whole and all_of_them
        for child in pids:
            if child not in found and child not in stop_at:
                found.add(child)
                pending.append(child)
    return found, whole and not pending
