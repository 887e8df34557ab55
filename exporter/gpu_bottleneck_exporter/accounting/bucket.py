"""Samples and counters of one GPU's feeders, over a stretch of time and the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from typing import NamedTuple, TypeVar

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.accounting.thresholds import STALLS
from gpu_bottleneck_exporter.host.mounts import Place
from gpu_bottleneck_exporter.schedule import CADENCE

SECONDS_RETENTION_NS = 4 * CADENCE.window_ns
"""Retention of seconds: predictions cover several windows."""


class Role:
    """Roles of feeders; the first two are labels of metrics."""

    MAIN = "main"
    """A holder of the GPU."""
    WORKER = "worker"
    """A descendant of a main."""
    RELATED = "related"
    """A process that feeds a GPU without descending from a main."""
    THREAD = "thread"
    """A loading thread of a main."""


class Counters(NamedTuple):
    """Counters in ns, bytes and counts. None: no permission to read."""

    cpu_ns: int = 0
    """CPU time of all threads, exited ones included (/proc/PID/stat)."""
    system_ns: int = 0
    """The kernel's part of `cpu_ns`."""
    leader_cpu_ns: int = 0
    """CPU time of the first thread (schedstat)."""
    queue_ns: int = 0
    """Run-queue delay of the first thread (schedstat)."""
    major_faults: int = 0
    read_bytes: int | None = 0
    written_bytes: int | None = 0
    children_ns: int = 0
    """CPU time of children that ended and were waited for."""
    read_chars: int = 0
    """Bytes read in any way but from sockets; 0 without permission."""
    write_calls: int = 0
    """Write calls; 0 without permission."""
    write_chars: int = 0
    """Bytes written to files and pipes; 0 without permission."""
    launch_cpu_ns: int = 0
    """CPU time of a main's other launching threads; by deep probes only."""
    launch_queue_ns: int = 0
    """Run-queue delay of these threads."""
    poller_cpu_ns: int = 0
    """Part of `cpu_ns` and `system_ns` in io_uring's polling threads; by deep probes only."""
    disk_ns: int = 0
    """Block I/O delay of loading threads; 0 unless the kernel counts it."""
    missed_ns: int = 0
    """CPU time that samples of threads missed."""

    @property
    def own_cpu_ns(self) -> int:
        """CPU time without io_uring's pollers, read at other moments."""
        return max(self.cpu_ns - self.poller_cpu_ns, self.leader_cpu_ns)

    @property
    def own_system_ns(self) -> int:
        """The kernel's part of `own_cpu_ns`."""
        return max(self.system_ns - self.poller_cpu_ns, 0)

    @property
    def hides_reads(self) -> bool:
        """Whether much was read, none of it from storage by the kernel's accounting."""
        return self.read_bytes == 0 and self.read_chars >= STALLS.min_data_bytes

    @property
    def hides_writes(self) -> bool:
        """Whether much was written, almost none of it to storage by the kernel's accounting.

        The kernel accounts for writes as soon as the page cache has them.
        """
        written = self.written_bytes
        return (
            written is not None
            and max(written / STALLS.max_log_share, STALLS.min_data_bytes) <= self.write_chars
        )

    def accounted(self, piped: int, unaccounted: int) -> Counters:
        """The counters with hidden bytes as storage I/O, without bytes `piped` to the process.

        `unaccounted`: bytes written in the life of the process that the kernel did not account for.
        It accounts for a long write as the page cache fills, but counts it in `write_chars` at its
        end.
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
    """Counters of throttling and refaults of control groups."""

    throttled_ns: int = 0
    refault_bytes: int = 0
    """Bytes evicted from the page cache and read again."""
    periods: int = 0
    """CPU quota periods."""
    throttled_periods: int = 0
    """Periods in which the quota ran out."""


_UNUSED, _NOT_HELD = Counters(), CgroupCounters()
C = TypeVar("C", Counters, CgroupCounters)
K = TypeVar("K")
N = TypeVar("N", int, float)


def less(now: C, before: C) -> C:
    """The increase since `before`; never negative, and unknown if either is."""
    if None in now or None in before:
        pairs = zip(now, before, strict=True)
        grown = (None if a is None or b is None else max(a - b, 0) for a, b in pairs)
        return type(now)._make(grown)
    added = [*map(sub, now, before)]
    return type(now)._make(added if min(added) >= 0 else (max(number, 0) for number in added))


def plus(first: C, second: C) -> C:
    """Their sums; unknown counters add nothing."""
    if None in first or None in second:
        pairs = zip(first, second, strict=True)
        return type(first)._make((a or 0) + (b or 0) for a, b in pairs)
    # From a list: Python retains up to 2000 freed tuples made of an iterator.
    return type(first)._make([*map(add, first, second)])


def add_up(total: dict[K, N], counts: Mapping[K, int]) -> None:
    """Add `counts` to `total`."""
    # Not a Counter, ten times as slow: runs at each pass.
    for key, number in counts.items():
        total[key] = total.get(key, 0) + number


@dataclass(slots=True)
class Part:
    """Samples and counters of one role in a bucket."""

    by_activity: dict[Activity, int] = field(default_factory=dict)
    """Samples by activity."""
    present: int = 0
    """Number of processes, summed over the rounds; not all are sampled in each."""
    rounds: int = 0
    """Rounds of samples."""
    used: Counters = _UNUSED

    def note(self, activity: Activity) -> None:
        """Add one sample."""
        self.by_activity[activity] = self.by_activity.get(activity, 0) + 1

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(self.by_activity.values())

    @property
    def processes(self) -> float:
        """Mean number of its processes."""
        return self.present / self.rounds if self.rounds else 0.0

    def shares(self) -> dict[Activity, float]:
        """Shares of the samples by activity, 0-1, without exited processes."""
        living = self.samples - self.by_activity.get(Activity.GONE, 0)
        return {
            activity: number / living
            for activity, number in self.by_activity.items()
            if number and activity is not Activity.GONE
        }

    def mean(self, activity: Activity) -> float:
        """Mean number of its processes with that activity."""
        return self.shares().get(activity, 0.0) * self.processes

    def add(self, more: Part) -> None:
        """Add `more`."""
        add_up(self.by_activity, more.by_activity)
        self.present += more.present
        self.rounds += more.rounds
        if more.used is not _UNUSED:
            self.used = plus(self.used, more.used)


_EMPTY = Part()


@dataclass(slots=True)
class Bucket:
    """Samples and counters of one GPU's feeders until `at_ns` (monotonic); buckets add up."""

    at_ns: int = 0
    elapsed_ns: int = 0
    """Time that the counters cover."""
    parts: dict[str, Part] = field(default_factory=dict)
    """Parts by role, without empty ones."""
    held: CgroupCounters = _NOT_HELD
    runnable_ns: int = 0
    """Runnable time of the mains' first threads, counted by the kernel."""
    counted_ns: int = 0
    """Time over which it was counted, summed over these threads; 0 if unknown."""
    peer: float = 0.0
    """Share of the time, 0-1, in which another GPU of the job worked or waited by itself."""
    awaited_threads: int = 0
    """Active threads sampled while a main waited in a lock or a pipe."""
    locked: float = 0.0
    """Share of the last seconds, 0-1, in which the mains waited in a lock or a pipe."""
    awaited: float = 0.0
    """Share of these waits, 0-1, that active threads of the mains explain."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Samples of a sleeping main by the call it slept in, with nothing behind it."""
    places: dict[Place, int] = field(default_factory=dict)
    """Samples of processes that waited for a file, by file system."""
    tenants: dict[str, Bucket] = field(default_factory=dict)
    """Parts by tenant while the GPU is shared."""

    def of(self, role: str) -> Part:
        """The part of `role`, to be read only."""
        return self.parts.get(role, _EMPTY)

    @property
    def main_runnable(self) -> float | None:
        """Share of the time, 0-1, in which the mains' first threads were runnable.

        None if the kernel did not count it, or if other threads launch kernels.
        """
        if not self.counted_ns or self.of(Role.MAIN).used.launch_cpu_ns:
            return None
        return min(self.runnable_ns / self.counted_ns, 1.0)

    def add(self, more: Bucket) -> None:
        """Add `more`, which may be of any time; tenants are not added."""
        self.at_ns = max(self.at_ns, more.at_ns)
        self.elapsed_ns += more.elapsed_ns
        for role, part in more.parts.items():
            self.parts.setdefault(role, Part()).add(part)
        if more.held is not _NOT_HELD:
            self.held = plus(self.held, more.held)
        self.runnable_ns += more.runnable_ns
        self.counted_ns += more.counted_ns
        self.awaited_threads += more.awaited_threads
        if more.reasons:  # usually empty
            add_up(self.reasons, more.reasons)
        if more.places:
            add_up(self.places, more.places)


