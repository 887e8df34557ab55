"""Descendants of processes, without reading the whole process table."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MANY_BYTES, read
from gpu_bottleneck_exporter.host.process import parse_stat


def descendants(
    proc: Path,
    roots: Iterable[int],
    stop_at: frozenset[int],
    known: Callable[[int], list[int] | None] = lambda _: None,
) -> dict[int, set[int]]:
    """For each root its descendants; those in `stop_at`, and theirs, are left out.

    Walks /proc/PID/task/TID/children (8 µs a thread), but where the children of a process
    are `known`; kernels without it get one raw scan of the table.
    """
    roots = list(roots)
    if not roots:
        return {}
    if any((proc / str(root) / "task" / str(root) / "children").exists() for root in roots):

        def children(pid: int) -> list[int]:
            found = known(pid)
            return _children(proc, pid) if found is None else found

        return {root: _follow(children, root, stop_at) for root in roots}
    table = _scan(proc)
    return {root: _follow(lambda pid: table.get(pid, ()), root, stop_at) for root in roots}


def _children(proc: Path, pid: int) -> list[int]:
    folder = f"{proc}/{pid}/task"
    try:
        tasks = os.listdir(folder)  # noqa: PTH208 - a tenth of the time, for every thread
    except OSError:
        return []
    files = (read(f"{folder}/{task}/children", MANY_BYTES) for task in tasks)
    return [int(child) for text in files if text for child in text.split()]


def _scan(proc: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = defaultdict(list)
    for folder in proc.iterdir():
        if folder.name.isdigit():
            text = read(folder / "stat")
            if text:
                children[parse_stat(text.encode()).parent].append(int(folder.name))
    return children


def _follow(
    children: Callable[[int], Iterable[int]], root: int, stop_at: frozenset[int]
) -> set[int]:
    found: set[int] = set()
    pending = [root]
    while pending:
        for child in children(pending.pop()):
            if child not in found and child not in stop_at:
                found.add(child)
                pending.append(child)
    return found
