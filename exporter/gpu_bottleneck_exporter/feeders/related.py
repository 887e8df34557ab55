"""Processes that feed a GPU without being descendants of its holder: kin and strangers.

Kin: a front end that tokenises for an engine, actors below one raylet, a loader next to the
trainer in one container, the left side of a shell's pipeline. Proximity is not enough, as a mere
neighbour may be closer. Kin are connected to the holder by a pipe or a UNIX socket, by a broker
that is the parent of both, or, within one container or Slurm step, by any connection.

Strangers: a sidecar, a tokeniser, a gateway. They are at the other end of what the holder, its
workers or its kin wait on. That alone says little: which of them count is up to
`process.StrangerRecord`.
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
from gpu_bottleneck_exporter.schedule import LONG_NS, OFTEN_NS, Every
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
        sockets = Sockets(proc, pid).query()
    except OSError:
        return set()
    return {(one.local, one.remote) for one in sockets if not one.listens}


_Links = dict[int, str | None]
"""What descriptors are, by number, as `links_of` returns them."""
_FIRST_NS = 300_000_000
"""Between two searches: each time a quarter longer, up to `OFTEN_NS`."""
MOST_STRANGERS = MOST_KIN
"""Of one GPU."""


class _Found(NamedTuple):
    pids: frozenset[int]
    at_ns: int


class StrangerFinder:
    """Searches for those of all GPUs at once; used by one thread."""

    def __init__(self, proc: Path) -> None:
        """`proc`: our own procfs."""
        self._proc = proc
        self._never = ourselves(proc) | {1}
        self._networks = TcpNetworks(proc)
        self._due_ns = self._pause_ns = 0
        self._seen: dict[FeederGroup, dict[End, int]] = {}
        """Of each GPU that idles, when each end was last seen."""
        self._opposite: dict[tuple[object, ...], set[End]] = {}
        """By process and connections, what is at the other ends: asking is costly."""
        self._forgetting = Every(LONG_NS)
        self._found: dict[End, _Found] = {}

    def is_due(
        self, now_ns: int, idle: Collection[FeederGroup], wanted: Collection[FeederGroup]
    ) -> bool:
        """Whether to search for the strangers of GPUs `wanted`; if so, it is due again later.

        It is due at once where one of them has just begun to be `idle`, and ever less often while
        it is not new that they are. A server's clients are best sought while one is connected.
        """
        self._seen = {feed: self._seen[feed] for feed in idle if feed in self._seen}
        if not self._seen.keys() >= {*wanted}:
            self._pause_ns, self._due_ns = _FIRST_NS, min(self._due_ns, now_ns)
        lonely = all(feed.lacks_clients for feed in wanted)
        if not wanted or now_ns < self._due_ns + lonely * OFTEN_NS:
            return False
        self._due_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 5 // 4, OFTEN_NS)
        return True

    def search(
        self, feeds: Collection[FeederGroup], holders: Collection[int], now_ns: int
    ) -> dict[FeederGroup, set[int]]:
        """The strangers of each of `feeds`. Raises FileLimitError.

        `holders` of GPUs and what they started are none.
        """
        self._networks.refresh(now_ns)
        if self._forgetting.is_due(now_ns):
            self._opposite.clear()
        self._seen |= {feed: self._seen_lately(feed, now_ns) for feed in feeds}
        ends = set().union(*self._seen.values())
        known = ((end, self._found[end]) for end in ends & self._found.keys())
        self._found = {end: one for end, one in known if self._holds(one, now_ns)}
        if wanted := ends - self._found.keys():
            feeding = {pid for one in self._found.values() for pid in one.pids}
            missed = any(not one.pids for one in self._found.values())
            for end, pids in find_processes(self._proc, wanted, feeding, again=missed).items():
                self._found[end] = _Found(frozenset(pids), now_ns)
        return {feed: self._strangers(feed, {*holders}) for feed in feeds}

    def _holds(self, one: _Found, now_ns: int) -> bool:
        """Whether what was found need not be sought again yet."""
        if now_ns - one.at_ns >= LONG_NS:
            return False
        return not one.pids or not all(has_ended(self._proc, pid) for pid in one.pids)

    def _seen_lately(self, feed: FeederGroup, now_ns: int) -> dict[End, int]:
        """The ends that were seen lately, the newest last."""
        known = self._seen.get(feed, {})
        # A client may connect anew for each request, and be connected at few searches.
        seen = {end: at_ns for end, at_ns in known.items() if now_ns - at_ns < LONG_NS}
        awaited = feed.drain_awaited()
        links = self._links(feed, awaited)
        for pid, numbers in awaited.items():
            for end in self._other_ends(pid, numbers, links.get(pid)):
                seen.pop(end, None)
                seen[end] = now_ns
        return seen

    def _links(
        self, feed: FeederGroup, awaited: Mapping[int, Collection[int | None]]
    ) -> Mapping[int, _Links]:
        """What the `awaited` descriptors of feeders are, by pid; without those that do not answer.

        A main and its workers, which are of one tenant, share a call: each call costs 0.1 ms.
        """
        named = [pid for pid, numbers in awaited.items() if None not in numbers]
        family = {*feed.mains, *feed.workers} if len(feed.mains) == 1 else set()
        together = [pid for pid in named if pid in family]
        found = self._links_of(together, awaited)
        for pid in named:
            if pid not in found:  # of another tenant, or beside one that hangs
                found |= self._links_of([pid], awaited)
        return found

    def _links_of(
        self, pids: Collection[int], awaited: Mapping[int, Collection[int | None]]
    ) -> dict[int, _Links]:
        def asked() -> dict[int, _Links]:
            found: dict[int, _Links] = {}
            for pid in pids:
                numbers = [number for number in awaited[pid] if number is not None]
                with suppress(PermissionError):
                    found[pid] = links_of(f"{self._proc}/{pid}/fd", numbers)
            return found

        return proc_reads.call(next(iter(pids)), asked) or {} if pids else {}

    def _other_ends(
        self, pid: int, numbers: Collection[int | None], links: _Links | None
    ) -> set[End]:
        """What is opposite to descriptors of process `pid`, see `links.peer_ends`."""
        if None in numbers:  # all that an epoll watches
            return peer_ends(self._proc, pid, numbers, self._networks)
        key = (pid, *(links or {}).values())
        ends = self._opposite.get(key) or peer_ends(self._proc, pid, numbers, self._networks)
        if ends:  # else the connection may get another end yet
            self._opposite[key] = ends
        return ends

    def _strangers(self, feed: FeederGroup, holders: set[int]) -> set[int]:
        ends = reversed(self._seen[feed])
        pids = dict.fromkeys(pid for end in ends for pid in self._found[end].pids)
        others = (pid for pid in pids if pid not in self._never and feed.is_stranger(pid))
        # A rank's workers inherit its connections to other ranks, and feed only it.
        apart = (pid for pid in others if holders.isdisjoint(lineage(self._proc, pid)))
        return set(islice(apart, MOST_STRANGERS))
