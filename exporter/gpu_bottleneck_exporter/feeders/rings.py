"""Classifies waits in io_uring rings and in kernel AIO: files, sockets, or nothing.

The kernel shows requests that wait for sockets, and counts file I/O when requested. Where both are
possible, the growing counter decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.feeders.tcp import TcpTracker
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.descriptors import descriptors
from gpu_bottleneck_exporter.host.files import MAX_CACHE_ENTRIES
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.rings import (
    RING,
    Ring,
    distance,
    read_rings,
    reads_files,
    uses_aio,
)
from gpu_bottleneck_exporter.schedule import CADENCE, RefreshSchedule

MAX_NAME_CHARACTERS = 64
"""Maximum length of a name in a sentence for users."""


class Target(Enum):
    """The descriptors of requests in flight, in order of precedence."""

    FILES = "files"
    SOCKETS = "sockets"
    """Sockets, pipes and other pollable files."""
    UNKNOWN = "unknown"
    NOTHING = "nothing"
    """No request, or only a timer."""

    __hash__ = object.__hash__


class Growth(NamedTuple):
    """Bytes that a process moved between two samples."""

    stored: int
    """Storage I/O, counted when requested."""
    received: int
    """TCP bytes."""

    def is_file_io(self, *, polls: bool) -> bool:
        """Whether they are file I/O; most of them, if a ring `polls` sockets."""
        return self.stored > (self.received if polls else 0)


class RingHistory:
    """The history of one ring."""

    def __init__(self) -> None:
        self._io_done_at: int | None = None
        """Completion count that ends the last file I/O; None without I/O since the first sample."""
        self._first_done_at: int | None = None
        """Completion count that ends the requests of the first sample."""
        self._completed = 0

    def target(
        self,
        now: Ring,
        growth: Growth | None,
        recent: Growth | None,
        *,
        files: bool,
        sockets: bool,
    ) -> Target:
        """Target of the requests in flight in ring `now`.

        `growth`, `recent`: since the last sample and over a second, None at the first. `files`,
        `sockets`: whether any are open.
        """
        polls, others = now.polls > 0, now.others
        moves = recent is not None and recent.is_file_io(polls=polls)
        if others is None:
            if moves:
                return Target.FILES
            return _target_by_open_files(polls=polls, files=files, sockets=sockets)
        end = now.completed + others
        if distance(self._completed, now.completed) < 0:  # another ring with the same number
            self._io_done_at = self._first_done_at = None
        self._completed = now.completed
        if self._first_done_at is None:
            self._first_done_at = end
        if others and growth and growth.is_file_io(polls=polls):
            self._io_done_at = end
        io_pending = self._io_done_at is not None and distance(now.completed, self._io_done_at) > 0
        if io_pending or (others and moves):
            return Target.FILES
        if others and not polls and distance(now.completed, self._first_done_at) > 0:
            return _target_by_open_files(polls=False, files=files, sockets=sockets)
        # Requests completed without file I/O are timers, or page-cache hits.
        return Target.SOCKETS if polls else Target.NOTHING


def _target_by_open_files(*, polls: bool, files: bool, sockets: bool) -> Target:
    if polls:
        return Target.SOCKETS
    if not files:
        return Target.NOTHING
    return Target.UNKNOWN if sockets else Target.FILES


class RingTracker:
    """Samples the rings and the kernel AIO of process `pid`. Not thread-safe."""

    def __init__(self, proc: Path, pid: int, tcp: TcpTracker | None) -> None:
        """`tcp`: None without permission to list descriptors."""
        self.descriptions: dict[Target, tuple[int, str]] = {}
        """Monotonic time and description of the last such wait."""
        self._proc, self._pid, self._tcp = proc, pid, tcp
        self._histories: dict[int, RingHistory] = {}
        self._reader: ProcessReader | None = None
        self._totals: deque[tuple[int, Growth]] = deque()
        """Recent totals of moved bytes, oldest first."""
        self._last = Target.UNKNOWN
        """Target of the rings last read."""
        self._retry_ns = 0
        self._checking_aio = RefreshSchedule(time.monotonic_ns())
        self._has_aio = False
        self.polls = 0
        """Poll requests of the rings last read."""

    def close(self) -> None:
        """Close all descriptors."""
        if self._reader:
            self._reader.close()
        self._reader = None

    def polled(self, numbers: Collection[int] | None) -> bool:
        """Whether a poll of `numbers` (None: any) may be for a ring or for AIO."""
        opened = self._tcp.sockets if self._tcp else None
        if opened is None or not (opened.rings or opened.events):
            return False
        return numbers is None or not (opened.rings | opened.events).isdisjoint(numbers)

    def ring(self, now_ns: int, numbers: Collection[int] | None) -> Target:
        """Target of a wait in one of the rings `numbers` (None: any)."""
        if now_ns < self._retry_ns:
            return Target.UNKNOWN
        open_rings = read_rings(
            self._proc, self._pid, self._all_rings() if numbers is None else numbers
        )
        if open_rings is None:  # reading them again is as expensive
            self._retry_ns = now_ns + CADENCE.probe_ns
        if not open_rings:
            return Target.UNKNOWN if open_rings is None else self._last
        opened = self._tcp.sockets if self._tcp else None
        files = any(ring.files for ring in open_rings)
        if not files and not any(ring.polls for ring in open_rings):
            files = opened is None or reads_files(self._proc, self._pid, sorted(opened.files))
        sockets = opened is None or opened.has_tcp
        targets = {self._target(now_ns, ring, files=files, sockets=sockets) for ring in open_rings}
        target = next(kind for kind in Target if kind in targets)
        self.descriptions[target] = now_ns, _describe(open_rings, target)
        self._last, self.polls = target, sum(ring.polls for ring in open_rings)
        return target

    def aio(self, now_ns: int) -> Target:
        """Target of a wait in io_getevents."""
        growth = self._growth(now_ns, JUDGED.io_lifetime_ns)
        if growth is None:
            return Target.UNKNOWN
        target = Target.FILES if growth.stored else Target.NOTHING
        self.descriptions[target] = now_ns, "reads or writes through kernel AIO (io_submit)"
        return target

    def poll(self, now_ns: int, numbers: Collection[int] | None) -> Target | None:
        """Target of a poll of `numbers` (None: any), maybe by eventfd; None without a ring."""
        if self._tcp is None:
            return None
        opened = self._tcp.sockets
        events = opened.events if numbers is None else opened.events.intersection(numbers)
        polled = opened.rings if numbers is None or events else opened.rings.intersection(numbers)
        target = self.ring(now_ns, sorted(polled)) if polled else None
        if target is Target.FILES or not events or not self._uses_aio(now_ns):
            return target
        growth = self._growth(now_ns, JUDGED.io_lifetime_ns)
        return self.aio(now_ns) if growth and growth.is_file_io(polls=True) else target

    def _all_rings(self) -> list[int]:
        if self._tcp and self._tcp.sockets.rings:
            return sorted(self._tcp.sockets.rings)
        return [number for number, link in descriptors(self._proc, self._pid) if link == RING]

    def _target(self, now_ns: int, ring: Ring, *, files: bool, sockets: bool) -> Target:
        if len(self._histories) >= MAX_CACHE_ENTRIES:
            self._histories.clear()
        history = self._histories.setdefault(ring.number, RingHistory())
        growth, recent = self._growth(now_ns, 0), self._growth(now_ns, JUDGED.io_lifetime_ns)
        return history.target(ring, growth, recent, files=files, sockets=sockets)

    def _uses_aio(self, now_ns: int) -> bool:
        if self._checking_aio.is_due(now_ns):
            self._has_aio = uses_aio(self._proc, self._pid)
        return self._has_aio

    def _growth(self, now_ns: int, over_ns: int) -> Growth | None:
        """Bytes moved since the last sample older than `over_ns`; None at the first."""
        totals = self._totals
        if not totals or totals[-1][0] < now_ns:
            self._add_totals(now_ns)
        before = [total for at_ns, total in totals if at_ns < now_ns - over_ns]
        before = before or [total for at_ns, total in totals if at_ns < now_ns][:1]
        if not before or totals[-1][0] < now_ns:
            return None
        pairs = zip(totals[-1][1], before[-1], strict=True)
        return Growth._make(max(now - then, 0) for now, then in pairs)

    def _add_totals(self, now_ns: int) -> None:
        totals = self._totals
        self._reader = self._reader or ProcessReader(self._proc, self._pid)
        io = self._reader.io()
        if totals and totals[-1][0] < now_ns - CADENCE.window_ns:
            totals.clear()  # the growth may be long past
        while len(totals) > 1 and totals[1][0] < now_ns - JUDGED.io_lifetime_ns:
            totals.popleft()
        if io is not None:
            received = self._tcp.received_bytes if self._tcp else 0
            stored = io.read_bytes + io.written_bytes
            totals.append((now_ns, Growth(stored, received)))


def _describe(open_rings: Collection[Ring], target: Target) -> str:
    numbers = ", ".join(f"{ring.number}" for ring in open_rings)
    action = {Target.FILES: "reads or writes through", Target.SOCKETS: "receives through"}
    text = f"{action.get(target, 'waits in')} io_uring (descriptor {numbers}"
    others = sum(ring.others or 0 for ring in open_rings)
    if target is Target.FILES and others:
        text += f", {others} in flight"
    names = [printable(name, MAX_NAME_CHARACTERS) for ring in open_rings for name in ring.files]
    return f"{text}, {names[0]})" if names and target is Target.FILES else f"{text})"
