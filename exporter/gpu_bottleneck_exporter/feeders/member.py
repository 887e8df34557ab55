"""One process of a feeder tree, and what it used since it was last read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_bottleneck_exporter.accounting.state import STATE_OF, State
from gpu_bottleneck_exporter.feeders.closer import Closer
from gpu_bottleneck_exporter.feeders.patience import Patience
from gpu_bottleneck_exporter.host.files import KeptFile, numbers
from gpu_bottleneck_exporter.host.process import ProcessReader


@dataclass(slots=True)
class ProcessCounters:
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
    launch_cpu_ns: int = 0
    """Other threads that launch kernels; only closer looks count them."""
    launch_queue_ns: int = 0
    read_chars: int = 0
    """Bytes read in any way but from sockets. 0 without the permission to read them."""
    write_calls: int = 0
    """Of one process: sums leave them out. 0 without the permission to read them."""

    def less(self, before: ProcessCounters) -> ProcessCounters:
        """What was added since `before`; never negative."""
        return ProcessCounters(
            max(self.cpu_ns - before.cpu_ns, 0),
            max(self.system_ns - before.system_ns, 0),
            max(self.leader_cpu_ns - before.leader_cpu_ns, 0),
            max(self.queue_ns - before.queue_ns, 0),
            max(self.major_faults - before.major_faults, 0),
            _grown(self.read_bytes, before.read_bytes),
            _grown(self.written_bytes, before.written_bytes),
            max(self.children_ns - before.children_ns, 0),
            read_chars=max(self.read_chars - before.read_chars, 0),
            write_calls=max(self.write_calls - before.write_calls, 0),
        )

    def add(self, more: ProcessCounters) -> None:
        """Add `more` to these; what could not be read adds nothing."""
        self.cpu_ns += more.cpu_ns
        self.system_ns += more.system_ns
        self.leader_cpu_ns += more.leader_cpu_ns
        self.queue_ns += more.queue_ns
        self.major_faults += more.major_faults
        self.children_ns += more.children_ns
        self.launch_cpu_ns += more.launch_cpu_ns
        self.launch_queue_ns += more.launch_queue_ns
        self.read_chars += more.read_chars
        if more.read_bytes is not None:
            self.read_bytes = (self.read_bytes or 0) + more.read_bytes
        if more.written_bytes is not None:
            self.written_bytes = (self.written_bytes or 0) + more.written_bytes


def _grown(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else max(now - before, 0)


class Member:
    """A process that feeds a GPU, since it was discovered."""

    def __init__(self, proc: Path, pid: int) -> None:
        self.pid = pid
        self.reader = ProcessReader(proc, pid)
        self.closer: Closer | None = None
        """Looks behind the first thread; None until that is needed."""
        self._proc = proc
        self._children = KeptFile(f"{proc}/{pid}/task/{pid}/children")
        self._known_children: bytes | None = None
        self._last: ProcessCounters | None = None
        self._last = self._read()
        self._used_ns = 0

    @property
    def started_ticks(self) -> int | None:
        """Start since boot in clock ticks; None if it ended before it was read."""
        return self.reader.started_ticks

    @property
    def gone(self) -> bool:
        """Whether the process had ended when its counters were last read."""
        return self._last is None

    @property
    def denied(self) -> bool:
        """Whether we lack the permission to read its I/O counters."""
        return self._last is not None and self._last.read_bytes is None

    def state(self) -> State:
        """The state of its first thread now, without closer looks."""
        return STATE_OF[self.reader.wait()]

    def close(self) -> None:
        """Close the descriptors."""
        self.reader.close()
        self._children.close()
        self.look_no_closer()

    def look_closer(self, patience: Patience | None) -> Closer:
        """Its closer look, created on demand; `patience` of its job, see `Closer`."""
        if self.closer is None:
            self.closer = Closer(self._proc, self.pid, patience)
        return self.closer

    def look_no_closer(self) -> None:
        """Release what closer looks keep open."""
        if self.closer is not None:
            self.closer.close()
            self.closer = None

    @property
    def used_ns(self) -> int:
        """CPU time it had used when its counters were last read, ended children's included."""
        return self._last.cpu_ns + self._last.children_ns if self._last else self._used_ns

    def strangers(self, known: Callable[[int], bool]) -> bool:
        """Whether its first thread has a living child that is not `known`."""
        text = self._children.read() or b""
        if text == self._known_children:
            return False
        if not all(known(pid) for pid in numbers(text) or ()):
            return True
        self._known_children = text
        return False

    def children(self) -> list[int] | None:
        """Its children; None if one thread's list does not tell, or the process has ended."""
        if self.gone or self.reader.last is None or self.reader.last.threads != 1:
            return None
        text = self._children.read()
        if text is None or not self._children.whole:
            return None
        return numbers(text)

    def forget_children(self) -> None:
        """Drop the cached children: the known pids changed."""
        self._known_children = None

    def advance(self) -> ProcessCounters | None:
        """What it used since the last call; None if it has ended."""
        before, now = self._last, None if self._last is None else self._read()
        if now is None:
            self._used_ns = self.used_ns
        self._last = now
        return None if before is None or now is None else now.less(before)

    def _read(self) -> ProcessCounters | None:
        stat = self.reader.stat()
        if stat is None:
            return None
        last = self._last or ProcessCounters(read_bytes=None, written_bytes=None)
        leader_ns, queue_ns = self.reader.leader_ns() or (last.leader_cpu_ns, last.queue_ns)
        io = self.reader.io()
        read, written = io[:2] if io else (None, None)
        if read is None and self.reader.stat() is None:
            # It ended while we read it, which says nothing about our permissions.
            read, written = last.read_bytes, last.written_bytes
        return ProcessCounters(
            stat.user_ns + stat.system_ns,
            stat.system_ns,
            leader_ns,
            queue_ns,
            stat.major_faults,
            read,
            written,
            stat.children_ns,
            read_chars=io.read_chars if io else last.read_chars,
            write_calls=io.write_calls if io else last.write_calls,
        )
