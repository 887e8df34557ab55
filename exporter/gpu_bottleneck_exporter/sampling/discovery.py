"""Who feeds the GPUs: process trees of their holders, kin and strangers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from gpu_bottleneck_exporter.feeders.crowd import share_of
from gpu_bottleneck_exporter.feeders.group import FeederGroup, Holders
from gpu_bottleneck_exporter.feeders.kin import KinFinder
from gpu_bottleneck_exporter.feeders.strangers import StrangerFinder
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.process import ourselves, stat_of, trees
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.settings import Settings
from gpu_bottleneck_exporter.workload.owners import Groups

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
        seen = {pid for pid in asked if stat_of(self._proc, pid)}
        workers = {pid: one for feed in known.values() for pid, one in feed.workers.items()}
        found = trees(
            self._proc, seen, mains, lambda pid: workers[pid].children() if pid in workers else None
        )
        feeds = {uuid: known.get(uuid) or self._new_group() for uuid in read}
        for uuid, feed in feeds.items():
            feed.holders = held[uuid]
            living = seen.intersection(feed.holders.pids or ())
            descendants = {worker for pid in living for worker in found.of.get(pid, ())}
            feed.family.whole = living.isdisjoint(found.cut)
            feed.family.share = share_of(len(held))
            with self._isolated(f"finding the feeders of {uuid}", uuid):
                feed.adopt(living, descendants - self._we, mains | self._we)
        self._find_kin(feeds, mains)
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
                with self._isolated(f"looking for kin of {uuid}"):
                    kin = set().union(*(finder.of(pid, feed.workers) for pid in feed.mains))
                with self._isolated(f"watching kin of {uuid}", uuid):
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
                with self._isolated(f"watching strangers that feed {uuids[feed]}", uuids[feed]):
                    feed.family.adopt_strangers(found)
