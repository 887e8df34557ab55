"""One process that feeds a GPU: what it does now, what it mostly does, and what it used."""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.accounting.activity import ACTIVITY_OF, Activity
from gpu_bottleneck_exporter.accounting.bucket import Counters, less
from gpu_bottleneck_exporter.accounting.stall import EWMA_WEIGHT, MAJORITY, MIN_OBSERVATIONS
from gpu_bottleneck_exporter.feeders.probe import DeepProbe, ProbeContext, ProbeResult, shallow
from gpu_bottleneck_exporter.feeders.tcp import AnswerTimeouts
from gpu_bottleneck_exporter.host.files import KeptFile, parse_numbers
from gpu_bottleneck_exporter.host.process import ProcessReader
from gpu_bottleneck_exporter.host.waits import Wait
from gpu_bottleneck_exporter.schedule import LATELY_NS, OFTEN_NS, SHORTLY_NS, STEADY_NS, Every

_NEARLY_ALWAYS = 0.75
"""Share of the time, or of that in which the GPU idles."""
_EXPECTED = 8.0
"""Samples in which a GPU works: by chance, fewer than two have an open request once in 300."""
_ALONE = 0.25
"""Open requests per sample in which the GPU works, below which it works by itself."""
_REMEMBERED = 60.0
"""Samples in which a GPU works above which older ones are halved."""


class Works:
    """Whether the GPU of a main works for clients: while their requests are open, or without.

    A training loop may open a port for its metrics, and an actor one for its cluster. A server's
    GPU works while a request is open, so requests are open for at least as long as it works.
    """

    __slots__ = ("_asking", "_busy", "_open", "_samples")  # there may be thousands of processes

    def __init__(self) -> None:
        self._busy = self._open = 0.0
        self._samples = 0
        self._asking = Every(STEADY_NS)

    @property
    def by_itself(self) -> bool:
        """Whether its GPU works without clients."""
        return self._busy >= _EXPECTED and self._open < _ALONE * self._busy

    @property
    def for_clients(self) -> bool:
        """Whether it works for clients only, as far as was seen."""
        return self._busy >= 1 and self._open >= MAJORITY * self._busy

    def is_due(self, now_ns: int) -> bool:
        """Whether to look again; if so, it is due again later."""
        return self._asking.is_due(
            now_ns, STEADY_NS if self._samples < MIN_OBSERVATIONS else OFTEN_NS
        )

    def note(self, *, clients: bool, busy: float, looks: int = 1) -> None:
        """Note whether a client's request was open, and the GPU's `busy` share, of some looks."""
        if not busy and not self._busy:
            return
        self._samples += 1
        self._busy += looks * busy
        self._open += looks * clients
        if self._busy > _REMEMBERED:
            self._busy, self._open = self._busy / 2, self._open / 2


class StrangerRecord:
    """The part of its looks in which a stranger was active."""

    def __init__(self) -> None:
        self._active = self._works = 0.0
        self._looks = 0

    def note(self, activity: Activity) -> None:
        """Take in the next look."""
        self._looks += 1
        weight = max(EWMA_WEIGHT, 1 / self._looks)
        works = activity.active and activity is not Activity.NETWORK
        self._works += (works - self._works) * weight
        self._active += (activity.active - self._active) * weight

    def counts(self, idle: float) -> bool:
        """Whether it was active for most of the time that the GPU is idle, a share of `idle`.

        As a database or a proxy serves everybody, being connected says little.
        """
        return self._looks >= MIN_OBSERVATIONS and self._active > MAJORITY * idle

    def works(self, idle: float) -> bool:
        """Whether it ran or read files for nearly all of that time.

        Then its answers are late for that, and not for the network.
        """
        return self.counts(idle) and self._works > _NEARLY_ALWAYS * idle


_HARDLY_MOVED = 0.0005
"""Of a core: a first thread that drives a GPU uses more."""


