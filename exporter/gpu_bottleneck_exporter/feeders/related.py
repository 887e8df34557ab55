"""Processes that feed a GPU without descending from its holder: kin and strangers.

Kin belong to the job: a front end of an engine, actors below one raylet, a loader in the trainer's
container, the left side of a pipeline. A pipe or UNIX socket connects them to the holder, a broker
that is the parent of both, or, within one container or Slurm step, any connection.

Strangers (a sidecar, a tokeniser, a gateway) are at the other end of a connection on which the
holder, its workers or its kin wait. `process.StrangerRecord` decides which of them count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.host.aside import proc_reads
from gpu_bottleneck_exporter.host.descriptors import links_of
from gpu_bottleneck_exporter.host.links import End, TcpNetworks, find_processes, links, peer_ends
from gpu_bottleneck_exporter.host.process import (
    Stat,
    has_ended,
    lineage,
    ourselves,
    processes,
    stat_of,
    trees,
)
from gpu_bottleneck_exporter.host.sockets import Ends, Sockets
from gpu_bottleneck_exporter.schedule import CADENCE, Every
from gpu_bottleneck_exporter.workload.owners import Groups

MAX_RELATED = 32
"""Kin of one holder, and strangers of one GPU: bounds the work caused by a job."""
_MAX_CANDIDATES = 4 * MAX_RELATED
"""Inspected siblings, or members of a container or Slurm step."""


class KinFinder:
    """Finds the kin of holders, with a cache for all. Not thread-safe."""

    def __init__(self, proc: Path, holders: Collection[int], groups: Groups | None = None) -> None:
        """`proc`: our own procfs. `holders` of GPUs are never kin."""
        self._groups = groups or Groups(proc)
        self._proc = proc
        self._holders = frozenset(holders)
        self._excluded = ourselves(proc)
        self._stat = cache(partial(stat_of, proc))
        self._links_of = cache(partial(links, proc))
        self._ends_of = cache(partial(_ends_of, proc))

    def of(self, pid: int, own: Collection[int]) -> set[int]:
        """Up to `MAX_RELATED` kin of holder `pid` with the descendants `own`."""
        stat = self._stat(pid)
        if stat is None:
            return set()
        unit = self._groups.unit(pid)
        ancestors = list(self._ancestors(stat, unit))
        kin = {ancestor for ancestor in ancestors if self._joined(pid, ancestor)}
        kin |= self._siblings(pid, stat, {pid, *own, *ancestors})
        if unit:
            kin |= self._in_unit(pid, unit, {pid, *own, *kin})
        kin -= self._excluded
        return kin.difference(sorted(kin - {stat.parent})[MAX_RELATED:])

    def _ancestors(self, stat: Stat, unit: str) -> Iterator[int]:
        """Up to four ancestors within the same session or container."""
        for _ in range(4):
            parent = self._stat(stat.parent)
            if parent is None or stat.parent in self._holders or stat.parent == 1:
                return
            same_unit = unit and unit == self._groups.unit(stat.parent)
            if not same_unit and parent.session != stat.session:
                return
            yield stat.parent
            stat = parent

    def _siblings(self, pid: int, stat: Stat, excluded: set[int]) -> set[int]:
        """Children of the same parent and session, connected to `pid` or via the parent."""
        parent = stat.parent
        if parent <= 1:
            return set()
        through = parent in self._links_of(pid).peers
        children = self._children(parent, excluded)[:_MAX_CANDIDATES]
        stats = ((child, self._stat(child)) for child in children)
        near = [
            child
            for child, sibling_stat in stats
            if sibling_stat and sibling_stat.session == stat.session
        ]
        brokered = {child for child in near if through and parent in self._links_of(child).peers}
        joined = {child for child in near if self._joined(pid, child)}
        return brokered.union(joined, self._pipeline(pid, near))

    def _pipeline(self, pid: int, near: Collection[int]) -> Iterator[int]:
        """Processes of `near` upstream of `pid`."""
        left, pipes = set(near), {self._links_of(pid).read_from}
        while sources := {
            other for other in left if self._links_of(other).written_to in pipes - {None}
        }:
            yield from sources
            left -= sources
            pipes = {self._links_of(other).read_from for other in sources}

    def _children(self, parent: int, excluded: set[int]) -> list[int]:
        return sorted(trees(self._proc, [parent], self._holders | excluded).of[parent])

    def _in_unit(self, pid: int, unit: str, excluded: set[int]) -> set[int]:
        """Members of a container or Slurm step that share a connection."""
        ends = {(remote, local) for local, remote in self._ends_of(pid)}
        others = {*self._members.get(unit, [])[:_MAX_CANDIDATES]} - excluded - self._holders
        return {
            other for other in others if self._joined(pid, other) or ends & self._ends_of(other)
        }

    @cached_property
    def _members(self) -> Mapping[str, list[int]]:
        by_unit: dict[str, list[int]] = {}
        for pid in processes(self._proc):
            if unit := self._groups.unit(pid):
                by_unit.setdefault(unit, []).append(pid)
        return by_unit

    def _joined(self, pid: int, other: int) -> bool:
        """Whether a shared pipe or a UNIX socket connects both."""
        ours, theirs = self._links_of(pid), self._links_of(other)
        return bool(ours.pipes & theirs.pipes) or other in ours.peers or pid in theirs.peers


def _ends_of(proc: Path, pid: int) -> set[Ends]:
    try:
        sockets = Sockets(proc, pid).query()
    except OSError:
        return set()
    return {
        (connection.local, connection.remote) for connection in sockets if not connection.listens
    }


class _SearchResult(NamedTuple):
    pids: frozenset[int]
    at_ns: int


class StrangerFinder:
    """Finds the strangers of all GPUs at once. Not thread-safe."""

    def __init__(self, proc: Path) -> None:
        """`proc`: our own procfs."""
        self._proc = proc
        self._excluded = ourselves(proc) | {1}
        self._networks = TcpNetworks(proc)
        self._due_ns = self._pause_ns = 0
        self._awaited: dict[FeederGroup, dict[End, int]] = {}
        """Time of the last sample of each awaited end, by idle GPU."""
        self._end_cache: dict[tuple[object, ...], set[End]] = {}
        """Cached other ends, by process and connections."""
        self._clearing = Every(CADENCE.cache_ttl_ns)
        self._results: dict[End, _SearchResult] = {}

    def is_due(
        self, now_ns: int, idle: Collection[FeederGroup], unexplained: Collection[FeederGroup]
    ) -> bool:
        """Whether a search is due for `unexplained` idle GPUs; schedules the next.

        Due at once if one has just become `idle`, then at growing intervals, and later while a
        server has no clients.
        """
        self._awaited = {feed: self._awaited[feed] for feed in idle if feed in self._awaited}
        if not self._awaited.keys() >= {*unexplained}:
            self._pause_ns, self._due_ns = CADENCE.search_ns, min(self._due_ns, now_ns)
        without_clients = all(feed.lacks_clients for feed in unexplained)
        if not unexplained or now_ns < self._due_ns + without_clients * CADENCE.slow_ns:
            return False
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 5 // 4, CADENCE.slow_ns)
        return True

    def search(
        self, feeds: Collection[FeederGroup], holders: Collection[int], now_ns: int
    ) -> dict[FeederGroup, set[int]]:
        """The strangers, without `holders` and their descendants. Raises FileLimitError."""
        self._networks.refresh(now_ns)
        if self._clearing.is_due(now_ns):
            self._end_cache.clear()
        self._awaited |= {feed: self._recently_awaited(feed, now_ns) for feed in feeds}
        ends = set().union(*self._awaited.values())
        cached = ((end, self._results[end]) for end in ends & self._results.keys())
        self._results = {end: result for end, result in cached if self._is_valid(result, now_ns)}
        if missing := ends - self._results.keys():
            feeding = {pid for result in self._results.values() for pid in result.pids}
            missed = any(not result.pids for result in self._results.values())
            for end, pids in find_processes(self._proc, missing, feeding, again=missed).items():
                self._results[end] = _SearchResult(frozenset(pids), now_ns)
        return {feed: self._strangers(feed, {*holders}) for feed in feeds}

    def _is_valid(self, result: _SearchResult, now_ns: int) -> bool:
        if now_ns - result.at_ns >= CADENCE.cache_ttl_ns:
            return False
        return not result.pids or not all(has_ended(self._proc, pid) for pid in result.pids)

    def _recently_awaited(self, feed: FeederGroup, now_ns: int) -> dict[End, int]:
        """Recently awaited ends, the newest last."""
        times = self._awaited.get(feed, {})
        # Retained, as clients that reconnect are absent from most searches.
        recent = {
            end: at_ns for end, at_ns in times.items() if now_ns - at_ns < CADENCE.cache_ttl_ns
        }
        for pid, numbers in feed.drain_awaited().items():
            for end in self._other_ends(pid, numbers):
                recent.pop(end, None)
                recent[end] = now_ns
        return recent

    def _other_ends(self, pid: int, numbers: Collection[int | None]) -> set[End]:
        """Other ends of descriptors; None: of all in an epoll."""
        if None in numbers:
            return peer_ends(self._proc, pid, numbers, self._networks)
        folder, links = f"{self._proc}/{pid}/fd", None
        awaited = [number for number in numbers if number is not None]
        with suppress(PermissionError):  # a call per process: a hung one delays no other
            links = proc_reads.call(pid, partial(links_of, folder, awaited))
        key = (pid, *(links or {}).values())
        ends = self._end_cache.get(key) or peer_ends(self._proc, pid, numbers, self._networks)
        if ends:
            self._end_cache[key] = ends
        return ends

    def _strangers(self, feed: FeederGroup, holders: set[int]) -> set[int]:
        ends = reversed(self._awaited[feed])
        pids = dict.fromkeys(pid for end in ends for pid in self._results[end].pids)
        others = (pid for pid in pids if pid not in self._excluded and feed.is_stranger(pid))
        # A rank's workers inherit its connections to other ranks.
        apart = (pid for pid in others if holders.isdisjoint(lineage(self._proc, pid)))
        return set(islice(apart, MAX_RELATED))
