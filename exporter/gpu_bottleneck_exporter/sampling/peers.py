"""Which GPUs of one job wait for each other, and for how long."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from gpu_bottleneck_exporter.accounting.stall import engaged
from gpu_bottleneck_exporter.feeders.group import FeederGroup

_FRESH_NS = 10_000_000_000
"""As much as the driver's ring holds: what a GPU did in its last tick is stale after that."""


class Peers:
    """For any thread."""

    def __init__(self) -> None:
        self.parents: dict[str, str | None] = {}
        """By MIG instance: its board."""
        self._engaged: dict[str, tuple[float, int]] = {}

    def note(self, uuid: str, active_ns: int, stalls: Mapping[str, int]) -> None:
        """Note how the last tick of GPU `uuid` was split.

        A rank is engaged while its GPU works or waits for a cause within that rank: ranks that
        wait for a starved rank wait for that rank, however little its GPU does.
        """
        elapsed_ns = active_ns + sum(stalls.values())
        ratio = engaged(active_ns, stalls) / max(elapsed_ns, 1)
        self._engaged[uuid] = ratio, time.monotonic_ns()

    def engaged(self, uuid: str, feeds: Mapping[str, FeederGroup]) -> float:
        """The largest share of the last tick in which a peer of GPU `uuid` was engaged, 0-1."""
        feed = feeds[uuid]
        peers = [
            self._engagement(other)
            for other, theirs in feeds.items()
            if self._is_apart(uuid, other)
            and (feed.facts.jobs & theirs.facts.jobs or feed.joined(theirs))
        ]
        return max(peers, default=0.0)

    def forget(self, uuid: str) -> None:
        """Drop GPU `uuid`."""
        self.parents.pop(uuid, None)
        self._engaged.pop(uuid, None)

    def _engagement(self, uuid: str) -> float:
        """0 once it is stale: nothing is known of a GPU that hangs."""
        ratio, at_ns = self._engaged.get(uuid, (0.0, 0))
        return ratio if time.monotonic_ns() - at_ns <= _FRESH_NS else 0.0

    def _is_apart(self, uuid: str, other: str) -> bool:
        """Whether `other` is neither GPU `uuid`, nor its board, nor one of its MIG instances.

        A board's busy time is that of its instances, so neither can wait for the other.
        """
        parents = self.parents
        return uuid != other and uuid != parents.get(other) and other != parents.get(uuid)


def inspect_connections(feeds: Collection[FeederGroup], now_ns: int) -> None:
    """For GPUs that idle: which connections lead to other processes of the job."""
    if not any(feed.idles(now_ns) for feed in feeds):
        return
    for feed in feeds:
        if len(feeds) > 1 or feed.related.processes or feed.workers:
            feed.inspect_connections(now_ns)
        feed.publish_ends()
    for feed in feeds:
        others = [other for other in feeds if other is not feed]
        theirs = (other.ends_with(feed) for other in others)
        feed.states.ours = frozenset().union(*theirs, feed.own_ends)
        feed.states.is_rank = feed.facts.has_rank_variables or any(map(feed.joined, others))
