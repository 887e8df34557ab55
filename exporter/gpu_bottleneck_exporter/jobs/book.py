"""Attributes a GPU's time to jobs: pure arithmetic over its windows and its holders' tenancies."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.jobs.model import Gpu, Timeline, Use
from gpu_bottleneck_exporter.schedule import LONG_NS

BACKFILL_NS = LONG_NS
"""Unallocated time before a job's first sample that is attributed to it: it was starting."""
_GAP_NS = 60_000_000
"""Windows that are less far apart touch: the driver's clock is mapped onto ours with an error."""
_ROUNDING_NS = 1_000_000
"""Rounding error of a stored time; a shorter pause is none."""
_MOST_FREE = 512
"""Spans of nobody: more than `BACKFILL_NS` has at the shortest interval."""


class Span(NamedTuple):
    """A stretch of the GPU's time, in Unix nanoseconds."""

    start_ns: float
    end_ns: float
    did: Use
    joules: float = 0.0


@dataclass(slots=True, eq=False)
class Tenancy:
    """The time from the first to the last sight of a process on a GPU."""

    gpu: Gpu
    """What its job has of it."""
    pid: int
    start_ns: float
    end_ns: float = math.inf
    pidfd: int | None = None
    """Readable once the process has ended; closed at the end of the tenancy."""
    started_ticks: int | None = None
    """When the process started: its pid may be another's by now."""