class History:
    """Recent buckets of one GPU: passes for 12 s, seconds for 16 s. Single writer, any reader."""

    def __init__(self) -> None:
        self.total = Bucket()
        self._passes: deque[Bucket] = deque()
        self._seconds: deque[Bucket] = deque()

    def add_pass(self, bucket: Bucket) -> None:
        """Add the samples of one pass."""
        self._passes.append(bucket)

    def passes_since(self, start_ns: int) -> Bucket:
        """Samples of passes after `start_ns`: a second, once its counters are added."""
        return _sum_by_tenant(_between(self._passes, start_ns))

    def add_second(self, bucket: Bucket) -> None:
        """Add a second, its passes included."""
        self._seconds.append(bucket)
        self.total.add(bucket)
        passes, seconds = self._passes, self._seconds
        for recent, retention_ns in (
            (passes, 3 * CADENCE.window_ns),
            (seconds, SECONDS_RETENTION_NS),
        ):
            while recent and recent[0].at_ns < bucket.at_ns - retention_ns:
                recent.popleft()

    def seconds(self, start_ns: int, end_ns: int) -> Bucket | None:
        """The seconds after `start_ns` up to `end_ns`, added up; None if there are none."""
        seconds = _between(self._seconds, start_ns, end_ns)
        return _sum(seconds) if seconds else None

    def explaining(self, start_ns: int, end_ns: int) -> Bucket | None:
        """The bucket that explains idle time from `start_ns` to `end_ns`; None without samples.

        Samples of mains are those of that time. All else is of the last `Cadence.window_ns`, or
        since the previous count if that is older.
        """
        # The last sample of a longer interval is still valid.
        passes = _between(self._passes, start_ns, end_ns)
        passes = passes or _between(self._passes, end_ns - STALLS.sample_ttl_ns, end_ns)[:1]
        if not passes:
            return None
        # So are counts, without which quotas and reads would be unknown.
        since_ns, tolerance_ns = end_ns - CADENCE.window_ns, STALLS.sample_ttl_ns
        seconds = _between(self._seconds, since_ns, end_ns + tolerance_ns)
        seconds = seconds or _between(self._seconds, since_ns - tolerance_ns, end_ns)[:1]
        counted_ns = seconds[0].at_ns if seconds else since_ns
        bucket = _sum_by_tenant([*seconds, *_between(self._passes, counted_ns, end_ns)])
        _focus(bucket, passes)
        for name, tenant in bucket.tenants.items():
            _focus(tenant, [each.tenants[name] for each in passes if name in each.tenants])
        return bucket


