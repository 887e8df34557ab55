"""Whose the time of one GPU is: pure arithmetic over its windows and the stays of its holders."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.jobs.model import Gpu, Timeline, Use
from gpu_bottleneck_exporter.schedule import LONG_NS

CLAIMED_NS = LONG_NS
"""So much time of nobody a job may claim that comes: its process was about to open the GPU."""
_GAP_NS = 60_000_000
"""Windows that are less far apart touch: the driver's clock is mapped onto ours with an error."""
_MOST_FREE = 512
"""Spans of nobody: more than `CLAIMED_NS` has at the shortest interval."""

Started = tuple[int, int]
"""A process: its pid, and its start in clock ticks since boot."""


class Span(NamedTuple):
    """A stretch of the GPU's time, in nanoseconds of the monotonic clock."""

    start_ns: int
    end_ns: int
    active_ns: float = 0
    stalls: Mapping[str, float] = {}
    """Idle nanoseconds by what the GPU waited on."""
    unobserved_ns: float = 0
    joules: float = 0.0


@dataclass(slots=True, eq=False)
class Stay:
    """A process on a GPU."""

    gpu: Gpu
    """What its job has of it."""
    process: Started
    start_ns: int
    end_ns: int | None = None
    """None while it is there."""


class GpuBook:
    """Charges the time of one GPU to the jobs whose processes were there."""

    def __init__(self, since_ns: int) -> None:
        """It is watched since monotonic `since_ns`."""
        self.since_ns = since_ns
        self.until_ns = since_ns
        """The end of the last window."""
        self.stays: list[Stay] = []
        """Those that have ended are kept as long as windows may come late."""
        self._energy: tuple[int, float] | None = None
        self._free: deque[Span] = deque(maxlen=_MOST_FREE)

    def begin(self, gpu: Gpu, process: Started, started_ns: int, at_ns: int) -> Stay:
        """Let a process, started at `started_ns`, hold the GPU; it was first seen at `at_ns`.

        What holds a GPU was about to open it since it started: until then, time that is nobody
        else's is its own, and so is the time since its job's last process left.
        """
        self._forget(at_ns)
        known, left = gpu.timeline, gpu.end_seconds
        # A job that is new to the GPU, or has a process there, begins with this one.
        left_ns = started_ns if known is None or left is None else round(left * 1e9)
        start_ns = min(started_ns, left_ns, at_ns)
        if at_ns > self.since_ns:  # those of the first look may all have been there before
            others = [one.end_ns or at_ns for one in self.stays if one.gpu is not gpu]
            watched = self.since_ns < at_ns - CLAIMED_NS
            start_ns = max([start_ns, *others, *([at_ns - CLAIMED_NS] if watched else [])])
        if start_ns < self.since_ns and (known is None or left is not None):
            seen_ns = start_ns if known is None else max(started_ns, left_ns)
            gpu.unobserved_seconds += max(self.since_ns - seen_ns, 0) / 1e9
        if known is None:
            gpu.start_seconds = start_ns / 1e9
            gpu.timeline = Timeline(gpu.start_seconds)
        gpu.start_seconds, gpu.end_seconds = min(gpu.start_seconds, start_ns / 1e9), None
        stay = Stay(gpu, process, start_ns)
        self.stays.append(stay)
        free, self._free = self._free, deque(maxlen=_MOST_FREE)
        for span in free:
            if span.end_ns > start_ns:
                self._place(span)
            else:  # before it came
                self._free.append(span)
        return stay

    def end(self, stay: Stay, at_ns: int) -> None:
        """Note that a process has left."""
        stay.end_ns = max(at_ns, stay.start_ns)
        ends = [one.end_ns for one in self.stays if one.gpu is stay.gpu]
        if None not in ends:
            stay.gpu.end_seconds = max(filter(None, ends)) / 1e9

    def open(self) -> list[Stay]:
        """The stays of processes that are there."""
        return [stay for stay in self.stays if stay.end_ns is None]

    def spend(self, windows: Sequence[Window], stalls: Mapping[str, int]) -> None:
        """Charge the windows of a tick, whose idle time was split into `stalls`."""
        start_ns, end_ns = windows[0].end_ns - windows[0].duration_ns, windows[-1].end_ns
        observed_ns, active_ns = sums(windows)
        spans = [Span(start_ns, end_ns, active_ns, stalls)]
        if end_ns - start_ns - observed_ns >= _GAP_NS or self._borders(spans[0]):
            idle_ns = max(observed_ns - active_ns, 1)
            spans = [
                Span(end - lasts, end, active, _part(stalls, (lasts - active) / idle_ns))
                for end, lasts, active in windows
            ]
        for span in spans:
            if (gap_ns := span.start_ns - self.until_ns) >= _GAP_NS:
                self._place(Span(self.until_ns, span.start_ns, unobserved_ns=gap_ns))
            self._place(span)
            self.until_ns = span.end_ns
        self._forget(end_ns)

    def power(self, at_ns: int, joules: float | None) -> None:
        """Charge what the counter `joules` has grown by, evenly over the time since then."""
        before, self._energy = self._energy, None if joules is None else (at_ns, joules)
        if before and joules is not None and joules >= before[1] and at_ns > before[0]:
            self._place(Span(before[0], at_ns, joules=joules - before[1]))

    def memory(self, at_ns: int, used_bytes: int | None, total_bytes: int | None) -> None:
        """Note the memory of the GPU, if one job has all of it."""
        gpus = self._present(at_ns, at_ns)
        for gpu in gpus:
            gpu.memory_total_bytes = total_bytes
            if len(gpus) == 1:
                gpu.need(used_bytes)

    def _present(self, start_ns: int, end_ns: int) -> list[Gpu]:
        """What those have who were there from `start_ns` to `end_ns`, each once."""
        return list(
            dict.fromkeys(
                stay.gpu
                for stay in self.stays
                if stay.start_ns <= start_ns and (stay.end_ns is None or stay.end_ns >= end_ns)
            )
        )

    def _borders(self, span: Span) -> list[int]:
        edges = {edge for stay in self.stays for edge in (stay.start_ns, stay.end_ns or 0)}
        return sorted(edge for edge in edges if span.start_ns < edge < span.end_ns)

    def _place(self, span: Span) -> None:
        """Charge `span` to those who were there, in proportion; time of nobody waits for a claim.

        Of a window in which the holders change, busy time is of who was there first: a process
        takes longer to open a GPU than a window lasts.
        """
        edges = [span.start_ns, *self._borders(span), span.end_ns]
        pieces = [(*edge, self._present(*edge)) for edge in pairwise(edges)]
        left, idle = span.active_ns, sum(span.stalls.values())
        for start, end, gpus in sorted(pieces, key=lambda piece: not piece[2]):
            share = (end - start) / (span.end_ns - span.start_ns)
            observed = share * (span.active_ns + idle)
            active = min(left, observed)
            left -= active
            stalls = _part(span.stalls, (observed - active) / (idle or 1))
            missing, joules = share * span.unobserved_ns, share * span.joules
            part = Span(start, end, active, stalls, missing, joules)
            for gpu in gpus:
                _charge(gpu, part, 1 / len(gpus))
            if not gpus:
                self._free.append(part)

    def _forget(self, now_ns: int) -> None:
        horizon = now_ns - CLAIMED_NS
        while self._free and self._free[0].end_ns < horizon:
            self._free.popleft()
        if any(stay.end_ns and stay.end_ns < horizon for stay in self.stays):
            self.stays = [one for one in self.stays if not one.end_ns or one.end_ns >= horizon]


def _part(stalls: Mapping[str, float], share: float) -> dict[str, float]:
    return {cause: share * ns for cause, ns in stalls.items()} if share > 0 else {}


def _charge(gpu: Gpu, span: Span, share: float) -> None:
    """Add a share of `span` to what a job did."""
    seconds = share / 1e9
    active, stalls = seconds * span.active_ns, _part(span.stalls, seconds)
    did = Use(active + sum(stalls.values()), active, stalls)
    gpu.unobserved_seconds += seconds * span.unobserved_ns
    if span.joules:
        gpu.energy_joules = (gpu.energy_joules or 0.0) + share * span.joules
    if did.observed_seconds and gpu.timeline:
        gpu.add(did)
        gpu.timeline.add(span.start_ns / 1e9, span.end_ns / 1e9, did)
        if share < 1:
            gpu.shared_seconds = (gpu.shared_seconds or 0.0) + did.observed_seconds
