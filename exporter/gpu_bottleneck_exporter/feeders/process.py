"""A process that feeds a GPU: state, activity and counters."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF, Activity
from gpu_bottleneck_exporter.accounting.bucket import Counters, less
from gpu_bottleneck_exporter.accounting.stall import EWMA_WEIGHT, MAJORITY, MIN_OBSERVATIONS
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, ProbeContext, ProbeResult, shallow
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.feeders.thresholds import JUDGED
from gpu_bottleneck_exporter.host.files import KeptFile, parse_numbers
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import CADENCE, Every


class ClientRecord:
    """Tells servers from other listeners: requests are open while their GPU works.

    A training loop may serve metrics, and an actor its cluster.
    """

    __slots__ = ("_busy", "_open", "_samples", "_sampling")  # there may be thousands of processes

    def __init__(self) -> None:
        self._busy = self._open = 0.0
        self._samples = 0
        self._sampling = Every(CADENCE.gauge_ns)

    @property
    def by_itself(self) -> bool:
        """Whether the GPU works without clients."""
        # With requests half of the time, 8 samples show fewer than 2 once in 300 times.
        return self._busy >= 8 and self._open < self._busy / 4  # noqa: PLR2004

    @property
    def for_clients(self) -> bool:
        """Whether the GPU works for clients only."""
        return self._busy >= 1 and self._open >= MAJORITY * self._busy

    def is_due(self, now_ns: int) -> bool:
        """Whether a sample is due; schedules the next."""
        return self._sampling.is_due(
            now_ns, CADENCE.gauge_ns if self._samples < MIN_OBSERVATIONS else CADENCE.slow_ns
        )

    def note(self, *, clients: bool, busy: float, samples: int = 1) -> None:
        """Add samples: is a request open, and the GPU's `busy` share, 0-1."""
        if not busy and not self._busy:
            return
        self._samples += 1
        self._busy += samples * busy
        self._open += samples * clients
        if self._busy > 60:  # noqa: PLR2004 - halves the weight of older samples
            self._busy, self._open = self._busy / 2, self._open / 2


class StrangerRecord:
    """Averages of the activity of a helper outside the job."""

    def __init__(self) -> None:
        self._active = self._works = 0.0
        self._samples = 0

    def note(self, activity: Activity) -> None:
        """Add a sample."""
        self._samples += 1
        weight = max(EWMA_WEIGHT, 1 / self._samples)
        works = activity.active and activity is not Activity.NETWORK
        self._works += (works - self._works) * weight
        self._active += (activity.active - self._active) * weight

    def counts(self, idle: float) -> bool:
        """Whether it was active for most of the GPU's `idle` share, 0-1.

        A connection proves little: a database also serves others.
        """
        return self._samples >= MIN_OBSERVATIONS and self._active > MAJORITY * idle

    def works(self, idle: float) -> bool:
        """Whether it ran or read files for three quarters of that time, without the network."""
        return self.counts(idle) and self._works > 0.75 * idle


