"""Attributes a GPU's time to jobs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.tick import TenantTime
from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.jobs.model import JobGpu, Timeline, Use
from gpu_bottleneck_exporter.jobs.shares import TickShares, use_of
from gpu_bottleneck_exporter.schedule import CADENCE

BACKFILL_NS = CADENCE.cache_ttl_ns
"""Unallocated time before a job's first sample that is attributed to it."""
_MAX_FREE_SPANS = 512
"""Unallocated spans: more than `BACKFILL_NS` has at the shortest interval."""


class UseSpan(NamedTuple):
    """The use of a GPU between two Unix times."""

    start_ns: float
    end_ns: float
    use: Use
    joules: float = 0.0


@dataclass(slots=True, eq=False)
class Tenancy:
    """The time from the first to the last sample of a process on a GPU."""

    gpu: JobGpu
    pid: int
    start_ns: float
    end_ns: float = math.inf
    pidfd: int | None = None
    """Readable after the exit; closed at the end of the tenancy."""
    started_ticks: int | None = None
    """Identifies the process if its pid is reused."""


class GpuBook:
    """The tenancies of one GPU, for attributing its time to jobs. Not thread-safe."""

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.until_ns = since_ns
        """End of the last window."""
        self.tenancies: list[Tenancy] = []
        """Retained for `BACKFILL_NS` after their end: windows may arrive late."""
        self._energy: tuple[int, float] | None = None
        self._free: deque[UseSpan] = deque(maxlen=_MAX_FREE_SPANS)
        self._spent: dict[JobGpu, float] = {}
        """Observed seconds since the last reading of energy."""

    def begin(self, gpu: JobGpu, pid: int, started_ns: int, at_ns: int) -> Tenancy:
        """Begin the tenancy of a process that started at `started_ns`, first sampled at `at_ns`.

        Attributes unallocated time since its start, or its job's last tenancy.
        """
        self._evict(at_ns)
        left_ns = started_ns if gpu.end_seconds is None else gpu.end_seconds * 1e9
        start_ns = min(started_ns, left_ns, at_ns)
        if at_ns > self.since_ns:  # holders in the first sample may all be older
            others = [min(o.end_ns, at_ns) for o in self.tenancies if o.gpu is not gpu]
            watched = self.since_ns < at_ns - BACKFILL_NS
            start_ns = max([start_ns, *others, *([at_ns - BACKFILL_NS] if watched else [])])
        rounding_ns = 1_000_000  # stored times are rounded to milliseconds
        if gpu.end_seconds is not None and start_ns > left_ns + rounding_ns:
            gpu.pause_seconds = (gpu.pause_seconds or 0.0) + (start_ns - left_ns) / 1e9
        gpu.start_seconds, gpu.end_seconds = min(gpu.start_seconds, start_ns / 1e9), None
        gpu.timeline = gpu.timeline or Timeline(gpu.start_seconds)
        tenancy = Tenancy(gpu, pid, start_ns)
        self.tenancies.append(tenancy)
        free, self._free = self._free, deque(maxlen=_MAX_FREE_SPANS)
        for span in free:
            if span.end_ns > start_ns:
                self._place([span])
            else:
                self._free.append(span)
        self._spent.clear()
        return tenancy

    def end(self, tenancy: Tenancy, at_ns: int) -> None:
        """End `tenancy` at `at_ns`, unless it ended earlier."""
        tenancy.end_ns = min(tenancy.end_ns, max(tenancy.start_ns, at_ns))
        end_ns = max(other.end_ns for other in self.tenancies if other.gpu is tenancy.gpu)
        if end_ns < math.inf:
            tenancy.gpu.end_seconds = end_ns / 1e9

    def open(self) -> list[Tenancy]:
        """The tenancies that have not ended."""
        return [tenancy for tenancy in self.tenancies if tenancy.end_ns == math.inf]

    def add_windows(
        self,
        windows: Sequence[Window],
        stalls: Mapping[str, int],
        tenants: Sequence[TenantTime] = (),
    ) -> None:
        """Attribute the windows of a tick; `stalls`: idle nanoseconds by cause."""
        observed_ns, active_ns = sums(windows)
        first, end_ns = windows[0], windows[-1].end_ns
        start_ns = first.end_ns - first.duration_ns
        clock_error_ns = 60_000_000  # of mapping the driver's clock onto ours
        contiguous = end_ns - start_ns - observed_ns < clock_error_ns
        if contiguous and not self._borders(start_ns, end_ns):
            windows = [Window(end_ns, observed_ns, active_ns)]
        idle_ns = max(observed_ns - active_ns, 1)
        spans = []
        for window in windows:
            share = (window.duration_ns - window.active_ns) / idle_ns
            use = use_of(window.active_ns / 1e9, stalls, share / 1e9)
            spans.append(UseSpan(window.end_ns - window.duration_ns, window.end_ns, use))
        self._place(spans, tenants)
        self.until_ns = end_ns
        self._evict(end_ns)

    def shift(self, by_ns: int) -> None:
        """Shift all times by `by_ns`."""
        self.since_ns += by_ns
        self.until_ns += by_ns
        for tenancy in self.tenancies:
            tenancy.start_ns += by_ns
            tenancy.end_ns += by_ns
        if self._energy:
            self._energy = self._energy[0] + by_ns, self._energy[1]
        free = (s._replace(start_ns=s[0] + by_ns, end_ns=s[1] + by_ns) for s in self._free)
        self._free = deque(free, maxlen=_MAX_FREE_SPANS)

    def add_energy(self, at_ns: int, joules: float | None) -> None:
        """Attribute the growth of a counter evenly over the time since the last call.

        Jobs present together get parts in proportion to their observed time, if known.
        """
        before, self._energy = self._energy, None if joules is None else (at_ns, joules)
        if before and joules is not None and joules >= before[1] and at_ns > before[0]:
            self._place([UseSpan(before[0], at_ns, Use(), joules - before[1])])
        self._spent.clear()

    def record_memory(self, at_ns: int, used_bytes: int | None, total_bytes: int | None) -> None:
        """Record the GPU's memory; the used part only of a sole tenant."""
        gpus = self._present(at_ns, at_ns)
        for gpu in gpus:
            gpu.memory_total_bytes = total_bytes
            if len(gpus) == 1:
                gpu.record_memory(used_bytes)

    def _present(self, start_ns: float, end_ns: float) -> list[JobGpu]:
        covering = (t for t in self.tenancies if t.start_ns <= start_ns and end_ns <= t.end_ns)
        return list(dict.fromkeys(tenancy.gpu for tenancy in covering))

    def _borders(self, start_ns: float, end_ns: float) -> list[float]:
        edges = {edge for tenancy in self.tenancies for edge in (tenancy.start_ns, tenancy.end_ns)}
        return sorted(edge for edge in edges if start_ns < edge < end_ns)

    def _place(self, spans: Sequence[UseSpan], tenants: Sequence[TenantTime] = ()) -> None:
        """Attribute `spans` to the jobs present; retain unallocated parts."""
        start_ns, end_ns = spans[0].start_ns, spans[-1].end_ns
        shares = TickShares(
            tenants,
            {t.pid: t.gpu for t in self.tenancies if t.start_ns < end_ns and t.end_ns > start_ns},
        )
        parts = [part for span in spans for part in self._parts(span)]
        for part, gpus in sorted(parts, key=lambda item: len(item[1])):
            spent = {gpu: self._spent.get(gpu, 0.0) for gpu in gpus}
            whole = sum(spent.values())
            for gpu, use in shares.divide(part.use, gpus).items():
                share = spent[gpu] / whole if whole else 1 / len(gpus)
                _attribute(gpu, part._replace(use=use, joules=share * part.joules))
                self._spent[gpu] = spent[gpu] + use.observed_seconds
            if not gpus:
                self._free.append(part)

    def _parts(self, span: UseSpan) -> Iterator[tuple[UseSpan, list[JobGpu]]]:
        """The parts of `span` with the same jobs.

        Busy time goes to the earliest with a job: opening a GPU outlasts a window.
        """
        start, end, whole, *_ = span
        edges = [start, *self._borders(start, end), end]
        pieces = [(*edge, self._present(*edge)) for edge in pairwise(edges)]
        left, idle = whole.busy_seconds, sum(whole.stall_seconds.values()) or 1.0
        for start, end, gpus in sorted(pieces, key=lambda piece: not piece[2]):
            share = (end - start) / (span.end_ns - span.start_ns)
            busy = min(left, share * whole.observed_seconds)
            left -= busy
            use = use_of(busy, whole.stall_seconds, (share * whole.observed_seconds - busy) / idle)
            yield UseSpan(start, end, use, share * span.joules), gpus

    def _evict(self, now_ns: int) -> None:
        horizon = now_ns - BACKFILL_NS
        while self._free and self._free[0].end_ns < horizon:
            self._free.popleft()
        self.tenancies = [tenancy for tenancy in self.tenancies if tenancy.end_ns >= horizon]


def _attribute(gpu: JobGpu, span: UseSpan) -> None:
    gpu.add(span.use)
    if span.joules:
        gpu.energy_joules = (gpu.energy_joules or 0.0) + span.joules
    if gpu.timeline:
        gpu.timeline.add(span.start_ns / 1e9, span.end_ns / 1e9, span.use)
