"""Processes that feed a GPU without being descendants of the process that holds it.

Examples: a front end that tokenises for an engine, actors below one raylet, a loader next to the
trainer in one container, the left side of a shell's pipeline. Proximity is not enough, as a mere
neighbour may be closer. Kin are connected to the holder by a pipe or a UNIX socket, by a broker
that is the parent of both, or, within one container or Slurm step, by any connection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path

from gpu_bottleneck_exporter.host.links import links
from gpu_bottleneck_exporter.host.process import Stat, ourselves, processes, stat_of, trees
from gpu_bottleneck_exporter.host.sockets import Ends, Sockets
from gpu_bottleneck_exporter.workload.owners import Groups

MOST_KIN = 32
"""Of one holder: a bound on what a job can make us follow."""
_MOST_CANDIDATES = 4 * MOST_KIN
"""That are looked at, of each kind."""
_HIGHEST = 4
"""How many ancestors are checked."""


class KinFinder:
    """Finds the kin of one holder after the other; caches what it reads for all of them."""

    def __init__(self, proc: Path, holders: Collection[int], groups: Groups | None = None) -> None:
        """`proc`: our own procfs. `holders` of GPUs are never kin."""
        self._groups = groups or Groups(proc)
        self._proc = proc
        self._holders = frozenset(holders)
        self._never = ourselves(proc)
        self._stat = cache(partial(stat_of, proc))
        self._links_of = cache(partial(links, proc))
        self._ends_of = cache(partial(_ends_of, proc))

    def of(self, pid: int, own: Collection[int]) -> set[int]:
        """The kin of holder `pid`, whose descendants are `own`; at most `MOST_KIN`."""
        stat = self._stat(pid)
        if stat is None:
            return set()
        unit = self._groups.unit(pid)
        ancestors = list(self._ancestors(stat, unit))
        kin = {one for one in ancestors if self._joined(pid, one)}
        kin |= self._siblings(pid, stat, {pid, *own, *ancestors})
        if unit:
            kin |= self._in_unit(pid, unit, {pid, *own, *kin})
        kin -= self._never
        return kin.difference(sorted(kin - {stat.parent})[MOST_KIN:])

    def _ancestors(self, stat: Stat, unit: str) -> Iterator[int]:
        """Ancestors within the same session or container."""
        for _ in range(_HIGHEST):
            parent = self._stat(stat.parent)
            if parent is None or stat.parent in self._holders or stat.parent == 1:
                return
            same_unit = unit and unit == self._groups.unit(stat.parent)
            if not same_unit and parent.session != stat.session:
                return
            yield stat.parent
            stat = parent

    def _siblings(self, pid: int, stat: Stat, known: set[int]) -> set[int]:
        """Children of the same parent and session, connected to it, or both to the parent."""
        parent = stat.parent
        if parent <= 1:
            return set()
        through = parent in self._links_of(pid).peers
        children = self._children(parent, known)[:_MOST_CANDIDATES]
        stats = ((one, self._stat(one)) for one in children)
        near = [one for one, found in stats if found and found.session == stat.session]
        brokered = {one for one in near if through and parent in self._links_of(one).peers}
        joined = {one for one in near if self._joined(pid, one)}
        return brokered.union(joined, self._pipeline(pid, near))

    def _pipeline(self, pid: int, near: Collection[int]) -> Iterator[int]:
        """Processes of `near` whose output feeds process `pid`, directly or through others."""
        left, pipes = set(near), {self._links_of(pid).read_from}
        while found := {one for one in left if self._links_of(one).written_to in pipes - {None}}:
            yield from found
            left -= found
            pipes = {self._links_of(one).read_from for one in found}

    def _children(self, parent: int, known: set[int]) -> list[int]:
        return sorted(trees(self._proc, [parent], self._holders | known).of[parent])

    def _in_unit(self, pid: int, unit: str, known: set[int]) -> set[int]:
        """Processes of the same container or Slurm step that share any connection."""
        ends = {(remote, local) for local, remote in self._ends_of(pid)}
        others = {*self._members.get(unit, [])[:_MOST_CANDIDATES]} - known - self._holders
        return {one for one in others if self._joined(pid, one) or ends & self._ends_of(one)}

    @cached_property
    def _members(self) -> Mapping[str, list[int]]:
        """Processes by container or Slurm step."""
        found: dict[str, list[int]] = {}
        for pid in processes(self._proc):
            if unit := self._groups.unit(pid):
                found.setdefault(unit, []).append(pid)
        return found

    def _joined(self, one: int, other: int) -> bool:
        """Whether they share a pipe, or a UNIX socket connects them."""
        ours, theirs = self._links_of(one), self._links_of(other)
        return bool(ours.pipes & theirs.pipes) or other in ours.peers or one in theirs.peers


def _ends_of(proc: Path, pid: int) -> set[Ends]:
    """Local and remote ends of its connections."""
    try:
        sockets = Sockets(proc, pid).all()
    except OSError:
        return set()
    return {(one.local, one.remote) for one in sockets if not one.listens}