class FeederProcess:
    """A process that feeds a GPU. Not thread-safe."""

    def __init__(self, proc: Path, pid: int, timeouts: AnswerTimeouts | None = None) -> None:
        """`timeouts` of requests; None if descriptors cannot be duplicated."""
        self.pid = pid
        self.reader = ProcessReader(proc, pid)
        self.deep: DeepProbe | None = None
        """Probe of threads, connections and children, if needed."""
        self.works = ClientRecord()
        self.stranger: StrangerRecord | None = None
        """Activity of a stranger; None for others."""
        self.active = 0.0
        """Share of recent samples, 0-1, with work or a wait for data."""
        self.leader_rests = False
        """Whether a main's GPU worked in the last tick without its first thread."""
        self._proc = proc
        self._timeouts = timeouts
        self._children = KeptFile(f"{proc}/{pid}/task/{pid}/children")
        self._frozen = False
        self._frozen_due_ns = 0
        self._runnable: tuple[int, int] | None = None
        """Monotonic and runnable time of the first thread at the last reading."""
        self._last = Counters(read_bytes=None, written_bytes=None)
        self.may_hide_io = False
        """Whether its last I/O may not be accounted."""
        self._hides_io_until_ns = 0
        self.gone = False
        """Whether it had ended at the last reading."""
        self.count()

    def note(self, activity: Activity) -> None:
        """Add a sample."""
        self.active += EWMA_WEIGHT * (activity.active - self.active)
        if self.stranger:
            self.stranger.note(activity)

    def counts(self, idle: float) -> bool:
        """Whether it is no stranger, or an active one: see `StrangerRecord.counts`."""
        return self.stranger is None or self.stranger.counts(idle)

    def note_launches(self, used: Counters, elapsed_ns: int) -> None:
        """Update `leader_rests`, from CPU time `used` while the GPU worked."""
        self.leader_rests = used.leader_cpu_ns < JUDGED.min_launch_cores * elapsed_ns

    def join(self, *, kin: bool) -> None:
        """Make it kin, or a stranger, which retains its record."""
        self.stranger = None if kin else self.stranger or StrangerRecord()

    def hides_io(self, now_ns: int) -> bool:
        """Whether it recently waited for files without I/O accounting."""
        return now_ns < self._hides_io_until_ns

    def note_hidden_io(self, now_ns: int) -> None:
        """Record that it waits for such files."""
        self._hides_io_until_ns = now_ns + CADENCE.recent_ns

    @property
    def denied(self) -> bool:
        """Whether reading its I/O counters is not permitted."""
        return not self.gone and self._last.read_bytes is None

    @property
    def used_ns(self) -> int:
        """CPU time at the last reading, ended children included."""
        return self._last.cpu_ns + self._last.children_ns

    @property
    def unaccounted_bytes(self) -> int:
        """Bytes written without I/O accounting, such as to pipes."""
        return self._last.write_chars - (self._last.written_bytes or 0)

    def close(self) -> None:
        """Close all descriptors."""
        self.reader.close()
        self._children.close()
        self.close_deep()

    def probe(self, now_ns: int, around: ProbeContext | None = None) -> ProbeResult:
        """Its state at monotonic `now_ns`; with `around`, the cause of its sleep."""
        wait = self.reader.wait()
        if not around:
            return shallow(self.pid, wait)
        if around.holds and ACTIVITY_OF[wait].rests and self._is_frozen(now_ns):
            wait = Wait.FROZEN
        return self.deepen().probe(now_ns, wait, around)

    def _is_frozen(self, now_ns: int) -> bool:
        """A negative result may be 5 s old."""
        if self._frozen or now_ns >= self._frozen_due_ns:
            self._frozen_due_ns = now_ns + CADENCE.probe_ns
            self._frozen = self.reader.is_frozen
        return self._frozen

    def deepen(self) -> DeepProbe:
        """The deep probe, created on demand."""
        if self.deep is None:
            self.deep = DeepProbe(self._proc, self.pid, self._timeouts)
        return self.deep

    def close_deep(self) -> None:
        """Close the deep probe's descriptors."""
        if self.deep is not None:
            self.deep.close()
            self.deep = None
        self._runnable = None

    def runnable(self, now_ns: int) -> tuple[int, int] | None:
        """Runnable and elapsed nanoseconds of its first thread since the last call.

        None if unknown, or after a pause of deep probes.
        """
        counted, before = self.reader.leader_ns(), self._runnable
        self._runnable = (now_ns, sum(counted)) if counted else None
        if before is None or counted is None:
            return None
        return max(sum(counted) - before[1], 0), now_ns - before[0]

    def has_unknown_child(self, known: frozenset[int]) -> bool:
        """Whether its first thread has a child outside `known`."""
        return not known.issuperset(parse_numbers(self._children.read() or b"") or ())

    def children(self) -> list[int] | None:
        """The children; None if it has ended, or has several threads."""
        if self.gone or self.reader.last is None or self.reader.last.threads != 1:
            return None
        text = self._children.read()
        if text is None or not self._children.whole:
            return None
        return parse_numbers(text)

    def count(self) -> Counters | None:
        """Resources used since the last call; None if it has ended."""
        before, now = self._last, None if self.gone else self._read()
        if now is None:
            self.gone = True
            return None
        self._last = now
        used = less(now, before)
        self.may_hide_io = used.hides_reads or used.hides_writes
        return used

    def _read(self) -> Counters | None:
        stat, last = self.reader.stat(), self._last
        if stat is None:
            return None
        leader_ns, queue_ns = self.reader.leader_ns() or (last.leader_cpu_ns, last.queue_ns)
        io = self.reader.io()
        read, written = io[:2] if io else (None, None)
        if read is None and self.reader.stat() is None:
            # It ended meanwhile, which is no lack of permission.
            read, written = last.read_bytes, last.written_bytes
        return Counters(
            stat.user_ns + stat.system_ns,
            stat.system_ns,
            leader_ns,
            queue_ns,
            stat.major_faults,
            read,
            written,
            stat.children_ns,
            io.read_chars if io else last.read_chars,
            io.write_calls if io else last.write_calls,
            io.write_chars if io else last.write_chars,
        )
