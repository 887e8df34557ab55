"""The feeders of one GPU as a scrape may show them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from gpu_bottleneck_exporter.accounting.bucket import WINDOW_NS, Bucket, Counters, Role
from gpu_bottleneck_exporter.feeders.group import Busiest, FeederGroup
from gpu_bottleneck_exporter.feeders.job import Job, Networks, Sums
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from gpu_bottleneck_exporter.schedule import Every
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.owners import OwnerReader

_MOST_PIDS = 8


@dataclass(frozen=True, slots=True)
class Feeding:
    """The feeders of a GPU as of `at_ns`. Sums count since the exporter saw the first one."""

    at_ns: int
    """Monotonic."""
    processes: Mapping[str, int]
    """By role; without the workers until there are some, and where they are too many to count."""
    counters: Mapping[str, Counters]
    """By role; without the workers where not all are read. Bytes are None while they may not be
    known of all processes."""
    wait_ns: Mapping[tuple[str, str], int]
    """By role and what was waited on."""
    queue_known: bool
    worker_starts: int | None
    throttled_ns: int | None
    refault_bytes: int | None
    job: Job
    owners: tuple[Owner, ...] = ()
    """Of the mains, each once."""
    worker_pids: tuple[int, ...] = ()
    """The first few."""
    evidence: tuple[tuple[str, str], ...] = ()
    """What was seen behind the waiting lately, by `waiting_on`, in words for people."""
    busiest: Busiest = (), ()
    outlook: Outlook = NOTHING_KNOWN

    @property
    def mains(self) -> frozenset[Started]:
        """The processes that hold the GPU."""
        return frozenset(self.busiest[0])


class FeedingReader:
    """Makes the snapshots of one GPU; only the watching thread calls it."""

    def __init__(self, networks: Networks, owners: OwnerReader | None = None) -> None:
        """`networks` and `owners`, if wanted, may serve many readers."""
        self._networks = networks
        self._traffic: Sums[str] = Sums()
        self._pressure: Sums[tuple[str, str]] = Sums()
        self._owners = owners
        self._has_workers = False
        """Or had some."""
        self._once_known: set[str] = set()
        """Sums, and roles by their bytes."""
        self._evidence: tuple[tuple[str, str], ...] = ()
        self._mains: frozenset[Started] = frozenset()
        """The processes that the evidence is about."""
        self._looking_for_evidence = Every(WINDOW_NS)

    def read(
        self, feed: FeederGroup, now_ns: int, peers: Collection[int] = (), *, queue_known: bool
    ) -> Feeding:
        """What `feed` knows; `queue_known`: the kernel tells of time in the CPU's queue.

        `peers`: as of `FeederGroup.evidence`.
        """
        family, total = feed.family, feed.history.total
        self._has_workers |= bool(feed.workers)
        processes = {Role.MAIN: len(feed.mains)}
        counters = {Role.MAIN: self._counters(total, Role.MAIN, feed.mains)}
        # What is not known of all workers is not told of some of them.
        if self._has_workers and family.whole:
            processes[Role.WORKER] = family.worker_count
            if not family.unfollowed:
                counters[Role.WORKER] = self._counters(total, Role.WORKER, feed.workers)
        job, busiest = self._read_job(feed, now_ns), feed.busiest()
        any_now, limits = bool(feed.mains), job.limits
        throttling = self._may_tell("throttled", any_now=any_now, known=limits.throttling_known)
        refaults = self._may_tell("refaults", any_now=any_now, known=limits.refaults_known)
        waits = feed.states.wait_ns.items()
        before, self._mains = self._mains, frozenset(busiest[0])
        if before and before != self._mains:  # what was seen until now is of others
            self._evidence = ()
            self._looking_for_evidence = Every(WINDOW_NS, now_ns + WINDOW_NS)
        elif self._looking_for_evidence.is_due(now_ns):
            self._evidence = feed.evidence(now_ns, peers)
        return Feeding(
            at_ns=now_ns,
            processes=processes,
            counters=counters,
            wait_ns={key: ns for key, ns in waits if ns and key[0] in processes},
            queue_known=queue_known,
            worker_starts=feed.worker_starts if family.whole else None,
            throttled_ns=total.held.throttled_ns if throttling else None,
            refault_bytes=total.held.refault_bytes if refaults else None,
            job=job,
            owners=self._owners.of(busiest[0], now_ns) if self._owners else (),
            worker_pids=tuple(sorted(feed.workers)[:_MOST_PIDS]),
            evidence=self._evidence,
            busiest=busiest,
        )

    def _read_job(self, feed: FeederGroup, now_ns: int) -> Job:
        feed.refresh_facts(now_ns)
        facts, any_now = feed.facts, bool(feed.mains)
        traffic: dict[tuple[Hashable, str], int] = {}
        for inode, pid in facts.networks.items():
            if found := self._networks.traffic(inode, pid, now_ns):
                traffic[inode, "received"], traffic[inode, "sent"] = found
        self._traffic.advance(traffic)
        self._pressure.advance(
            {
                (group.unified, key): value
                for group in feed.counters.cgroups
                for key, value in group.counters.pressure_ns.items()
            }
        )
        sums = self._traffic.known(sources=any_now)
        return Job(
            limits=facts.limits,
            age_seconds=None
            if facts.started_ns is None
            else max(now_ns - facts.started_ns, 0) / 1e9,
            received_bytes=sums.get("received"),
            sent_bytes=sums.get("sent"),
            shares_network=facts.shares_network,
            socket_bytes=feed.traffic.moved_bytes if facts.shares_network else None,
            pressure_ns=self._pressure.known(sources=any_now),
        )

    def _counters(self, total: Bucket, role: str, processes: Mapping[int, Process]) -> Counters:
        readable = bool(processes) and not any(one.denied for one in processes.values())
        counters = total.of(role).used
        if self._may_tell(role, any_now=bool(processes), known=readable):
            return counters
        return counters._replace(read_bytes=None, written_bytes=None)

    def _may_tell(self, what: str, *, any_now: bool, known: bool) -> bool:
        """Whether a sum may be told: it is known now, or was while there was something to read."""
        if known:
            self._once_known.add(what)
        return known or (not any_now and what in self._once_known)
