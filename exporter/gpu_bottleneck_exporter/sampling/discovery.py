"""Who feeds the GPUs: process trees, kin and strangers; and which GPUs are of one job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager

from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.related import KinFinder, StrangerFinder
from gpu_bottleneck_exporter.feeders.states import UNCONNECTED, JobConnections, ends_of
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import Holders, ProcessTree, share_of
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.process import has_ended, ourselves, stat_of, trees
from gpu_bottleneck_exporter.host.sockets import Ends, same_pids
from gpu_bottleneck_exporter.schedule import LATELY_NS
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import Groups

Connections = Mapping[str, JobConnections]
"""By the GPU's uuid."""
Isolated = Callable[..., AbstractContextManager[None]]


class Discovery:
    """Used by the watching thread only."""

    def __init__(
        self, settings: Settings, cgroups: Cgroups, units: Groups, isolated: Isolated
    ) -> None:
        """`units` map control groups to jobs.

        `isolated`: whatever /proc says of one job, the others are found.
        """
        self._proc = settings.procfs
        self._we = ourselves(self._proc)
        """A notebook that holds a GPU may have started us."""
        self.strangers = StrangerFinder(self._proc)
        self.connected = same_pids(self._proc)
        """Whether connections can be inspected."""
        self._cgroups = cgroups
        self._units = units
        self._isolated = isolated
        self._longest_answer_ms = int(settings.longest_answer_seconds * 1000)

    def discover(
        self,
        held: Mapping[str, Holders],
        known: Mapping[str, FeederGroup],
        left_out: Collection[str] = (),
    ) -> dict[str, FeederGroup]:
        """The feeders of each GPU that is `held`; those `known` go on.

        Processes of the GPUs `left_out` are not read, but are mains of these all the same.
        """
        self._units.forget()
        mains = frozenset(pid for one in held.values() for pid in one.pids or ())
        read = {uuid: holders for uuid, holders in held.items() if uuid not in left_out}
        asked = {pid for holders in read.values() for pid in holders.pids or ()}
        # One that hangs would hold up the others; one that is late stays as it was.
        hanging = {pid for uuid in left_out for pid in known[uuid].mains}
        watched = {pid for feed in known.values() for pid in feed.mains} - hanging
        answering = {pid for pid in asked if stat_of(self._proc, pid)}
        silent = asked & watched - answering
        late = {pid for pid in silent if not has_ended(self._proc, pid)}
        seen = answering | late
        workers = {pid: one for feed in known.values() for pid, one in feed.workers.items()}
        found = trees(
            self._proc, seen, mains, lambda pid: workers[pid].children() if pid in workers else None
        )
        feeds = {uuid: known.get(uuid) or self._new_group() for uuid in read}
        for uuid, feed in feeds.items():
            living = seen.intersection(held[uuid].pids or ())
            tree = ProcessTree(
                living,
                {worker for pid in living for worker in found.of.get(pid, ())} - self._we,
                mains | self._we,
                held[uuid],
                whole=living.isdisjoint(found.cut),
                share=share_of(len(held)),
            )
            with self._isolated("finding the feeders", uuid):
                feed.adopt(tree)
        late_feeds = {uuid for uuid, feed in feeds.items() if late & feed.mains.keys()}
        self._find_kin({uuid: feeds[uuid] for uuid in feeds.keys() - late_feeds}, mains)
        return feeds

    def _new_group(self) -> FeederGroup:
        timeouts = AnswerTimeouts(self._longest_answer_ms) if self.connected else None
        return FeederGroup(self._proc, self._cgroups, timeouts, self._units)

    def _find_kin(self, feeds: Mapping[str, FeederGroup], mains: frozenset[int]) -> None:
        """Find the kin of idle GPUs, none of them among the `mains` of all.

        A busy one needs no explanation.
        """
        now = time.monotonic_ns()
        finder = KinFinder(self._proc, mains, self._units)
        for uuid, feed in feeds.items():
            if not self.connected or not feed.idles(now):
                feed.family.forget_related()
            elif feed.family.is_kin_search_due(now, mains):
                kin = feed.family.kin  # stays where the search fails
                with self._isolated("looking for kin", uuid, may_hang=False):
                    kin = set().union(*(finder.of(pid, feed.workers) for pid in feed.mains))
                with self._isolated("watching kin", uuid):
                    feed.family.adopt_kin(kin)

    def lacks_kin(self, feed: FeederGroup, now_ns: int) -> bool:
        """Whether kin of a GPU that idles have never been sought."""
        return self.connected and feed.family.searched_ns is None and feed.idles(now_ns)

    def find_strangers(self, feeds: Mapping[str, FeederGroup], now_ns: int) -> None:
        """Find who is connected with the feeders of GPUs that idle for a reason not yet known."""
        uuids = {feed: uuid for uuid, feed in feeds.items()}
        idle = [feed for feed in uuids if feed.mains and feed.idles(now_ns)]
        wanted = [feed for feed in idle if not feed.states.explained]
        if self.connected and self.strangers.is_due(now_ns, idle, wanted):
            mains = [pid for feed in uuids for pid in feed.mains]
            strangers: Mapping[FeederGroup, set[int]] = {}
            with self._isolated("looking for strangers that feed"):
                strangers = self.strangers.search(wanted, mains, now_ns)
            for feed, found in strangers.items():
                with self._isolated("watching strangers that feed", uuids[feed]):
                    feed.family.adopt_strangers(found)


