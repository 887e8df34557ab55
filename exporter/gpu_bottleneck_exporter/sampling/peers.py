"""Which GPUs of one job wait for each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.states import ends_of
from gpu_bottleneck_exporter.host.sockets import Ends
from gpu_bottleneck_exporter.schedule import LATELY_NS


def ranks_beside(uuid: str, feeds: Mapping[str, FeederGroup]) -> Iterator[tuple[str, FeederGroup]]:
    """The other GPUs of the job that has GPU `uuid`. Neither its own board nor its instances."""
    feed = feeds[uuid]
    for other, theirs in feeds.items():
        if uuid in (other, theirs.holders.parent_uuid) or other == feed.holders.parent_uuid:
            continue
        if feed.facts.jobs & theirs.facts.jobs or theirs in feed.joined:
            yield other, theirs


def engaged_peer(
    uuid: str, feeds: Mapping[str, FeederGroup], now_ns: int
) -> tuple[float, FeederGroup | None]:
    """The largest share of the last tick, 0-1, in which a peer of GPU `uuid` was engaged; which.

    A rank is engaged while its GPU works or waits for a cause within that rank: ranks that wait
    for a starved rank wait for that rank, however little its GPU does. A board's busy time is that
    of its MIG instances, so neither can wait for the other. Nothing is known of a GPU that hangs.
    """
    most: tuple[float, FeederGroup | None] = 0.0, None
    for _, theirs in ranks_beside(uuid, feeds):
        ratio, at_ns = theirs.engaged
        if ratio > most[0] and now_ns - at_ns <= LATELY_NS:
            most = ratio, theirs
    return most


def inspect_connections(feeds: Collection[FeederGroup], now_ns: int) -> None:
    """Find which connections of idle GPUs lead to other processes of the job."""
    if not any(feed.idles(now_ns) for feed in feeds):
        return
    kin_of = Counter(pid for feed in feeds for pid in feed.family.kin)
    for feed in feeds:
        if len(feeds) > 1 or feed.family.related or feed.workers:
            feed.inspect_connections(now_ns)
        # A broker that serves several jobs, such as a raylet, joins none of them.
        kin = (feed.family.related[pid] for pid in feed.family.kin if kin_of[pid] == 1)
        feed.ends = ends_of([*feed.mains.values(), *kin])
    for feed in feeds:
        others = [other for other in feeds if other is not feed]
        theirs = (ends_towards(feed, other) for other in others)
        feed.states.peers = frozenset().union(*theirs)
        feed.states.ours = feed.states.peers | feed.own_ends
        feed.joined = frozenset(other for other in others if are_joined(feed, other))
        feed.states.is_rank = feed.facts.has_rank_variables or bool(feed.joined)


def ends_towards(one: FeederGroup, other: FeederGroup) -> frozenset[Ends]:
    """Connections of the mains of `other` that may lead to those of `one`.

    Both must be of one user, who could else make a connection that looks like the other end. In
    another network namespace an address of the machine itself is another machine's, and a user who
    created the namespace can have copied both ends.
    """
    if one.facts.users.isdisjoint(other.facts.users):
        return frozenset()
    if not one.facts.networks.keys().isdisjoint(other.facts.networks):
        return other.ends
    addressed = one.facts.addressed and other.facts.addressed
    return frozenset(ends for ends in other.ends if addressed and not ends[0].is_here)


def are_joined(one: FeederGroup, other: FeederGroup) -> bool:
    """Whether a connection leads from a main of `other` to one of `one`."""
    return any((remote, local) in one.ends for local, remote in ends_towards(one, other))
