"""Whether the exporter itself gets a CPU: what it missed for want of one is nobody else's fault."""

from __future__ import annotations

import threading
from pathlib import Path

from gpu_bottleneck_exporter.host.files import KeptFile, NoRoomError, listed, read

_OWN_TASKS = Path("/proc/self/task")
"""Our own /proc, whatever --path.procfs is: the threads are those of this process."""
_MOST_THREADS = 1024
_STARVED = 0.25
"""Whoever wakes late by a quarter of the time no longer reads what happened when it did."""
_LOOK_NS = 10_000_000_000


def run_delay_ns(thread: int | None = None) -> int | None:
    """For how long a thread of this process, the calling one if not told, has waited for a CPU.

    Nanoseconds since it began, in which it was runnable and did not run; a wait that goes on is not
    in it yet. None where the kernel does not tell. Source: the second figure of
    /proc/PID/task/TID/schedstat (kernel: Documentation/scheduler/sched-stats.rst).
    """
    try:
        return _delay_ns(read(_schedstat(thread or threading.get_native_id())))
    except NoRoomError:
        return None


def _schedstat(thread: int) -> Path:
    return _OWN_TASKS / f"{thread}" / "schedstat"


def _delay_ns(text: str | None) -> int | None:
    fields = (text or "").split()
    return int(fields[1]) if len(fields) > 1 else None


class OwnDelay:
    """`run_delay_ns` of the thread that calls, again and again: a tenth of the cost."""

    def __init__(self) -> None:
        self._file: KeptFile | None = None

    def read_ns(self) -> int | None:
        """Always to be called by the same thread."""
        if self._file is None:
            self._file = KeptFile(_schedstat(threading.get_native_id()))
        try:
            text = self._file.read()
        except NoRoomError:
            return None
        return _delay_ns(text.decode() if text else None)

    def close(self) -> None:
        """Give the descriptor back."""
        if self._file is not None:
            self._file.close()


class OwnCpu:
    """How long the exporter went without a CPU, seen in two ways.

    By the kernel, thread by thread; and by a thread that wakes every so often and sees how late
    it is. The latter needs no kernel that tells, and notices what schedstat does not: a process
    that was stopped, and an interpreter whose lock is held by a thread that has no CPU.
    """

    def __init__(self, beat_seconds: float) -> None:
        """`beat_seconds`: how often `beat` is meant to be called, always by the same thread."""
        self.starved: bool | None = None
        """Whether it came too late in the last ten seconds; None before that."""
        self.waited_seconds: float | None = None
        """Of all threads together since the start; None where the kernel does not tell."""
        self._beat_ns = int(beat_seconds * 1e9)
        self._beats_ns: int | None = None
        self._late_ns = 0
        self._look_due_ns = 0
        self._looked: tuple[int, int] | None = None
        """When, and how late in all it was then."""
        self._delays_ns: dict[str, int] = {}

    def beat(self, now_ns: int) -> None:
        """Say that the thread is awake, at monotonic time `now_ns`."""
        self._late_ns, self._beats_ns = self.late_ns(now_ns), now_ns
        if now_ns >= self._look_due_ns:
            self._look_due_ns = now_ns + _LOOK_NS
            self._look(now_ns)

    def late_ns(self, now_ns: int) -> int:
        """By how much all beats were late up to `now_ns`, at which the next one may be, too."""
        if self._beats_ns is None:
            return 0
        return self._late_ns + max(now_ns - self._beats_ns - self._beat_ns, 0)

    def _look(self, now_ns: int) -> None:
        lacked_ns = self._grown_ns()
        if self._looked is not None:
            at_ns, late_ns = self._looked
            longest_ns = max(self._late_ns - late_ns, *lacked_ns, 0)
            self.starved = longest_ns > _STARVED * (now_ns - at_ns)
        self._looked = now_ns, self._late_ns

    def _grown_ns(self) -> list[int]:
        """For how long each thread waited for a CPU since the last look."""
        try:
            names, _ = listed(_OWN_TASKS, _MOST_THREADS)
        except (OSError, NoRoomError):
            return []
        now = {name: delay for name in names if (delay := run_delay_ns(int(name))) is not None}
        grown = [max(delay - self._delays_ns.get(name, 0), 0) for name, delay in now.items()]
        if now:
            self._delays_ns = now
            self.waited_seconds = (self.waited_seconds or 0.0) + sum(grown) / 1e9
        return grown
