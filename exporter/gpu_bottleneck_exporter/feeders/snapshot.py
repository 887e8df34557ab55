"""Snapshots of one GPU's feeders, for scrapes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

from gpu_bottleneck_exporter.accounting.bucket import Bucket, Counters, Role
from gpu_bottleneck_exporter.feeders.group import Busiest, FeederGroup
from gpu_bottleneck_exporter.feeders.job import JobReading, Networks, Sums
from gpu_bottleneck_exporter.feeders.process import FeederProcess
from gpu_bottleneck_exporter.feeders.serving import Serving
from gpu_bottleneck_exporter.host.process import Started
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from gpu_bottleneck_exporter.schedule import CADENCE, Every
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.names import Sharing, Tenant
from gpu_bottleneck_exporter.workload.owners import OwnerReader, distinct


@dataclass(frozen=True, slots=True)
class Feeding:
    """The feeders of a GPU at monotonic `at_ns`. Sums start with the first feeder."""

    at_ns: int
    processes: Mapping[str, int]
    """Processes by role; without workers before the first one, or if too many."""
    counters: Mapping[str, Counters]
    """Counters by role; without workers unless all are read. Bytes are None unless readable for
    all."""
    wait_ns: Mapping[tuple[str, str], int]
    """Time by role and kind of wait."""
    queue_known: bool
    worker_starts: int | None
    throttled_ns: int | None
    refault_bytes: int | None
    job: JobReading
    owners: tuple[Owner, ...] = ()
    """Owners of the mains, without duplicates."""
    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    """Tenants by name, also recent ones, while the GPU is shared."""
    worker_pids: tuple[int, ...] = ()
    """The lowest pids of workers."""
    evidence: tuple[tuple[str, str], ...] = ()
    """Recent evidence by `waiting_on`, in sentences for users."""
    serving: Serving | None = None
    busiest: Busiest = (), ()
    outlook: Outlook = NOTHING_KNOWN

    @property
    def mains(self) -> frozenset[Started]:
        """The holders of the GPU."""
        return frozenset(self.busiest[0])


class FeedingReader:
    """Builds the snapshots of one GPU. Not thread-safe."""

    def __init__(self, networks: Networks, owners: OwnerReader | None = None) -> None:
        """`networks` and `owners` may be shared by readers."""
        self._networks = networks
        self._traffic: Sums[str] = Sums()
        self._pressure: Sums[tuple[str, str]] = Sums()
        self._owners = owners
        self._sharing = Sharing()
        self._has_workers = False
        """Whether a worker was ever sampled."""
        self._published: set[str] = set()
        """Counters that have been readable, or roles with readable bytes."""
        self._evidence: tuple[tuple[str, str], ...] = ()
        self._serving: Serving | None = None
        self._holders: frozenset[Started] = frozenset()
        """Subjects of the evidence and the server's clients."""
        self._evidence_due = Every(CADENCE.window_ns)

    def read(
        self, feed: FeederGroup, now_ns: int, peers: Collection[int] = (), *, queue_known: bool
    ) -> Feeding:
        """Snapshot of `feed`; `queue_known`: the kernel counts run-queue delay.

        `peers`: as for `FeederGroup.evidence`.
        """
        family, total = feed.family, feed.history.total
        self._has_workers |= bool(feed.workers)
        processes = {Role.MAIN: len(feed.mains)}
        counters = {Role.MAIN: self._counters(total, Role.MAIN, feed.mains)}
        # Omit counters that are not read for all workers.
        if self._has_workers and family.whole:
            processes[Role.WORKER] = family.worker_count
            if not family.unfollowed:
                counters[Role.WORKER] = self._counters(total, Role.WORKER, feed.workers)
        job, busiest = self._read_job(feed, now_ns), feed.busiest()
        has_processes, limits = bool(feed.mains), job.limits
        throttling = self._is_publishable(
            "throttled", has_processes=has_processes, is_readable=limits.throttling_known
        )
        refaults = self._is_publishable(
            "refaults", has_processes=has_processes, is_readable=limits.refaults_known
        )
        waits = feed.states.wait_ns.items()
        before, self._holders = self._holders, frozenset(busiest[0])
        if before and before != self._holders:  # the evidence is about other holders
            self._evidence, self._serving = (), None
            self._evidence_due = Every(CADENCE.window_ns, now_ns + CADENCE.window_ns)
        elif self._evidence_due.is_due(now_ns):
            self._evidence = feed.evidence(now_ns, peers)
            self._serving = feed.serving(now_ns)
        owners = self._owners.by_process(busiest[0], now_ns) if self._owners else {}
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
            owners=distinct(owners.values()),
            tenants=self._sharing.update(owners, now_ns),
            worker_pids=tuple(sorted(feed.workers)[:8]),
            evidence=self._evidence,
            serving=self._serving,
            busiest=busiest,
        )

    def _read_job(self, feed: FeederGroup, now_ns: int) -> JobReading:
        feed.refresh_facts(now_ns)
        facts, has_processes = feed.facts, bool(feed.mains)
        traffic: dict[tuple[Hashable, str], int] = {}
        for inode, pid in facts.networks.items():
            if totals := self._networks.traffic(inode, pid, now_ns):
                traffic[inode, "received"], traffic[inode, "sent"] = totals
        self._traffic.advance(traffic)
        self._pressure.advance(
            {
                (group.unified, key): value
                for group in feed.counters.cgroups
                for key, value in group.counters.pressure_ns.items()
            }
        )
        sums = self._traffic.known(sources=has_processes)
        return JobReading(
            limits=facts.limits,
            age_seconds=None
            if facts.started_ns is None
            else max(now_ns - facts.started_ns, 0) / 1e9,
            received_bytes=sums.get("received"),
            sent_bytes=sums.get("sent"),
            shares_network=facts.shares_network,
            socket_bytes=feed.traffic.moved_bytes if facts.shares_network else None,
            pressure_ns=self._pressure.known(sources=has_processes),
        )

    def _counters(
        self, total: Bucket, role: str, processes: Mapping[int, FeederProcess]
    ) -> Counters:
        readable = bool(processes) and not any(process.denied for process in processes.values())
        counters = total.of(role).used
        if self._is_publishable(role, has_processes=bool(processes), is_readable=readable):
            return counters
        return counters._replace(read_bytes=None, written_bytes=None)

    def _is_publishable(self, counter: str, *, has_processes: bool, is_readable: bool) -> bool:
        """Whether `counter` is readable, or was while processes ran."""
        if is_readable:
            self._published.add(counter)
        return is_readable or (not has_processes and counter in self._published)
