"""What a thread waits for in an io_uring ring or in kernel AIO: files, sockets, or nothing.

The kernel shows which requests of a ring wait for sockets, and counts bytes of files as they are
requested. Where both may be, what grows decides.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from gpu_bottleneck_exporter.accounting.bucket import WINDOW_NS
from gpu_bottleneck_exporter.errors import printable
from gpu_bottleneck_exporter.feeders.tcp import TcpTracker
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
from gpu_bottleneck_exporter.schedule import SHORTLY_NS, RefreshSchedule

_RECENT_NS = 1_000_000_000
"""Time for which bytes that were moved explain a wait for requests: read-ahead is counted before
the requests that wait for it are submitted."""
_LONGEST = 64
"""Characters of a file's name that fit into a line for people."""


class Target(Enum):
    """The kind of descriptors that requests in flight are about."""

    # The first of several rings' is what is waited for.
    FILES = "files"
    SOCKETS = "sockets"
    """Or pipes: whatever can be polled."""
    UNKNOWN = "unknown"
    NOTHING = "nothing"
    """No request is in flight, or only a timer."""

    __hash__ = object.__hash__


class Growth(NamedTuple):
    """Bytes that a process moved in some time."""

    stored: int
    """From and to storage; counted when they are requested."""
    received: int
    """Over TCP."""

    def of_files(self, *, polls: bool) -> bool:
        """Whether they are of files; where a ring `polls` sockets, too, most of them."""
        return self.stored > (self.received if polls else 0)


class Course:
    """The course of one ring, from look to look."""

    def __init__(self) -> None:
        self._moves_until: int | None = None
        """Number of completed requests once all are done that were in flight when bytes of files
        were last moved; None if none were since the first look."""
        self._first_until: int | None = None
        """The same of the first look."""
        self._completed = 0

    def target(
        self,
        now: Ring,
        grown: Growth | None,
        recent: Growth | None,
        *,
        files: bool,
        sockets: bool,
    ) -> Target:
        """The target of what ring `now` has in flight.

        `grown`: since the last look, `recent`: lately; None at the first look. `files`, `sockets`:
        whether the process has any open.
        """
        polls, others = now.polls > 0, now.others
        moves = recent is not None and recent.of_files(polls=polls)
        if others is None:
            if moves:
                return Target.FILES
            return _target_by_open_files(polls=polls, files=files, sockets=sockets)
        end = now.completed + others
        if distance(self._completed, now.completed) < 0:  # another ring with the same number
            self._moves_until = self._first_until = None
        self._completed = now.completed
        if self._first_until is None:
            self._first_until = end
        if others and grown and grown.of_files(polls=polls):
            self._moves_until = end
        moving = self._moves_until is not None and distance(now.completed, self._moves_until) > 0
        if moving or (others and moves):
            return Target.FILES
        if others and not polls and distance(now.completed, self._first_until) > 0:
            return _target_by_open_files(polls=False, files=files, sockets=sockets)
        # What was completed since, without a byte that was moved, were timers or files in memory.
        return Target.SOCKETS if polls else Target.NOTHING


def _target_by_open_files(*, polls: bool, files: bool, sockets: bool) -> Target:
    if polls:
        return Target.SOCKETS
    if not files:
        return Target.NOTHING
    return Target.UNKNOWN if sockets else Target.FILES


