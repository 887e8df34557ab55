"""Discovery of each GPU's feeders, and of GPUs of one job."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager

from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.related import KinFinder, StrangerFinder
from gpu_bottleneck_exporter.feeders.states import UNCONNECTED, JobConnections, ends_of
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.tree import Holders, ProcessTree, budget_of
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.process import has_ended, ourselves, stat_of, trees
from gpu_bottleneck_exporter.host.sockets import Ends, same_pids
from gpu_bottleneck_exporter.schedule import CADENCE
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import Groups

Connections = Mapping[str, JobConnections]
"""Connections by the GPU's uuid."""
Isolated = Callable[..., AbstractContextManager[None]]


class Discovery:
    """Finds the feeders of each GPU: descendants of its holders, kin and strangers.

    Not thread-safe.
    """

    def __init__(
        self, settings: Settings, cgroups: Cgroups, units: Groups, isolated: Isolated
    ) -> None:
        """`units` map control groups to jobs; `isolated` contains the failure of a step."""
        self._proc = settings.procfs
        self._own_pids = ourselves(self._proc)
        """The exporter and its ancestors, such as a notebook that holds a GPU."""
        self.strangers = StrangerFinder(self._proc)
        self.connected = same_pids(self._proc)
        """Whether connections can be inspected."""
        self._cgroups = cgroups
        self._units = units
        self._isolated = isolated
        self._longest_answer_ms = int(settings.longest_answer_seconds * 1000)

    def discover(
        self,
        holders: Mapping[str, Holders],
        current: Mapping[str, FeederGroup],
        left_out: Collection[str] = (),
    ) -> dict[str, FeederGroup]:
        """The feeders of each GPU with `holders`; updates `current` ones.

        Processes of GPUs `left_out` are not read.
        """
        self._units.forget()
        mains = frozenset(pid for gpu in holders.values() for pid in gpu.pids or ())
        readable = {uuid: gpu for uuid, gpu in holders.items() if uuid not in left_out}
        pids = {pid for gpu in readable.values() for pid in gpu.pids or ()}
        # A process that hangs would block others.
        hanging = {pid for uuid in left_out for pid in current[uuid].mains}
        watched = {pid for feed in current.values() for pid in feed.mains} - hanging
        answering = {pid for pid in pids if stat_of(self._proc, pid)}
        silent = pids & watched - answering
        late = {pid for pid in silent if not has_ended(self._proc, pid)}
        running = answering | late
        workers = {pid: worker for feed in current.values() for pid, worker in feed.workers.items()}
        descendants = trees(
            self._proc,
            running,
            mains,
            lambda pid: workers[pid].children() if pid in workers else None,
        )
        feeds = {uuid: current.get(uuid) or self._new_group() for uuid in readable}
        for uuid, feed in feeds.items():
            gpu_mains = running.intersection(holders[uuid].pids or ())
            tree = ProcessTree(
                gpu_mains,
                {worker for pid in gpu_mains for worker in descendants.of.get(pid, ())}
                - self._own_pids,
                mains | self._own_pids,
                holders[uuid],
                whole=gpu_mains.isdisjoint(descendants.cut),
                budget=budget_of(len(holders)),
                below=descendants.of,
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
        """Find the kin of idle GPUs; `mains` of all GPUs are none."""
        now = time.monotonic_ns()
        finder = KinFinder(self._proc, mains, self._units)
        for uuid, feed in feeds.items():
            if not self.connected or not feed.idles(now):
                feed.family.forget_related()
            elif feed.family.is_kin_search_due(now, mains):
                # Retained if the search fails.
                kin, kin_of = feed.family.kin, feed.family.kin_of
                with self._isolated("finding kin", uuid, may_hang=False):
                    kin_of = {p: main for main in feed.mains for p in finder.of(main, feed.workers)}
                    kin = {*kin_of}
                with self._isolated("adopting kin", uuid):
                    feed.family.adopt_kin(kin, kin_of)

    def lacks_kin(self, feed: FeederGroup, now_ns: int) -> bool:
        """Whether an idle GPU lacks a first search for kin."""
        return self.connected and feed.family.searched_ns is None and feed.idles(now_ns)

    def find_strangers(self, feeds: Mapping[str, FeederGroup], now_ns: int) -> None:
        """Find the strangers of GPUs with unexplained idle time."""
        uuids = {feed: uuid for uuid, feed in feeds.items()}
        idle = [feed for feed in uuids if feed.mains and feed.idles(now_ns)]
        unexplained = [feed for feed in idle if not feed.states.explained]
        if self.connected and self.strangers.is_due(now_ns, idle, unexplained):
            mains = [pid for feed in uuids for pid in feed.mains]
            strangers: Mapping[FeederGroup, set[int]] = {}
            with self._isolated("finding strangers that feed"):
                strangers = self.strangers.search(unexplained, mains, now_ns)
            for feed, pids in strangers.items():
                with self._isolated("adopting strangers that feed", uuids[feed]):
                    feed.family.adopt_strangers(pids)


def ranks_beside(
    uuid: str, feeds: Mapping[str, FeederGroup], connections: Connections
) -> Iterator[tuple[str, FeederGroup]]:
    """The other GPUs of the job, without the own board or MIG instances."""
    feed, joined = feeds[uuid], connections.get(uuid, UNCONNECTED).joined
    for other, theirs in feeds.items():
        if uuid in (other, theirs.holders.parent_uuid) or other == feed.holders.parent_uuid:
            continue
        if feed.facts.jobs & theirs.facts.jobs or other in joined:
            yield other, theirs


def engaged_peer(
    uuid: str, feeds: Mapping[str, FeederGroup], connections: Connections, now_ns: int
) -> tuple[float, FeederGroup | None]:
    """The largest engaged share of a peer in the last tick, 0-1, and the peer.

    A rank is engaged while its GPU works or waits within that rank, so a starved rank counts.
    Neither of a board and its MIG instances waits for the other. Old ticks are ignored.
    """
    most: tuple[float, FeederGroup | None] = 0.0, None
    for _, theirs in ranks_beside(uuid, feeds, connections):
        ratio, at_ns = theirs.engaged
        if ratio > most[0] and now_ns - at_ns <= CADENCE.recent_ns:
            most = ratio, theirs
    return most


def inspect_connections(feeds: Mapping[str, FeederGroup], now_ns: int) -> Connections:
    """Connections of each GPU's processes with others of their job."""
    kin_of = Counter(pid for feed in feeds.values() for pid in feed.family.kin)
    ends = dict[str, frozenset[Ends]]()
    for uuid, feed in feeds.items():
        if len(feeds) > 1 or feed.family.related or feed.workers:
            feed.inspect_connections(now_ns)
        # A broker of several GPUs, such as a raylet, connects none.
        kin = (feed.family.related[pid] for pid in feed.family.kin if kin_of[pid] == 1)
        ends[uuid] = ends_of([*feed.mains.values(), *kin])
    connections = dict[str, JobConnections]()
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
        connections[uuid] = JobConnections(
            ends[uuid], peers | feed.own_ends, peers, joined, is_rank
        )
    return connections


def ends_towards(feed: FeederGroup, other: FeederGroup, ends: frozenset[Ends]) -> frozenset[Ends]:
    """The `ends` of `other`'s mains that may lead to the mains of `feed`.

    Of the same user, against imitation; in another network namespace, local addresses do not count.
    """
    if feed.facts.users.isdisjoint(other.facts.users):
        return frozenset()
    if not feed.facts.networks.keys().isdisjoint(other.facts.networks):
        return ends
    addressed = feed.facts.addressed and other.facts.addressed
    return frozenset(pair for pair in ends if addressed and not pair[0].is_here)
