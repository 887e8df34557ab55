"""The feeders of one GPU as a scrape may show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.accounting.bucket import Bucket, Counters, Role
from gpu_bottleneck_exporter.feeders.group import FeederGroup
from gpu_bottleneck_exporter.feeders.job import Job, JobReader, Networks
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.prescription.model import NOTHING_KNOWN, Outlook
from gpu_bottleneck_exporter.schedule import Every
from gpu_bottleneck_exporter.workload.identity import Owner
from gpu_bottleneck_exporter.workload.owners import OwnerReader

_EVIDENCE_NS = 4_000_000_000


@dataclass(frozen=True, slots=True)
class Feeding:
    """As of `at_ns` (monotonic), immutable. Sums count since the exporter saw the first feeder."""

    at_ns: int
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
    evidence: tuple[str, ...] = ()
    """What was seen behind the waiting lately, in words for people."""
    outlook: Outlook = NOTHING_KNOWN


class FeedingReader:
    """Makes the snapshots of one GPU; only the watching thread calls it."""

    def __init__(self, proc: Path, networks: Networks, owners: OwnerReader | None = None) -> None:
        """`proc`: the host's; `networks` and `owners`, if wanted, may serve many readers."""
        self._job = JobReader(proc, networks)
        self._owners = owners
        self._has_workers = False
        """Or had some."""
        self._counted: set[str] = set()
        """Roles of which bytes were known of at least one process."""
        self._held_back: set[str] = set()
        self._evidence: tuple[str, ...] = ()
        self._looking_for_evidence = Every(_EVIDENCE_NS)

    def read(self, feed: FeederGroup, now_ns: int, *, queue_known: bool) -> Feeding:
        """What `feed` knows; `queue_known`: the kernel tells of time in the CPU's queue."""
        family, total = feed.family, feed.history.total
        self._has_workers |= bool(feed.workers)
        processes = {Role.MAIN: len(feed.mains)}
        counters = {Role.MAIN: self._counters(total, Role.MAIN, feed.mains)}
        # What is not known of all workers is not told of some of them.
        if self._has_workers and family.whole:
            processes[Role.WORKER] = family.worker_count
            if not family.unfollowed:
                counters[Role.WORKER] = self._counters(total, Role.WORKER, feed.workers)
        job = self._job.read(feed.mains, feed.counters.cgroups, now_ns)
        started = ((main.pid, main.started_ticks) for main in feed.mains.values())
        throttling = self._tells("throttled", bool(feed.mains), job.limits.throttling_known)
        refaults = self._tells("refaults", bool(feed.mains), job.limits.refaults_known)
        waits = feed.states.wait_ns.items()
        if self._looking_for_evidence.is_due(now_ns):
            self._evidence = feed.evidence(now_ns)
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
            owners=self._owners.of(started, now_ns) if self._owners else (),
            evidence=self._evidence,
        )

    def _counters(self, total: Bucket, role: str, processes: Mapping[int, Process]) -> Counters:
        denied = any(process.denied for process in processes.values())
        if processes and not denied:
            self._counted.add(role)
        counters = total.of(role).used
        if denied or role not in self._counted:
            return counters._replace(read_bytes=None, written_bytes=None)
        return counters

    def _tells(self, what: str, mains: bool, known: bool) -> bool:  # noqa: FBT001 - two facts
        """Whether a sum may be told: it is known now, or was while there were mains."""
        if known:
            self._held_back.add(what)
        return known or (not mains and what in self._held_back)
