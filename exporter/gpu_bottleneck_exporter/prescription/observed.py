"""What was seen of a GPU and its feeders, as far as predictions need it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from gpu_bottleneck_exporter.accounting import stall

OUTSIDE = (stall.STORAGE, stall.MEMORY, stall.NETWORK)
"""What workers wait for outside of the machine's CPUs: more of them may only wait longer."""
WAITS_FOR_WORKERS = (stall.WORKER_CPU, *OUTSIDE)


@dataclass(frozen=True, slots=True)
class Observed:
    """Means over `seconds`; shares are of the time, 0-1. None: unknown, never zero."""

    seconds: float
    busy: float
    """Share in which the GPU worked."""
    stalls: Mapping[str, float]
    """Shares in which it waited, by `waiting_on`."""
    mains: float = 1.0
    owners: float = 1.0
    """Of the mains."""
    workers: float = 0.0
    idlers: float = 0.0
    """Children of the main that are no workers: they hand nothing over."""
    active: float = 0.0
    """How many workers were at work on a batch: running, reading, waiting for an answer."""
    running: float = 0.0
    """How many of these ran, or waited for a CPU."""
    reading: float = 0.0
    """How many of them waited for files."""
    threads: float = 0.0
    """How many loading threads of the main were at work."""
    worker_cores: float = 0.0
    """CPU time of all workers per time."""
    worker_queue: float = 0.0
    """How many of them waited for a CPU (first threads)."""
    main_cores: float = 0.0
    """CPU time of all mains per time."""
    main_queue: float = 0.0
    """Share in which a main waited for a CPU."""
    main_disk: float = 0.0
    main_network: float = 0.0
    """Shares in which the main itself waited for files, and for answers."""
    main_writes: bool = False
    """Whether the main wrote more to storage than it read."""
    main_reads: bool = False
    """Whether the main read files, from storage or from the page cache."""
    spread: float | None = None
    """Variance of the logarithm of the time from batch to batch, measured with one worker."""
    worker_starts: float = 0.0
    """Per second."""
    throttled: float = 0.0
    """Share of the quota periods in which the CPU limit ran out."""
    limit_cores: float | None = None
    """CPU limit; None without one."""
    free_cores: float | None = None
    """Idle cores among those on which the job may run, without regard to its limit."""
    worker_bytes: float | None = None
    """Memory that one worker has for itself."""
    free_bytes: float | None = None
    data_bytes: float | None = None
    """Per second: what main and workers read from storage, or received if they wait for that."""
    handovers: float | None = None
    """Write calls of all workers per second: to hand over a batch takes at least one."""
    pinned: bool = False
    """Whether most workers wait for the few CPUs of the job to which they are pinned."""
    saturated: bool = False
    """Whether a disk or a network interface was busy all the time."""
    job_gpus: float = 1.0
    """How many GPUs of this machine its job has."""
    job_busy: float | None = None
    """Share in which these worked, on average."""
    slack: float | None = None
    """The least share of the time that another rank can spare; None without others, or unknown."""

    def waits(self, *names: str) -> float:
        """Share in which it waited for any of `names`, values of `waiting_on`."""
        return sum(self.stalls.get(name, 0.0) for name in names)

    @property
    def is_unseen(self) -> bool:
        """Whether it is not known why the GPU idled."""
        return self.idle > _IDLES and self.waits(stall.UNKNOWN) > self.idle / 2

    @property
    def idle(self) -> float:
        """Share in which the GPU did not work."""
        return 1 - self.busy

    @property
    def spare(self) -> float | None:
        """Share of the time without which its own rank could do the same work; None: unknown.

        Workers of a rank that waits for another one are not at work all the time, and what they
        wait for then holds nobody up. Whether that is so is unknown if the wait never shows.
        """
        peer = self.waits(stall.PEER)
        if self.workers < 1:
            return peer
        if peer < _IDLES:
            return None
        needed = max(self.active / self.workers, 1 - peer - self.waits(*WAITS_FOR_WORKERS))
        return max(1 - needed, peer)

    @property
    def pace(self) -> float:
        """Factor by which the other ranks of its job could be faster."""
        return math.inf if self.slack is None else 1 / max(1 - self.slack, 1e-9)

    @property
    def cores(self) -> float:
        """CPU time of the job per time."""
        return self.worker_cores + self.main_cores


_IDLES = 0.1
_LATEST = frozenset({"limit_cores", "spread", "worker_bytes", "free_bytes", "job_gpus"})
"""What is no mean over the stretch: the last one counts."""
_WORST = frozenset({"pinned", "saturated", "main_writes", "main_reads"})
_WHERE_KNOWN = frozenset({"free_cores", "data_bytes", "handovers", "job_busy", "slack"})
_APART = _LATEST | _WORST | _WHERE_KNOWN | {"seconds", "stalls"}
_MEANS = [item.name for item in fields(Observed) if item.name not in _APART]


def among(seen: Observed, others: Collection[Observed | None]) -> Observed:
    """`seen` of one GPU, beside what was seen of the other ranks of its job."""
    known = [other for other in others if other]
    seen = replace(seen, job_gpus=1 + len(others))
    if not known or len(known) < len(others):
        return seen
    busy = seen.busy + sum(other.busy for other in known)
    spares = [spare for other in known if (spare := other.spare) is not None]
    slack = min(spares) if len(spares) == len(known) else None
    return replace(seen, job_busy=busy / (1 + len(known)), slack=slack)


def merged(parts: Sequence[Observed]) -> Observed:
    """One observation from several that follow each other; at least one."""
    seconds = sum(part.seconds for part in parts)

    def over_time(values: Iterable[float]) -> float:
        pairs = zip(values, parts, strict=True)
        return sum(value * part.seconds for value, part in pairs) / seconds

    figures: dict[str, Any] = {n: over_time(getattr(part, n) for part in parts) for n in _MEANS}
    for name in _WORST:
        figures[name] = sum(getattr(part, name) for part in parts) > len(parts) / 2
    for name in _WHERE_KNOWN:
        known = [found for part in parts if (found := getattr(part, name)) is not None]
        figures[name] = sum(known) / len(known) if known else None
    names = dict.fromkeys(name for part in parts for name in part.stalls)
    stalls = {name: over_time(part.stalls.get(name, 0.0) for part in parts) for name in names}
    return replace(parts[-1], **figures, seconds=seconds, stalls=stalls)