class RingTracker:
    """The rings and the kernel AIO of process `pid`, looked at repeatedly. Not thread-safe."""

    def __init__(self, proc: Path, pid: int, tcp: TcpTracker | None) -> None:
        """`tcp`: knows what the process has open; None without the permission."""
        self.said: dict[Target, tuple[int, str]] = {}
        """By target, when it was last seen, and what to report of it."""
        self._proc, self._pid, self._tcp = proc, pid, tcp
        self._courses: dict[int, Course] = {}
        """By the ring's descriptor."""
        self._reader: ProcessReader | None = None
        self._totals: deque[tuple[int, Growth]] = deque()
        """What the process had moved at the last looks, the oldest first."""
        self._last = Target.UNKNOWN
        """Of the rings that were last read."""
        self._rests_until_ns = 0
        self._checking_aio = RefreshSchedule(time.monotonic_ns())
        self._has_aio = False
        self.polls = 0
        """Requests that polled, in the rings that were last read."""

    def close(self) -> None:
        """Close all descriptors."""
        if self._reader:
            self._reader.close()
        self._reader = None

    def polled(self, numbers: Collection[int] | None) -> bool:
        """Whether a poll of descriptors `numbers`, None: of any, may be for a ring or for AIO."""
        opened = self._tcp.sockets if self._tcp else None
        if opened is None or not (opened.rings or opened.events):
            return False
        return numbers is None or not (opened.rings | opened.events).isdisjoint(numbers)

    def ring(self, now_ns: int, numbers: Collection[int] | None) -> Target:
        """What a thread waits for in one of the rings `numbers`; None: of any."""
        if now_ns < self._rests_until_ns:
            return Target.UNKNOWN
        found = read_rings(self._proc, self._pid, self._all_rings() if numbers is None else numbers)
        if found is None:  # showing that again would cost the kernel as much
            self._rests_until_ns = now_ns + SHORTLY_NS
        if not found:
            return Target.UNKNOWN if found is None else self._last
        opened = self._tcp.sockets if self._tcp else None
        files = any(ring.files for ring in found)
        if not files and not any(ring.polls for ring in found):
            files = opened is None or reads_files(self._proc, self._pid, sorted(opened.files))
        sockets = opened is None or opened.has_tcp
        targets = {self._target(now_ns, ring, files=files, sockets=sockets) for ring in found}
        target = next(one for one in Target if one in targets)
        self.said[target] = now_ns, _text(found, target)
        self._last, self.polls = target, sum(ring.polls for ring in found)
        return target

    def aio(self, now_ns: int) -> Target:
        """What a thread waits for in io_getevents."""
        grown = self._grown(now_ns, _RECENT_NS)
        if grown is None:
            return Target.UNKNOWN
        target = Target.FILES if grown.stored else Target.NOTHING
        self.said[target] = now_ns, "reads or writes through kernel AIO (io_submit)"
        return target

    def poll(self, now_ns: int, numbers: Collection[int] | None) -> Target | None:
        """What a thread waits for in a poll of `numbers`, None: of any; None if of no ring.

        An eventfd may be that of a ring or of kernel AIO.
        """
        if self._tcp is None:
            return None
        opened = self._tcp.sockets
        events = opened.events if numbers is None else opened.events.intersection(numbers)
        polled = opened.rings if numbers is None or events else opened.rings.intersection(numbers)
        target = self.ring(now_ns, sorted(polled)) if polled else None
        if target is Target.FILES or not events or not self._uses_aio(now_ns):
            return target
        grown = self._grown(now_ns, _RECENT_NS)
        return self.aio(now_ns) if grown and grown.of_files(polls=True) else target

    def _all_rings(self) -> list[int]:
        if self._tcp and self._tcp.sockets.rings:
            return sorted(self._tcp.sockets.rings)
        return [number for number, link in descriptors(self._proc, self._pid) if link == RING]

    def _target(self, now_ns: int, ring: Ring, *, files: bool, sockets: bool) -> Target:
        if len(self._courses) >= MAX_CACHE_ENTRIES:
            self._courses.clear()
        course = self._courses.setdefault(ring.number, Course())
        grown, recent = self._grown(now_ns, 0), self._grown(now_ns, _RECENT_NS)
        return course.target(ring, grown, recent, files=files, sockets=sockets)

    def _uses_aio(self, now_ns: int) -> bool:
        if self._checking_aio.is_due(now_ns):
            self._has_aio = uses_aio(self._proc, self._pid)
        return self._has_aio

    def _grown(self, now_ns: int, over_ns: int) -> Growth | None:
        """What was moved since the last look that is older than `over_ns`; None at the first."""
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
        if totals and totals[-1][0] < now_ns - WINDOW_NS:
            totals.clear()  # what grew meanwhile may be long past
        while len(totals) > 1 and totals[1][0] < now_ns - _RECENT_NS:
            totals.popleft()
        if io is not None:
            received = self._tcp.received_bytes if self._tcp else 0
            stored = io.read_bytes + io.written_bytes
            totals.append((now_ns, Growth(stored, received)))


def _text(found: Collection[Ring], target: Target) -> str:
    numbers = ", ".join(f"{ring.number}" for ring in found)
    what = {Target.FILES: "reads or writes through", Target.SOCKETS: "receives through"}
    text = f"{what.get(target, 'waits in')} io_uring (descriptor {numbers}"
    others = sum(ring.others or 0 for ring in found)
    if target is Target.FILES and others:
        text += f", {others} in flight"
    names = [printable(name, _LONGEST) for ring in found for name in ring.files]
    return f"{text}, {names[0]})" if names and target is Target.FILES else f"{text})"
