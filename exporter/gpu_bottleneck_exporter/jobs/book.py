"""Whose the time of one GPU is: pure arithmetic over its windows and the stays of its holders."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpu_bottleneck_exporter.accounting.stall import apportion
from gpu_bottleneck_exporter.accounting.windows import Window, sums
from gpu_bottleneck_exporter.jobs.records import Span, Use, portion
from gpu_bottleneck_exporter.schedule import LONG_NS

CLAIMED_NS = LONG_NS
"""So much time of nobody a job may claim that comes: its process was about to open the GPU."""
_GAP_NS = 60_000_000
"""Windows that are less far apart touch: the driver's clock is mapped onto ours with an error."""
_MOST_FREE = 512
"""Spans of nobody: more than `CLAIMED_NS` has at the shortest interval."""

Started = tuple[int, int]
"""A process: its pid, and its start in clock ticks since boot."""


@dataclass(slots=True, eq=False)
class Stay:
    """A process on a GPU."""

    use: Use
    process: Started
    start_ns: int
    end_ns: int | None = None
    """None while it is there."""

    def end(self, at_ns: int) -> None:
        """Note that it has left."""
        self.end_ns = self.use.until_ns = max(at_ns, self.start_ns)
        self.use.held -= 1


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

    def begin(self, use: Use, process: Started, started_ns: int, at_ns: int) -> Stay:
        """Let a process, started at `started_ns`, hold the GPU; it was first seen at `at_ns`.

        What holds a GPU was about to open it since it started: until then, time that is nobody
        else's is its own, and so is the time since its job's last process left.
        """
        self._forget(at_ns)
        known = use.until_ns > use.start_ns
        start_ns = min(started_ns, use.until_ns) if known else started_ns
        if at_ns > self.since_ns:  # those of the first look may all have been there before
            others = [one.end_ns or at_ns for one in self.stays if one.use is not use]
            watched = self.since_ns < at_ns - CLAIMED_NS
            start_ns = max([start_ns, *others, *([at_ns - CLAIMED_NS] if watched else [])])
        stay = Stay(use, process, min(start_ns, at_ns))
        if stay.start_ns < self.since_ns:
            seen_ns = max(started_ns, use.until_ns) if known else stay.start_ns
            use.unobserved_ns += max(self.since_ns - seen_ns, 0)
        if not known:
            use.start_ns = use.timeline.start_ns = stay.start_ns
        use.held += 1
        use.until_ns = max(use.until_ns, at_ns)
        self.stays.append(stay)
        free, self._free = self._free, deque(maxlen=_MOST_FREE)
        for span in free:
            if span.end_ns > stay.start_ns:
                self._place(span)
            else:
                self._free.append(span)
        return stay

    def spend(self, windows: Sequence[Window], stalls: Mapping[str, int]) -> None:
        """Charge the windows of a tick, whose idle time was split into `stalls`."""
        start_ns, end_ns = windows[0].end_ns - windows[0].duration_ns, windows[-1].end_ns
        observed_ns, active_ns = sums(windows)
        whole = Span(start_ns, end_ns, active_ns, stalls)
        gap_ns = max(end_ns - start_ns - observed_ns, start_ns - self.until_ns)
        if gap_ns < _GAP_NS and not self._borders(whole):
            self._charge(whole, self._present(start_ns, end_ns))
        else:
            for end, duration, active in windows:
                start = end - duration
                if start - self.until_ns >= _GAP_NS:
                    gap = start - self.until_ns
                    self._place(Span(self.until_ns, start, unobserved_ns=gap))
                idle = duration - active
                self._place(Span(start, end, active, apportion(idle, stalls) if idle else {}))
                self.until_ns = end
        self.until_ns = end_ns
        for stay in self.stays:
            if stay.end_ns is None:
                stay.use.until_ns = max(stay.use.until_ns, end_ns)
        self._forget(end_ns)

    def power(self, at_ns: int, joules: float | None) -> None:
        """Charge what the counter `joules` has grown by, evenly over the time since then."""
        before, self._energy = self._energy, None if joules is None else (at_ns, joules)
        if before and joules is not None and joules >= before[1] and at_ns > before[0]:
            self._place(Span(before[0], at_ns, joules=joules - before[1]))

    def memory(self, at_ns: int, used_bytes: int | None, total_bytes: int | None) -> None:
        """Note the memory of the GPU, if one job has all of it."""
        uses = self._present(at_ns, at_ns)
        for use in uses:
            use.total_bytes = total_bytes
            if len(uses) == 1:
                use.need(used_bytes)

    def _present(self, start_ns: int, end_ns: int) -> list[Use]:
        """Those who were there from `start_ns` to `end_ns`, each once."""
        return list(
            dict.fromkeys(
                stay.use
                for stay in self.stays
                if stay.start_ns <= start_ns and (stay.end_ns is None or stay.end_ns >= end_ns)
            )
        )

    def _borders(self, span: Span) -> list[int]:
        start_ns, end_ns, found = span.start_ns, span.end_ns, set()
        for stay in self.stays:
            for edge in (stay.start_ns, stay.end_ns or 0):
                if start_ns < edge < end_ns:
                    found.add(edge)
        return sorted(found)

    def _place(self, span: Span) -> None:
        """Charge `span` to those who were there; time of nobody waits for who may claim it."""
        borders = self._borders(span)
        if not borders:
            self._charge(span, self._present(span.start_ns, span.end_ns))
            return
        pieces = list(pairwise([span.start_ns, *borders, span.end_ns]))
        present = [self._present(*piece) for piece in pieces]
        for part, uses in zip(_cut(span, pieces, present), present, strict=True):
            self._charge(part, uses)

    def _charge(self, part: Span, uses: Sequence[Use]) -> None:
        shares = [part] if len(uses) == 1 else part.shared(len(uses))
        for use, own in zip(uses, shares, strict=True):
            use.add(own, shared=len(uses) > 1)
        if not uses:
            self._free.append(part)

    def _forget(self, now_ns: int) -> None:
        horizon = now_ns - CLAIMED_NS
        while self._free and self._free[0].end_ns < horizon:
            self._free.popleft()
        if any(stay.end_ns and stay.end_ns < horizon for stay in self.stays):
            self.stays = [one for one in self.stays if not one.end_ns or one.end_ns >= horizon]


def _cut(
    span: Span, pieces: Sequence[tuple[int, int]], present: Sequence[Sequence[Use]]
) -> list[Span]:
    """`span` in pieces of constant holders: in proportion, but busy time is of who was there first.

    A process takes longer to open a GPU than a window lasts: work in the window is its
    predecessor's, as far as that was there.
    """
    length, observed = span.end_ns - span.start_ns, span.observed_ns
    shares = [(start - span.start_ns, end - span.start_ns, length) for start, end in pieces]
    left, active = span.active_ns, [0] * len(pieces)
    for at in sorted(range(len(pieces)), key=lambda at: not present[at]):
        active[at] = min(left, portion(observed, *shares[at]))
        left -= active[at]
    found = []
    for piece, share, busy in zip(pieces, shares, active, strict=True):
        idle = portion(observed, *share) - busy
        stalls = apportion(idle, span.stalls) if idle else {}
        part, joules = share[1] - share[0], span.joules / length
        missing = portion(span.unobserved_ns, *share)
        found.append(Span(*piece, busy, stalls, missing, joules * part))
    return found