def _focus(bucket: Bucket, recent: Collection[Bucket]) -> None:
    """Replace the samples of mains by `recent` ones; retain the share of their waits in locks."""
    before = bucket.of(Role.MAIN)
    bucket.locked = before.shares().get(Activity.QUEUE, 0.0)
    waits = before.by_activity.get(Activity.QUEUE, 0)
    bucket.awaited = min(bucket.awaited_threads / waits, 1.0) if waits else 0.0
    main = Part(used=before.used)
    for each in recent:
        main.add(each.of(Role.MAIN))
    bucket.parts[Role.MAIN] = main
    bucket.runnable_ns = sum(each.runnable_ns for each in recent)
    bucket.counted_ns = sum(each.counted_ns for each in recent)


def _between(history: deque[Bucket], start_ns: int, end_ns: int | None = None) -> list[Bucket]:
    """The buckets after `start_ns` up to `end_ns`, the newest first."""
    buckets: list[Bucket] = []
    for bucket in reversed(list(history)):
        if bucket.at_ns <= start_ns:
            break
        if end_ns is None or bucket.at_ns <= end_ns:
            buckets.append(bucket)
    return buckets


def _sum(buckets: Iterable[Bucket]) -> Bucket:
    total = Bucket()
    for bucket in buckets:
        total.add(bucket)
    return total


def _sum_by_tenant(buckets: Sequence[Bucket]) -> Bucket:
    """The sum, with that of each tenant."""
    total = _sum(buckets)
    for bucket in buckets:
        for name, tenant in bucket.tenants.items():
            total.tenants.setdefault(name, Bucket()).add(tenant)
    return total
