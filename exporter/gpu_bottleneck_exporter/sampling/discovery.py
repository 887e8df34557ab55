"""Who feeds the GPUs: process trees of their holders, kin and strangers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from gpu_bottleneck_exporter.feeders.crowd import share_of
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.kin import KinFinder
from gpu_bottleneck_exporter.feeders.strangers import StrangerFinder
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.process import trees
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.workload.owners import Groups


class Discovery:
    """Used by the watching thread only."""

    def __init__(
        self,
        proc: Path,
        cgroups: Cgroups,
        units: Groups,
        longest_answer_seconds: float,
        isolated: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """`proc`: the host's. `units` map control groups to jobs.

        `isolated`: whatever /proc says of one job, the others are found.
        """
        self.strangers = StrangerFinder(proc)
        self.connected = same_pids(proc)
        """Whether connections can be inspected."""
        self._proc = proc
        self._cgroups = cgroups
        self._units = units
        self._isolated = isolated
        self._longest_answer_ms = int(longest_answer_seconds * 1000)

    def find_trees(
        self,
        held: Mapping[str, frozenset[int] | None],
        known: Mapping[str, FeederGroup],
    ) -> dict[str, FeederGroup]:
        """The feeders of each GPU, `held` by these processes."""
        self._units.forget()
        mains = frozenset(pid for pids in held.values() for pid in pids or ())
        seen = {pid for pid in mains if read(self._proc / str(pid) / "stat") is not None}
        workers = {pid: one for feed in known.values() for pid, one in feed.workers.items()}
        found = trees(
            self._proc, seen, mains, lambda pid: workers[pid].children() if pid in workers else None
        )
        feeds = dict(known)
        for uuid, pids in held.items():
            living = seen.intersection(pids or ())
            descendants = {worker for pid in living for worker in found.of.get(pid, ())}
            feed = feeds[uuid] = feeds.get(uuid) or self._new_group()
            whole = living.isdisjoint(found.cut)
            with self._isolated(f"finding the feeders of {uuid}"):
                feed.adopt(living, descendants, mains, share_of(len(held)), whole=whole)
        return feeds

    def _new_group(self) -> FeederGroup:
        timeouts = AnswerTimeouts(self._longest_answer_ms) if self.connected else None
        return FeederGroup(self._proc, self._cgroups, timeouts, self._units)

    def find_kin(self, feeds: Collection[FeederGroup], mains: frozenset[int]) -> None:
        """Find the kin of idle GPUs, none of them among the `mains` of all.

        A busy one needs no explanation.
        """
        now = time.monotonic_ns()
        finder = KinFinder(self._proc, mains, self._units)
        for feed in feeds:
            if not self.connected or not feed.idles(now):
                feed.related.close()
            elif feed.related.is_search_due(now, mains):
                kin = [finder.of(pid, feed.workers) for pid in feed.mains]
                feed.related.adopt_kin(set().union(*kin))

    def lacks_kin(self, feed: FeederGroup, now_ns: int) -> bool:
        """Whether kin of a GPU that idles have never been sought."""
        return self.connected and not feed.related.was_searched and feed.idles(now_ns)

    def find_strangers(self, known: Collection[FeederGroup], now_ns: int) -> None:
        """Find who is connected with the feeders of GPUs that idle for a reason not yet known."""
        feeds = [
            feed
            for feed in known
            if feed.mains and feed.idles(now_ns) and not feed.states.explained
        ]
        if self.connected and self.strangers.is_due(now_ns, feeds):
            mains = [pid for feed in known for pid in feed.mains]
            with self._isolated("looking for strangers that feed"):
                for feed, found in self.strangers.search(feeds, mains, now_ns).items():
                    feed.related.adopt_strangers(found)
