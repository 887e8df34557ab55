"""What the feeders of one GPU did in a stretch of time, and in its last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import add, sub
from typing import NamedTuple, TypeVar

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.host.mounts import Place

WINDOW_NS = 4_000_000_000
"""Workers are sampled in turn, and counters read once a second: what takes most of the helpers'
time shows over seconds, not in one tick."""
_HOLDS_NS = 1_500_000_000
"""What was seen of a feeder holds until the next look, but not for longer; for ratios, counters
that were read so long after a window, or before it, are near enough."""
_PASSES_KEPT_NS = 3 * WINDOW_NS
"""A GPU is read every few seconds at least, and its driver's ring holds 10 s."""
SECONDS_KEPT_NS = 4 * WINDOW_NS
"""Predictions look back over several windows."""


class Role:
    """The role of a process or thread that feeds a GPU; the first two are labels of metrics."""

    MAIN = "main"
    """A holder of the GPU."""
    WORKER = "worker"
    """A descendant of a main."""
    RELATED = "related"
    """Feeds a GPU without descending from a main."""
    THREAD = "thread"
    """A loading thread of a main."""


_MUCH_BYTES = 2**18
"""In a second or two: more than logs and settings."""
_LOGS = 0.05
"""Share of what is written that may go to other files."""


class Counters(NamedTuple):
    """Counters of one or many processes, in ns, bytes and counts. None: no permission to read."""

    cpu_ns: int = 0
    """All threads, dead ones included (/proc/PID/stat)."""
    system_ns: int = 0
    """The kernel's part of `cpu_ns`."""
    leader_cpu_ns: int = 0
    """The first thread's part (schedstat)."""
    queue_ns: int = 0
    """The first thread, runnable without a CPU (schedstat)."""
    major_faults: int = 0
    read_bytes: int | None = 0
    written_bytes: int | None = 0
    children_ns: int = 0
    """CPU time of children that ended and were waited for."""
    read_chars: int = 0
    """Bytes read in any way but from sockets. 0 without the permission to read them."""
    write_calls: int = 0
    """0 without the permission to read them."""
    write_chars: int = 0
    """Bytes written to files and pipes. 0 without the permission to read them."""
    launch_cpu_ns: int = 0
    """Of a main, other threads that launch kernels; only deep probes count them."""
    launch_queue_ns: int = 0
    poller_cpu_ns: int = 0
    """The part of `cpu_ns` and `system_ns` in which the kernel polled io_uring rings (SQPOLL), busy
    or not; only deep probes count it."""
    disk_ns: int = 0
    """Of loading threads, delay by block I/O; 0 unless the kernel counts it."""

    @property
    def own_cpu_ns(self) -> int:
        """CPU time without that of the kernel's pollers, which are read at other moments."""
        return max(self.cpu_ns - self.poller_cpu_ns, self.leader_cpu_ns)

    @property
    def own_system_ns(self) -> int:
        """The kernel's part of `own_cpu_ns`."""
        return max(self.system_ns - self.poller_cpu_ns, 0)

    @property
    def hides_reads(self) -> bool:
        """Whether much was read, and nothing from storage as far as the kernel accounts for it."""
        return self.read_bytes == 0 and self.read_chars >= _MUCH_BYTES

    @property
    def hides_writes(self) -> bool:
        """Whether much was written, and hardly anything to storage.

        Where the kernel accounts for writes, it does so as soon as the page cache has them.
        """
        written = self.written_bytes
        return written is not None and max(written / _LOGS, _MUCH_BYTES) <= self.write_chars

    def accounted(self, piped: int, unaccounted: int) -> Counters:
        """The same with what is hidden as data of storage, but for bytes `piped` to the process.

        `unaccounted`: bytes that the process wrote in its life and the kernel did not account for.
        A long write is accounted for as the page cache fills, and in `write_chars` at its end.
        """
        read, written = self.read_bytes, self.written_bytes
        hidden = min(self.write_chars, max(unaccounted, 0))
        return self._replace(
            read_bytes=max(self.read_chars - piped, 0) if self.hides_reads else read,
            written_bytes=max(hidden, written or 0) if self.hides_writes else written,
        )

    @property
    def io_bytes(self) -> int:
        """Bytes of file data moved."""
        return (self.read_bytes or 0) + (self.written_bytes or 0)


