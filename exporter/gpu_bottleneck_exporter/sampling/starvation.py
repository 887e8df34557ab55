"""Whether the exporter itself gets enough CPU: what it misses otherwise is nobody else's fault."""

from __future__ import annotations

from gpu_bottleneck_exporter.host.files import MAX_LISTED, FileLimitError, KeptFile, list_names
from gpu_bottleneck_exporter.schedule import OFTEN_NS, Every

_OWN_TASKS = "/proc/self/task"
"""Our own /proc, whatever --path.procfs is: these are the threads of this process."""
_STARVED = 0.25
"""Share of time: a thread that is late by more reads too late to see what happened when."""


def schedstat_of(thread: int) -> KeptFile:
    """What the kernel counts of a thread of this process, from its native id."""
    return KeptFile(f"{_OWN_TASKS}/{thread}/schedstat")


def run_delay_ns(schedstat: KeptFile) -> int | None:
    """Run queue delay of a thread in nanoseconds.

    Counts the time since its start in which it was runnable and did not run, without a wait that
    still lasts. None if the kernel does not report it. Source: the second field of
    /proc/PID/task/TID/schedstat (kernel: Documentation/scheduler/sched-stats.rst).
    """
    try:
        text = schedstat.read()
    except FileLimitError:
        return None
    fields = (text or b"").split()
    return int(fields[1]) if len(fields) > 1 else None


class OwnCpu:
    """Time that the exporter went without a CPU, measured in two ways.

    From the kernel's counters of each thread, and from how late a thread wakes that sleeps for a
    fixed time. The latter works on any kernel, and notices what schedstat does not: a stopped
    process, and an interpreter lock held by a thread that has no CPU.
    """

    def __init__(self, beat_seconds: float) -> None:
        """`beat_seconds`: the interval at which one thread means to call `beat`."""
        self.starved: bool | None = None
        """Whether we were starved in the last ten seconds; None before that."""
        self.waited_seconds: float | None = None
        """Run queue delay of all threads since the start; None if the kernel does not report it."""
        self._beat_ns = int(beat_seconds * 1e9)
        self._beats_ns: int | None = None
        self._late_ns = 0
        self._looking = Every(OFTEN_NS)
        self._looked: tuple[int, int] | None = None
        """Time of the last look, and the sum of delays then."""
        self._delays_ns: dict[str, int] = {}

    def beat(self, now_ns: int) -> None:
        """Note that the thread is awake at monotonic time `now_ns`."""
        self._late_ns, self._beats_ns = self.late_ns(now_ns), now_ns
        if self._looking.is_due(now_ns):
            self._look(now_ns)

    def late_ns(self, now_ns: int) -> int:
        """Sum of the delays of all beats up to `now_ns`, including one that is overdue."""
        if self._beats_ns is None:
            return 0
        return self._late_ns + max(now_ns - self._beats_ns - self._beat_ns, 0)

    def _look(self, now_ns: int) -> None:
        lacked_ns = self._grown_ns()
        if self._looked is not None:
            at_ns, late_ns = self._looked
            # The worst thread counts: any of them may be the one that reads a GPU.
            longest_ns = max(self._late_ns - late_ns, *lacked_ns, 0)
            self.starved = longest_ns > _STARVED * (now_ns - at_ns)
        self._looked = now_ns, self._late_ns

    def _grown_ns(self) -> list[int]:
        """Run queue delay of each thread since the last look."""
        try:
            names, _ = list_names(_OWN_TASKS, MAX_LISTED)
        except (OSError, FileLimitError):
            return []
        delays = {name: run_delay_ns(schedstat_of(int(name))) for name in names}
        now = {name: delay for name, delay in delays.items() if delay is not None}
        grown = [max(delay - self._delays_ns.get(name, 0), 0) for name, delay in now.items()]
        if now:
            self._delays_ns = now
            self.waited_seconds = (self.waited_seconds or 0.0) + sum(grown) / 1e9
        return grown
