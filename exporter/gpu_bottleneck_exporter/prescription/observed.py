"""Observations of a GPU and its feeders: the input of predictions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription.thresholds import ADVICE

EXTERNAL_WAITS = (stall.STORAGE, stall.MEMORY, stall.NETWORK)
"""Causes outside of the machine's CPUs: more workers may wait longer."""
WORKER_WAITS = (stall.WORKER_CPU, *EXTERNAL_WAITS)


@dataclass(frozen=True, slots=True)
class Observed:
    """Means over `seconds`; shares are of time, 0-1; None: unknown, never zero."""

    seconds: float
    busy: float
    """Busy share of the GPU."""
    stalls: Mapping[str, float]
    """Shares of idle time, by `waiting_on`."""
    mains: float = 1.0
    owners: float = 1.0
    """Owners of the mains."""
    workers: float = 0.0
    idlers: float = 0.0
    """Children that are no workers."""
    active: float = 0.0
    """Workers at work on a batch: running, reading or awaiting a response."""
    running: float = 0.0
    """Workers running or queued for a CPU."""
    reading: float = 0.0
    """Workers in file I/O."""
    threads: float = 0.0
    """Active loading threads of the main."""
    worker_cores: float = 0.0
    worker_queue: float = 0.0
    """Workers queued for a CPU (first threads)."""
    main_cores: float = 0.0
    main_queue: float = 0.0
    """Share in which a main was queued for a CPU."""
    main_disk: float = 0.0
    main_network: float = 0.0
    """Shares in which the main awaited files, and responses."""
    main_writes: bool = False
    """Whether the main wrote more to storage than it read."""
    main_reads: bool = False
    """Whether the main read files, also from the page cache."""
    spread: float | None = None
    """Variance of the logarithm of the time between batches, with one worker."""
    worker_starts: float = 0.0
    """Worker starts per second."""
    throttled: float = 0.0
    """Share of throttled quota periods."""
    limit_cores: float | None = None
    """CPU limit; None without one."""
    free_cores: float | None = None
    """Idle cores of the job's cpuset; its CPU limit is ignored."""
    worker_bytes: float | None = None
    """Private memory of one worker."""
    free_bytes: float | None = None
    data_bytes: float | None = None
    """Bytes per second read from storage, or received if awaited."""
    handovers: float | None = None
    """Write calls of all workers per second: at least one per batch."""
    pinned: bool = False
    """Whether most workers queue for a few CPUs to which they are pinned."""
    saturated: bool = False
    """Whether a disk or a network interface was saturated."""
    job_gpus: float = 1.0
    """GPUs of the job on this machine."""
    job_busy: float | None = None
    """Mean busy share of these GPUs."""
    slack: float | None = None
    """The smallest `spare` of other ranks; None without any, or if unknown."""

    def waits(self, *names: str) -> float:
        """Share of time in these waits (values of `waiting_on`)."""
        return sum(self.stalls.get(name, 0.0) for name in names)

    @property
    def is_unseen(self) -> bool:
        """Whether the GPU idled for an unknown cause."""
        return self.idle > ADVICE.min_wait_share and self.waits(stall.UNKNOWN) > self.idle / 2

    @property
    def idle(self) -> float:
        """Idle share of the GPU."""
        return 1 - self.busy

    @property
    def spare(self) -> float | None:
        """Share of time that this rank can lose without loss of throughput; None: unknown.

        While it waits for a peer, waits of its workers delay nothing. Unknown unless such a wait is
        visible.
        """
        peer = self.waits(stall.PEER)
        if self.workers < 1:
            return peer
        if peer < ADVICE.min_wait_share:
            return None
        needed = max(self.active / self.workers, 1 - peer - self.waits(*WORKER_WAITS))
        return max(1 - needed, peer)

    @property
    def pace(self) -> float:
        """Largest possible speed-up of the other ranks of the job."""
        return math.inf if self.slack is None else 1 / max(1 - self.slack, 1e-9)

    @property
    def cores(self) -> float:
        """CPU use of the job."""
        return self.worker_cores + self.main_cores


_FLAGS_BY_MAJORITY = frozenset({"pinned", "saturated", "main_writes", "main_reads"})
_OPTIONAL_MEANS = frozenset({"free_cores", "data_bytes", "handovers", "job_busy", "slack"})
"""Fields merged by the mean of known values."""
_MEANS = sorted(
    {item.name for item in fields(Observed)}
    - (_FLAGS_BY_MAJORITY | _OPTIONAL_MEANS | {"seconds", "stalls"})
    # Merged by the last value.
    - {"limit_cores", "spread", "worker_bytes", "free_bytes", "job_gpus"}
)


def among(own: Observed, others: Collection[Observed | None]) -> Observed:
    """`own` with the fields about the job's other ranks; None: not observed."""
    ranks = [other for other in others if other]
    own = replace(own, job_gpus=1 + len(others))
    if not ranks or len(ranks) < len(others):
        return own
    busy = own.busy + sum(rank.busy for rank in ranks)
    spares = [spare for rank in ranks if (spare := rank.spare) is not None]
    slack = min(spares) if len(spares) == len(ranks) else None
    return replace(own, job_busy=busy / (1 + len(ranks)), slack=slack)


def merged(parts: Sequence[Observed]) -> Observed:
    """The observation of consecutive `parts`, at least one."""
    seconds = sum(part.seconds for part in parts)

    def over_time(values: Iterable[float]) -> float:
        pairs = zip(values, parts, strict=True)
        return sum(value * part.seconds for value, part in pairs) / seconds

    figures: dict[str, Any] = {n: over_time(getattr(part, n) for part in parts) for n in _MEANS}
    for name in _FLAGS_BY_MAJORITY:
        figures[name] = sum(getattr(part, name) for part in parts) > len(parts) / 2
    for name in _OPTIONAL_MEANS:
        values = [value for part in parts if (value := getattr(part, name)) is not None]
        figures[name] = sum(values) / len(values) if values else None
    names = dict.fromkeys(name for part in parts for name in part.stalls)
    stalls = {name: over_time(part.stalls.get(name, 0.0) for part in parts) for name in names}
    return replace(parts[-1], **figures, seconds=seconds, stalls=stalls)