class Process:
    """A process since it was discovered."""

    def __init__(self, proc: Path, pid: int, timeouts: AnswerTimeouts | None = None) -> None:
        """`timeouts`: of its job; None: its descriptors cannot be duplicated."""
        self.pid = pid
        self.reader = ProcessReader(proc, pid)
        self.deep: DeepProbe | None = None
        """Looks behind the first thread; None until that is needed."""
        self.works = Works()
        """Of a main: whether its GPU works for clients."""
        self.stranger: StrangerRecord | None = None
        """Of a related process that is no kin."""
        self.active = 0.0
        """Share of the last looks, 0-1, in which it ran or waited for data."""
        self.leader_rests = False
        """Of a main: whether its GPU worked in the last tick without its first thread."""
        self._proc = proc
        self._timeouts = timeouts
        self._children = KeptFile(f"{proc}/{pid}/task/{pid}/children")
        self._frozen = False
        self._frozen_due_ns = 0
        """When to look again whether its control group was frozen."""
        self._runnable: tuple[int, int] | None = None
        """Of the first thread: when it was last asked for, and how long it had been by then."""
        self._last = Counters(read_bytes=None, written_bytes=None)
        """As last read."""
        self.may_hide_io = False
        """Whether the kernel may not have accounted for what it last read or wrote."""
        self._hides_io_until_ns = 0
        self.gone = False
        """Whether the process had ended when its counters were last read."""
        self.count()

    def note(self, activity: Activity) -> None:
        """Note what it was seen to do."""
        self.active += EWMA_WEIGHT * (activity.active - self.active)
        if self.stranger:
            self.stranger.note(activity)

    def counts(self, idle: float) -> bool:
        """Whether a related process is kin, or a stranger that does enough.

        The GPU is idle for a share of `idle` of the time.
        """
        return self.stranger is None or self.stranger.counts(idle)

    def note_launches(self, did: Counters, elapsed_ns: int) -> None:
        """Note what it used in a tick of `elapsed_ns` in which its GPU worked."""
        self.leader_rests = did.leader_cpu_ns < _HARDLY_MOVED * elapsed_ns

    def join(self, *, kin: bool) -> None:
        """Make it kin, or a stranger; one that is a stranger already keeps its record."""
        self.stranger = None if kin else self.stranger or StrangerRecord()

    def hides_io(self, now_ns: int) -> bool:
        """Whether it lately waited for files of which the kernel does not account for the I/O."""
        return now_ns < self._hides_io_until_ns

    def note_hidden_io(self, now_ns: int) -> None:
        """Note that it waits for such files."""
        self._hides_io_until_ns = now_ns + LATELY_NS

    @property
    def denied(self) -> bool:
        """Whether we lack the permission to read its I/O counters."""
        return not self.gone and self._last.read_bytes is None

    @property
    def used_ns(self) -> int:
        """CPU time it had used when its counters were last read, ended children's included."""
        return self._last.cpu_ns + self._last.children_ns

    @property
    def unaccounted_bytes(self) -> int:
        """What it wrote in its life, and the kernel did not account for: to pipes, say."""
        return self._last.write_chars - (self._last.written_bytes or 0)

    def close(self) -> None:
        """Close the descriptors."""
        self.reader.close()
        self._children.close()
        self.close_deep()

    def probe(self, now_ns: int, around: ProbeContext | None = None) -> ProbeResult:
        """What it does at monotonic `now_ns`; with `around`, also what is behind its sleep."""
        wait = self.reader.wait()
        if not around:
            return shallow(self.pid, wait)
        if around.holds and ACTIVITY_OF[wait].rests and self._is_frozen(now_ns):
            wait = Wait.FROZEN
        return self.deepen().probe(now_ns, wait, around)

    def _is_frozen(self, now_ns: int) -> bool:
        """Whether its control group is frozen, as of a few seconds ago if it was not."""
        if self._frozen or now_ns >= self._frozen_due_ns:
            self._frozen_due_ns = now_ns + SHORTLY_NS
            self._frozen = self.reader.is_frozen
        return self._frozen

    def deepen(self) -> DeepProbe:
        """The deep probe, created on demand."""
        if self.deep is None:
            self.deep = DeepProbe(self._proc, self.pid, self._timeouts)
        return self.deep

    def close_deep(self) -> None:
        """Release what the deep probe keeps open."""
        if self.deep is not None:
            self.deep.close()
            self.deep = None
        self._runnable = None

    def runnable(self, now_ns: int) -> tuple[int, int] | None:
        """Time that its first thread was runnable, and out of how much, since the last call.

        With a CPU or without: exactly what samples only estimate. None if that is not known, or
        if deep probes paused.
        """
        counted, before = self.reader.leader_ns(), self._runnable
        self._runnable = (now_ns, sum(counted)) if counted else None
        if before is None or counted is None:
            return None
        return max(sum(counted) - before[1], 0), now_ns - before[0]

    def has_unknown_child(self, known: frozenset[int]) -> bool:
        """Whether its first thread has a living child that is not `known`."""
        return not known.issuperset(parse_numbers(self._children.read() or b"") or ())

    def children(self) -> list[int] | None:
        """The children; None if one thread's list does not tell, or the process has ended."""
        if self.gone or self.reader.last is None or self.reader.last.threads != 1:
            return None
        text = self._children.read()
        if text is None or not self._children.whole:
            return None
        return parse_numbers(text)

    def count(self) -> Counters | None:
        """What it used since the last call; None if it has ended."""
        before, now = self._last, None if self.gone else self._read()
        if now is None:
            self.gone = True
            return None
        self._last = now
        did = less(now, before)
        self.may_hide_io = did.hides_reads or did.hides_writes
        return did

    def _read(self) -> Counters | None:
        stat, last = self.reader.stat(), self._last
        if stat is None:
            return None
        leader_ns, queue_ns = self.reader.leader_ns() or (last.leader_cpu_ns, last.queue_ns)
        io = self.reader.io()
        read, written = io[:2] if io else (None, None)
        if read is None and self.reader.stat() is None:
            # It ended while we read it, which says nothing about our permissions.
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