class GpuBook:
    """The tenancies of one GPU, whose time is charged to their jobs."""

    def __init__(self, since_ns: int) -> None:
        """It is watched since Unix time `since_ns`."""
        self.since_ns = since_ns
        self.until_ns = since_ns
        """The end of the last window."""
        self.tenancies: list[Tenancy] = []
        """Those that have ended are kept as long as windows may come late."""
        self._energy: tuple[int, float] | None = None
        self._free: deque[Span] = deque(maxlen=_MOST_FREE)

    def begin(self, gpu: Gpu, pid: int, started_ns: int, at_ns: int) -> Tenancy:
        """Let a process, started at `started_ns`, hold the GPU; it was first seen at `at_ns`.

        What holds a GPU was about to open it since it started: until then, time that is nobody
        else's is its own, and so is the time since its job's last process left.
        """
        self._forget(at_ns)
        left_ns = started_ns if gpu.end_seconds is None else gpu.end_seconds * 1e9
        start_ns = min(started_ns, left_ns, at_ns)
        if at_ns > self.since_ns:  # those of the first look may all have been there before
            others = [min(one.end_ns, at_ns) for one in self.tenancies if one.gpu is not gpu]
            watched = self.since_ns < at_ns - BACKFILL_NS
            start_ns = max([start_ns, *others, *([at_ns - BACKFILL_NS] if watched else [])])
        if gpu.end_seconds is not None and start_ns > left_ns + _ROUNDING_NS:
            gpu.pause_seconds = (gpu.pause_seconds or 0.0) + (start_ns - left_ns) / 1e9
        gpu.start_seconds, gpu.end_seconds = min(gpu.start_seconds, start_ns / 1e9), None
        gpu.timeline = gpu.timeline or Timeline(gpu.start_seconds)
        tenancy = Tenancy(gpu, pid, start_ns)
        self.tenancies.append(tenancy)
        free, self._free = self._free, deque(maxlen=_MOST_FREE)
        for span in free:
            if span.end_ns > start_ns:
                self._place(span)
            else:  # before it came
                self._free.append(span)
        return tenancy

    def end(self, tenancy: Tenancy, at_ns: int) -> None:
        """Note that a process has left, unless that is known."""
        tenancy.end_ns = min(tenancy.end_ns, max(tenancy.start_ns, at_ns))
        end_ns = max(one.end_ns for one in self.tenancies if one.gpu is tenancy.gpu)
        if end_ns < math.inf:
            tenancy.gpu.end_seconds = end_ns / 1e9

    def open(self) -> list[Tenancy]:
        """The tenancies of processes that are there."""
        return [tenancy for tenancy in self.tenancies if tenancy.end_ns == math.inf]

    def spend(self, windows: Sequence[Window], stalls: Mapping[str, int]) -> None:
        """Charge the windows of a tick, whose idle time was split into `stalls`."""
        observed_ns, active_ns = sums(windows)
        first, end_ns = windows[0], windows[-1].end_ns
        start_ns = first.end_ns - first.duration_ns
        if end_ns - start_ns - observed_ns < _GAP_NS and not self._borders(start_ns, end_ns):
            windows = [Window(end_ns, observed_ns, active_ns)]
        idle_ns = max(observed_ns - active_ns, 1)
        for window in windows:
            start_ns = window.end_ns - window.duration_ns
            share = (window.duration_ns - window.active_ns) / idle_ns
            use = _use(window.active_ns / 1e9, stalls, share / 1e9)
            self._place(Span(start_ns, window.end_ns, use))
        self.until_ns = end_ns
        self._forget(end_ns)

    def shift(self, by_ns: int) -> None:
        """Move all times by `by_ns`: the wall clock was set."""
        self.since_ns += by_ns
        self.until_ns += by_ns
        for tenancy in self.tenancies:
            tenancy.start_ns += by_ns
            tenancy.end_ns += by_ns
        if self._energy:
            self._energy = self._energy[0] + by_ns, self._energy[1]
        free = [one._replace(start_ns=one[0] + by_ns, end_ns=one[1] + by_ns) for one in self._free]
        self._free = deque(free, maxlen=_MOST_FREE)

    def power(self, at_ns: int, joules: float | None) -> None:
        """Charge what the counter `joules` has grown by, evenly over the time since then."""
        before, self._energy = self._energy, None if joules is None else (at_ns, joules)
        if before and joules is not None and joules >= before[1] and at_ns > before[0]:
            self._place(Span(before[0], at_ns, Use(), joules - before[1]))

    def memory(self, at_ns: int, used_bytes: int | None, total_bytes: int | None) -> None:
        """Note the memory of the GPU, if one job has all of it."""
        gpus = self._present(at_ns, at_ns)
        for gpu in gpus:
            gpu.memory_total_bytes = total_bytes
            if len(gpus) == 1:
                gpu.need(used_bytes)

    def _present(self, start_ns: float, end_ns: float) -> list[Gpu]:
        """What those have who were there from `start_ns` to `end_ns`, each once."""
        there = (one for one in self.tenancies if one.start_ns <= start_ns and end_ns <= one.end_ns)
        return list(dict.fromkeys(one.gpu for one in there))

    def _borders(self, start_ns: float, end_ns: float) -> list[float]:
        edges = {edge for tenancy in self.tenancies for edge in (tenancy.start_ns, tenancy.end_ns)}
        return sorted(edge for edge in edges if start_ns < edge < end_ns)

    def _place(self, span: Span) -> None:
        """Charge `span` to those who were there, in proportion; time of nobody waits for a claim.

        Of a window in which the holders change, busy time is of who was there first: a process
        takes longer to open a GPU than a window lasts.
        """
        start, end, did, *_ = span
        edges = [start, *self._borders(start, end), end]
        pieces = [(*edge, self._present(*edge)) for edge in pairwise(edges)]
        left, idle = did.busy_seconds, sum(did.stall_seconds.values()) or 1.0
        for start, end, gpus in sorted(pieces, key=lambda piece: not piece[2]):
            share = (end - start) / (span.end_ns - span.start_ns)
            busy = min(left, share * did.observed_seconds)
            left -= busy
            use = _use(busy, did.stall_seconds, (share * did.observed_seconds - busy) / idle)
            part = Span(start, end, use, share * span.joules)
            for gpu in gpus:
                _charge(gpu, part, 1 / len(gpus))
            if not gpus:
                self._free.append(part)

    def _forget(self, now_ns: int) -> None:
        horizon = now_ns - BACKFILL_NS
        while self._free and self._free[0].end_ns < horizon:
            self._free.popleft()
        self.tenancies = [tenancy for tenancy in self.tenancies if tenancy.end_ns >= horizon]


def _use(busy: float, stalls: Mapping[str, float], share: float) -> Use:
    """Busy seconds, and a share of `stalls`."""
    waits = {wait: share * amount for wait, amount in stalls.items() if share > 0}
    return Use(busy + sum(waits.values()), busy, waits)


def _charge(gpu: Gpu, span: Span, share: float) -> None:
    """Add a share of `span` to what a job did."""
    gpu.add(span.did, share)
    if span.joules:
        gpu.energy_joules = (gpu.energy_joules or 0.0) + share * span.joules
    if gpu.timeline:
        gpu.timeline.add(span.start_ns / 1e9, span.end_ns / 1e9, span.did, share)