class CgroupCounters(NamedTuple):
    """Counters of how control groups held their tasks back."""

    throttled_ns: int = 0
    refault_bytes: int = 0
    """Evicted from the page cache and read again."""
    periods: int = 0
    """CPU quota periods."""
    throttled_periods: int = 0
    """Those in which the quota ran out."""


_UNUSED, _NOT_HELD = Counters(), CgroupCounters()
C = TypeVar("C", Counters, CgroupCounters)
K = TypeVar("K")
N = TypeVar("N", int, float)


def less(now: C, before: C) -> C:
    """What was added since `before`; never negative, and unknown if either is."""
    if None in now or None in before:
        pairs = zip(now, before, strict=True)
        grown = (None if a is None or b is None else max(a - b, 0) for a, b in pairs)
        return type(now)._make(grown)
    added = [*map(sub, now, before)]
    return type(now)._make(added if min(added) >= 0 else (max(one, 0) for one in added))


def plus(one: C, more: C) -> C:
    """Their sums; what is unknown adds nothing."""
    if None in one or None in more:
        return type(one)._make((a or 0) + (b or 0) for a, b in zip(one, more, strict=True))
    # From a list: Python keeps up to 2000 tuples that it made of an iterator, once they are free.
    return type(one)._make([*map(add, one, more)])


def add_up(total: dict[K, N], counts: Mapping[K, int]) -> None:
    """Add `counts` to `total`."""
    # Not a Counter, which is ten times as slow: this runs at each pass for every GPU.
    for key, number in counts.items():
        total[key] = total.get(key, 0) + number


@dataclass(slots=True)
class Part:
    """The part of one role in a bucket."""

    seen: dict[Activity, int] = field(default_factory=dict)
    """Samples by activity."""
    present: int = 0
    """How many processes there were, summed over the looks; not all are sampled at each."""
    looks: int = 0
    used: Counters = _UNUSED

    def note(self, activity: Activity) -> None:
        """Note one sample."""
        self.seen[activity] = self.seen.get(activity, 0) + 1

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(self.seen.values())

    @property
    def processes(self) -> float:
        """Mean number of its processes."""
        return self.present / self.looks if self.looks else 0.0

    def shares(self) -> dict[Activity, float]:
        """Shares of the samples by activity, 0-1, without those of who was gone."""
        living = self.samples - self.seen.get(Activity.GONE, 0)
        return {
            one: number / living
            for one, number in self.seen.items()
            if number and one is not Activity.GONE
        }

    def mean(self, activity: Activity) -> float:
        """Mean number of its processes that did that."""
        return self.shares().get(activity, 0.0) * self.processes

    def add(self, more: Part) -> None:
        """Add what `more` has."""
        add_up(self.seen, more.seen)
        self.present += more.present
        self.looks += more.looks
        if more.used is not _UNUSED:
            self.used = plus(self.used, more.used)


_NOBODY = Part()


@dataclass(slots=True)
class Bucket:
    """What the feeders of one GPU did until `at_ns` (monotonic); buckets add up."""

    at_ns: int = 0
    elapsed_ns: int = 0
    """Time that the counters cover."""
    parts: dict[str, Part] = field(default_factory=dict)
    """By role, without those of which nothing was seen."""
    held: CgroupCounters = _NOT_HELD
    runnable_ns: int = 0
    """How long first threads of mains were runnable, as the kernel counted it."""
    counted_ns: int = 0
    """Out of how much time, summed over these threads; 0 where it is not known."""
    peer: float = 0.0
    """Share of the time, 0-1, in which another GPU of the job worked or waited by itself."""
    awaited_threads: int = 0
    """Active threads that were seen while a main waited in a lock or a pipe."""
    locked: float = 0.0
    """Share of the last seconds, 0-1, in which the mains waited in a lock or a pipe."""
    awaited: float = 0.0
    """The part of these waits, 0-1, that active threads of the mains explain."""
    reasons: dict[str, int] = field(default_factory=dict)
    """How often a main was asleep in what, with nothing behind it."""
    places: dict[Place, int] = field(default_factory=dict)
    """How often somebody was seen to wait for a file, by where it is."""

    def of(self, role: str) -> Part:
        """The part of `role`, to be read only."""
        return self.parts.get(role, _NOBODY)

    @property
    def main_runnable(self) -> float | None:
        """Share of the time, 0-1, in which first threads of mains were runnable.

        None if the kernel did not count it, or if other threads launch kernels, too.
        """
        if not self.counted_ns or self.of(Role.MAIN).used.launch_cpu_ns:
            return None
        return min(self.runnable_ns / self.counted_ns, 1.0)

    def add(self, more: Bucket) -> None:
        """Add `more`, which may be of any time."""
        self.at_ns = max(self.at_ns, more.at_ns)
        self.elapsed_ns += more.elapsed_ns
        for role, part in more.parts.items():
            self.parts.setdefault(role, Part()).add(part)
        if more.held is not _NOT_HELD:
            self.held = plus(self.held, more.held)
        self.runnable_ns += more.runnable_ns
        self.counted_ns += more.counted_ns
        self.awaited_threads += more.awaited_threads
        add_up(self.reasons, more.reasons)
        add_up(self.places, more.places)


