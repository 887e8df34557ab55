"""Who feeds the GPUs: process trees of their holders, kin and strangers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.feeders.crowd import share_of
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.kin import KinFinder
from gpu_bottleneck_exporter.feeders.patience import Patience
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.strangers import StrangerFinder
from gpu_bottleneck_exporter.host.cgroup import Cgroups
from gpu_bottleneck_exporter.host.files import read
from gpu_bottleneck_exporter.host.sockets import same_pids
from gpu_bottleneck_exporter.host.tree import trees
from gpu_bottleneck_exporter.schedule import RefreshSchedule
from gpu_bottleneck_exporter.workload.groups import Groups

_LOST_KIN_NS = 5_000_000_000
"""At least so long between two searches for kin, which may come and go many times a second."""


class Sought(NamedTuple):
    """When kin were last sought, and are due again, while `mains` are the holders of all GPUs."""

    mains: frozenset[int]
    ageing: RefreshSchedule
    at_ns: int


class Discovery:
    """Used by the watching thread only."""

    def __init__(
        self, proc: Path, cgroups: Cgroups, units: Groups, longest_answer_seconds: float
    ) -> None:
        """`proc`: the host's. `units` map control groups to jobs."""
        self.strangers = StrangerFinder(proc)
        self.connected = same_pids(proc)
        """Whether connections can be inspected."""
        self._proc = proc
        self._cgroups = cgroups
        self._units = units
        self._longest_answer_ms = int(longest_answer_seconds * 1000)
        self._sought_kin: dict[str, Sought] = {}
        """By GPU: the last search for its kin."""

    def find_trees(
        self,
        held: Mapping[str, frozenset[int] | None],
        known: Mapping[str, FeederGroup],
        isolated: Callable[[str], AbstractContextManager[None]],
    ) -> dict[str, FeederGroup]:
        """The feeders of each GPU, of which these processes have `held` of it.

        `isolated`: whatever /proc says of one job, the others are found.
        """
        self._units.forget()
        mains = frozenset(pid for pids in held.values() for pid in pids or ())
        seen = {pid for pid in mains if read(self._proc / str(pid) / "stat") is not None}
        workers = {pid: one for feed in known.values() for pid, one in feed.workers.items()}
        found = trees(self._proc, seen, mains, partial(_known_children, workers))
        feeds = dict(known)
        for uuid, pids in held.items():
            living = seen.intersection(pids or ())
            descendants = {worker for pid in living for worker in found.of.get(pid, ())}
            feed = feeds[uuid] = feeds.get(uuid) or self._new_group()
            whole = living.isdisjoint(found.cut)
            with isolated(f"finding the feeders of {uuid}"):
                feed.adopt(living, descendants, mains, share_of(len(held)), whole=whole)
        self._find_kin(feeds, mains)
        return feeds

    def _new_group(self) -> FeederGroup:
        patience = Patience(self._longest_answer_ms) if self.connected else None
        return FeederGroup(self._proc, self._cgroups, patience, self._units)

    def _find_kin(self, feeds: Mapping[str, FeederGroup], mains: frozenset[int]) -> None:
        """Find the kin of idle GPUs; a busy one needs no explanation."""
        now = time.monotonic_ns()
        finder = KinFinder(self._proc, mains, self._units)
        for uuid, feed in feeds.items():
            if not self.connected or not feed.idles(now):
                feed.related.close()
                self._sought_kin.pop(uuid, None)
                continue
            sought = self._sought_kin.get(uuid)
            if sought is None or sought.mains != mains:
                sought = Sought(mains, RefreshSchedule(now), now)
            lost = feed.related.lost_kin and now - sought.at_ns >= _LOST_KIN_NS
            if sought.ageing.is_due(now) or lost:
                kin = [finder.of(pid, feed.workers) for pid in feed.mains]
                feed.related.adopt_kin(set().union(*kin))
                self._sought_kin[uuid] = sought._replace(at_ns=now)

    def lacks_kin(self, feed: FeederGroup, now_ns: int) -> bool:
        """Whether kin of a GPU that idles are yet to be sought for the first time."""
        if not self.connected or feed.sought_kin or not feed.idles(now_ns):
            return False
        feed.sought_kin = True
        return True

    def find_strangers(self, known: Collection[FeederGroup], now_ns: int) -> None:
        """Find who is connected with the feeders of GPUs that idle for a reason not yet known."""
        feeds = [
            feed
            for feed in known
            if feed.mains and feed.idles(now_ns) and not feed.states.explained
        ]
        if self.connected and self.strangers.is_due(now_ns, feeds):
            mains = [pid for feed in known for pid in feed.mains]
            for feed, found in self.strangers.search(feeds, mains, now_ns).items():
                feed.related.adopt_strangers(found)

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`."""
        self._sought_kin.pop(uuid, None)


def _known_children(workers: Mapping[int, Process], pid: int) -> list[int] | None:
    worker = workers.get(pid)
    return worker.children() if worker else None
