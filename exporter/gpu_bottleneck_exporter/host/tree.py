"""Descendants of processes, without reading the whole process table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bottleneck_exporter.host.files import MANY_BYTES, listed, read, read_part
from gpu_bottleneck_exporter.host.process import parse_stat

MOST_DESCENDANTS = 32_768
"""Of one process: more are not followed."""
_MOST_THREADS = 8_192
"""So many threads of a process are asked for their children."""


@dataclass(slots=True)
class Trees:
    """By root its descendants, and the roots of which these are not all."""

    of: dict[int, set[int]] = field(default_factory=dict)
    cut: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Children:
    pids: Iterable[int] = ()
    whole: bool = True


def descendants(proc: Path, roots: Iterable[int], stop_at: frozenset[int]) -> dict[int, set[int]]:
    """For each root its descendants, as far as `trees` follows them."""
    return trees(proc, roots, stop_at).of


def trees(
    proc: Path,
    roots: Iterable[int],
    stop_at: frozenset[int],
    known: Callable[[int], list[int] | None] = lambda _: None,
) -> Trees:
    """For each root its descendants; those in `stop_at`, and theirs, are left out.

    Walks /proc/PID/task/TID/children (8 µs a thread), but where the children of a process
    are `known`; kernels without it get one raw scan of the table.
    """
    roots = list(roots)
    if any((proc / str(root) / "task" / str(root) / "children").exists() for root in roots):

        def children(pid: int) -> _Children:
            found = known(pid)
            return _children(proc, pid) if found is None else _Children(found)

    else:
        table = _scan(proc) if roots else {}

        def children(pid: int) -> _Children:
            return _Children(table.get(pid, ()))

    found = Trees()
    for root in roots:
        found.of[root], whole = _follow(children, root, stop_at)
        if not whole:
            found.cut.add(root)
    return found


def _children(proc: Path, pid: int) -> _Children:
    folder = f"{proc}/{pid}/task"
    try:
        tasks, whole = listed(folder, _MOST_THREADS)
    except OSError:
        return _Children()
    parts = [read_part(f"{folder}/{task}/children", MANY_BYTES) for task in tasks]
    found = [int(child) for part in parts if part for child in part.text.split()]
    return _Children(found, whole and all(part.whole for part in parts if part))


def _scan(proc: Path) -> dict[int, list[int]]:
    children: dict[int, list[int]] = defaultdict(list)
    for folder in proc.iterdir():
        if folder.name.isdigit():
            text = read(folder / "stat")
            if text:
                children[parse_stat(text.encode()).parent].append(int(folder.name))
    return children


def _follow(
    children: Callable[[int], _Children], root: int, stop_at: frozenset[int]
) -> tuple[set[int], bool]:
    found: set[int] = set()
    pending = [root]
    whole = True
    while pending and len(found) < MOST_DESCENDANTS:
        of_one = children(pending.pop())
        whole = whole and of_one.whole
        for child in of_one.pids:
            if child not in found and child not in stop_at:
                found.add(child)
                pending.append(child)
    return found, whole and not pending