class History:
    """One thread adds; any thread may ask."""

    def __init__(self) -> None:
        self.total = Bucket()
        self._passes: deque[Bucket] = deque()
        self._seconds: deque[Bucket] = deque()

    def add_pass(self, one: Bucket) -> None:
        """Add what one pass saw."""
        self._passes.append(one)

    def passes_since(self, start_ns: int) -> Bucket:
        """What passes after `start_ns` saw: a second, once its counters are added."""
        return _sum(_between(self._passes, start_ns))

    def add_second(self, one: Bucket) -> None:
        """Add a second, its passes included."""
        self._seconds.append(one)
        self.total.add(one)
        for known, kept_ns in ((self._passes, _PASSES_KEPT_NS), (self._seconds, SECONDS_KEPT_NS)):
            while known and known[0].at_ns < one.at_ns - kept_ns:
                known.popleft()

    def seconds(self, start_ns: int, end_ns: int) -> Bucket | None:
        """The seconds after `start_ns` up to `end_ns`, added up; None if there are none."""
        found = _between(self._seconds, start_ns, end_ns)
        return _sum(found) if found else None

    def explaining(self, start_ns: int, end_ns: int) -> Bucket | None:
        """What explains idle time from `start_ns` to `end_ns`; None if nobody was looked at then.

        Mains: what they did in that time, as they are sampled at each pass. All else: over the
        last `WINDOW_NS`, or since the count before, if none falls into that.
        """
        # Looks may be further apart than ticks are long: then the last one holds on.
        passes = _between(self._passes, start_ns, end_ns)
        passes = passes or _between(self._passes, end_ns - _HOLDS_NS, end_ns)[:1]
        if not passes:
            return None
        # So may counts be: without one, nothing would be known of quotas and reads.
        seconds = _between(self._seconds, end_ns - WINDOW_NS, end_ns + _HOLDS_NS)
        seconds = seconds or _between(self._seconds, end_ns - WINDOW_NS - _HOLDS_NS, end_ns)[:1]
        counted_ns = seconds[0].at_ns if seconds else end_ns - WINDOW_NS
        found = _sum([*seconds, *_between(self._passes, counted_ns, end_ns)])
        before = found.of(Role.MAIN)
        found.locked = before.shares().get(Activity.QUEUE, 0.0)
        waits = before.seen.get(Activity.QUEUE, 0)
        found.awaited = min(found.awaited_threads / waits, 1.0) if waits else 0.0
        main = Part(used=before.used)
        for one in passes:
            main.add(one.of(Role.MAIN))
        found.parts[Role.MAIN] = main
        found.runnable_ns = sum(one.runnable_ns for one in passes)
        found.counted_ns = sum(one.counted_ns for one in passes)
        return found


def _between(history: deque[Bucket], start_ns: int, end_ns: int | None = None) -> list[Bucket]:
    """The buckets after `start_ns` up to `end_ns`, the newest first: mostly few out of many."""
    found: list[Bucket] = []
    for bucket in reversed(list(history)):
        if bucket.at_ns <= start_ns:
            break
        if end_ns is None or bucket.at_ns <= end_ns:
            found.append(bucket)
    return found


def _sum(buckets: Iterable[Bucket]) -> Bucket:
    total = Bucket()
    for bucket in buckets:
        total.add(bucket)
    return total
