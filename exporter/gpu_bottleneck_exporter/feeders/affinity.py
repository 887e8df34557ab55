"""Workers that may run on few CPUs of their job: OpenMP, OpenCV and others set their affinity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.host.files import MOST_LISTED, numbered, read
from gpu_bottleneck_exporter.host.process import allowed_cpus

_MAX_THREADS = 32
"""Threads of a main whose affinity is read: OpenMP gives each of a pool its own."""


class Pinned(NamedTuple):
    """Workers that share fewer CPUs than they are, although their job has more."""

    pinned: int
    workers: int
    """Of which the affinity is known."""
    cpus: frozenset[int]

    @property
    def are_most(self) -> bool:
        """Whether most of the workers are pinned."""
        return self.pinned > self.workers / 2

    def __str__(self) -> str:
        """`all 8 workers may run on CPU 0 only`."""
        count = "all" if self.pinned == self.workers else f"{self.pinned} of"
        cpus = ", ".join(map(str, _ranges(sorted(self.cpus))))
        return f"{count} {self.workers} workers may run on CPU {cpus} only"


def pinned_workers(proc: Path, mains: Iterable[int], workers: Collection[int]) -> Pinned | None:
    """Those of `workers` that are pinned; None without any."""
    masks = Counter(filter(None, (_allowed(f"{proc}/{pid}") for pid in workers)))
    if len(masks) == masks.total():
        return None  # each has its own
    of_job = frozenset[int]().union(*(_of_threads(proc, pid) for pid in mains))
    held = {mask: n for mask, n in masks.items() if n > len(mask) < len(of_job)}
    cpus = frozenset[int]().union(*held)
    return Pinned(sum(held.values()), masks.total(), cpus) if held else None


def _of_threads(proc: Path, pid: int) -> frozenset[int]:
    folder = f"{proc}/{pid}/task"
    tids = islice(numbered(folder, MOST_LISTED), _MAX_THREADS)
    return frozenset[int]().union(*(_allowed(f"{folder}/{tid}") for tid in tids))


def _allowed(folder: str) -> frozenset[int]:
    return allowed_cpus(read(f"{folder}/status") or "")


def _ranges(cpus: list[int]) -> Iterator[str]:
    """`0-3`, `8`."""
    ends = [n for n, cpu in enumerate(cpus) if cpus[n + 1 : n + 2] != [cpu + 1]]
    for first, last in zip([0, *(n + 1 for n in ends)], ends, strict=False):
        yield f"{cpus[first]}" if first == last else f"{cpus[first]}-{cpus[last]}"