def ranks_beside(
    uuid: str, feeds: Mapping[str, FeederGroup], connections: Connections
) -> Iterator[tuple[str, FeederGroup]]:
    """The other GPUs of the job that has GPU `uuid`. Neither its own board nor its instances."""
    feed, joined = feeds[uuid], connections.get(uuid, UNCONNECTED).joined
    for other, theirs in feeds.items():
        if uuid in (other, theirs.holders.parent_uuid) or other == feed.holders.parent_uuid:
            continue
        if feed.facts.jobs & theirs.facts.jobs or other in joined:
            yield other, theirs


def engaged_peer(
    uuid: str, feeds: Mapping[str, FeederGroup], connections: Connections, now_ns: int
) -> tuple[float, FeederGroup | None]:
    """The largest share of the last tick, 0-1, in which a peer of GPU `uuid` was engaged; which.

    A rank is engaged while its GPU works or waits within that rank: ranks that wait
    for a starved rank wait for that rank, however little its GPU does. A board's busy time is that
    of its MIG instances, so neither can wait for the other. Nothing is known of a GPU that hangs.
    """
    most: tuple[float, FeederGroup | None] = 0.0, None
    for _, theirs in ranks_beside(uuid, feeds, connections):
        ratio, at_ns = theirs.engaged
        if ratio > most[0] and now_ns - at_ns <= LATELY_NS:
            most = ratio, theirs
    return most


def inspect_connections(feeds: Mapping[str, FeederGroup], now_ns: int) -> Connections:
    """How the processes of these GPUs are connected with others of their jobs."""
    kin_of = Counter(pid for feed in feeds.values() for pid in feed.family.kin)
    ends = dict[str, frozenset[Ends]]()
    for uuid, feed in feeds.items():
        if len(feeds) > 1 or feed.family.related or feed.workers:
            feed.inspect_connections(now_ns)
        # A broker that serves several jobs, such as a raylet, joins none of them.
        kin = (feed.family.related[pid] for pid in feed.family.kin if kin_of[pid] == 1)
        ends[uuid] = ends_of([*feed.mains.values(), *kin])
    found = dict[str, JobConnections]()
    for uuid, feed in feeds.items():
        towards = {
            other: ends_towards(feed, theirs, ends[other])
            for other, theirs in feeds.items()
            if other != uuid
        }
        peers = frozenset[Ends]().union(*towards.values())
        joined = frozenset(
            other
            for other, theirs in towards.items()
            if any((remote, local) in ends[uuid] for local, remote in theirs)
        )
        is_rank = feed.facts.has_rank_variables or bool(joined)
        found[uuid] = JobConnections(ends[uuid], peers | feed.own_ends, peers, joined, is_rank)
    return found


def ends_towards(one: FeederGroup, other: FeederGroup, ends: frozenset[Ends]) -> frozenset[Ends]:
    """Connections of the mains of `other`, which have `ends`, that may lead to those of `one`.

    Both must be of one user, who could else make a connection that looks like the other end. In
    another network namespace an address of the machine itself is another machine's, and a user who
    created the namespace can have copied both ends.
    """
    if one.facts.users.isdisjoint(other.facts.users):
        return frozenset()
    if not one.facts.networks.keys().isdisjoint(other.facts.networks):
        return ends
    addressed = one.facts.addressed and other.facts.addressed
    return frozenset(pair for pair in ends if addressed and not pair[0].is_here)
