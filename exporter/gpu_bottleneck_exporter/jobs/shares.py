"""Divides the time of a shared GPU between its jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gpu_bottleneck_exporter.accounting.tick import TenantTime
from gpu_bottleneck_exporter.jobs.model import JobGpu, Use


def use_of(busy: float, stalls: Mapping[str, float], share: float) -> Use:
    """`busy` seconds and a share of `stalls`."""
    waits = {wait: share * amount for wait, amount in stalls.items() if share > 0}
    return Use(busy + sum(waits.values()), busy, waits)


class TickShares:
    """Divides the parts of one tick by its tenants; equally without these."""

    def __init__(self, tenants: Iterable[TenantTime], jobs: Mapping[int, JobGpu]) -> None:
        """`jobs` by pid."""
        self._busy: defaultdict[JobGpu | None, float] = defaultdict(float)
        """Seconds not yet attributed; None: of no known job."""
        self._stalls: list[tuple[set[JobGpu | None], Mapping[str, int]]] = []
        for tenant in tenants:
            for pid, busy_ns in tenant.busy_ns.items():
                self._busy[jobs.get(pid)] += busy_ns / 1e9
            self._stalls.append(({jobs.get(pid) for pid in tenant.busy_ns}, tenant.stalls))

    def divide(self, use: Use, gpus: Sequence[JobGpu]) -> Mapping[JobGpu, Use]:
        """`use` by job; the part with the fewest jobs must be divided first."""
        uses = {gpu: Use() for gpu in gpus}

        def give(part: Use, among: Sequence[JobGpu], *, estimated: bool) -> None:
            part.estimated_seconds = part.observed_seconds if estimated else 0.0
            for gpu in among:
                uses[gpu].add(part, 1 / len(among))

        left = sum(self._busy[gpu] for gpu in gpus) + self._busy[None]
        share = min(use.busy_seconds / left, 1.0) if left else 0.0
        rest = use.busy_seconds
        for gpu in gpus:
            taken = share * self._busy[gpu]
            self._busy[gpu] -= taken
            rest -= taken
            give(Use(taken, taken), [gpu], estimated=False)
        rest = max(rest, 0.0)
        self._busy[None] = max(self._busy[None] - rest, 0.0)
        give(Use(rest, rest), gpus, estimated=len(gpus) > 1)

        present = ([gpu for gpu in gpus if gpu in jobs] for jobs, _ in self._stalls)
        groups: list[tuple[float, Sequence[JobGpu], Mapping[str, float], bool]] = [
            (sum(stalls.values()), jobs, stalls, len(jobs) > 1)
            for jobs, (_, stalls) in zip(present, self._stalls, strict=True)
            if jobs and any(stalls.values())
        ]
        others = [gpu for gpu in gpus if all(gpu not in jobs for _, jobs, *_ in groups)]
        if others:
            mean = sum(weight for weight, *_ in groups) / len(groups) if groups else 1.0
            groups.append((mean * len(others), others, use.stall_seconds, len(gpus) > 1))
        whole = sum(weight for weight, *_ in groups)
        for weight, jobs, stalls, estimated in groups:
            idle = (use.observed_seconds - use.busy_seconds) * weight / whole
            waits = use_of(0.0, stalls, idle / (sum(stalls.values()) or 1.0))
            give(waits, jobs, estimated=estimated)
        return uses
