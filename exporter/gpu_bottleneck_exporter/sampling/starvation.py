"""Detects that the exporter lacks CPU time."""

from __future__ import annotations

from gpu_bottleneck_exporter.host.files import MAX_LISTED, FileLimitError, KeptFile, list_names
from gpu_bottleneck_exporter.schedule import CADENCE, Every

_OWN_TASKS = "/proc/self/task"
"""This process, independent of --path.procfs."""


def schedstat_of(thread: int) -> KeptFile:
    """Scheduler statistics of a thread by native id."""
    return KeptFile(f"{_OWN_TASKS}/{thread}/schedstat")


def run_delay_ns(schedstat: KeptFile) -> int | None:
    """Run-queue delay of a thread in ns, without the current wait.

    None: not reported. Source: schedstat's second field (Documentation/scheduler/sched-stats.rst).
    """
    try:
        text = schedstat.read()
    except FileLimitError:
        return None
    fields = (text or b"").split()
    return int(fields[1]) if len(fields) > 1 else None


class OwnCpu:
    """Measures the exporter's time without a CPU, by the kernel's counters of each thread.

    Heartbeats also detect a stopped process, or a GIL owner without CPU.
    """

    def __init__(self, beat_seconds: float) -> None:
        self.starved: bool | None = None
        """Whether a thread was starved in the last 10 s."""
        self.waited_seconds: float | None = None
        """Run-queue delay of all threads; None: not reported."""
        self._beat_ns = int(beat_seconds * 1e9)
        self._last_beat_ns: int | None = None
        self._late_ns = 0
        self._check_schedule = Every(CADENCE.slow_ns)
        self._last_check: tuple[int, int] | None = None
        """Time and `_late_ns`."""
        self._delays_ns: dict[str, int] = {}
        """Run-queue delay by thread."""

    def beat(self, now_ns: int) -> None:
        """Record a heartbeat."""
        self._late_ns, self._last_beat_ns = self.late_ns(now_ns), now_ns
        if self._check_schedule.is_due(now_ns):
            self._check(now_ns)

    def late_ns(self, now_ns: int) -> int:
        """Total delay of the beats up to `now_ns`, including an overdue one."""
        if self._last_beat_ns is None:
            return 0
        return self._late_ns + max(now_ns - self._last_beat_ns - self._beat_ns, 0)

    def _check(self, now_ns: int) -> None:
        delays_ns = self._new_delays_ns()
        if self._last_check is not None:
            at_ns, late_ns = self._last_check
            # Delayed for a quarter of the time, a thread samples too late.
            longest_ns = max(self._late_ns - late_ns, *delays_ns, 0)
            self.starved = longest_ns > (now_ns - at_ns) / 4
        self._last_check = now_ns, self._late_ns

    def _new_delays_ns(self) -> list[int]:
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
