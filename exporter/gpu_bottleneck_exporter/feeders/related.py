"""Processes that feed a GPU without descending from a holder: kin, and strangers that do enough.

`kin` and `strangers` find them.
"""

from __future__ import annotations

from pathlib import Path

from gpu_bottleneck_exporter.accounting.activity import Activity
from gpu_bottleneck_exporter.feeders.process import Process
from gpu_bottleneck_exporter.feeders.timeouts import AnswerTimeouts
from gpu_bottleneck_exporter.schedule import RefreshSchedule

_MOSTLY, _NEARLY_ALWAYS = 0.5, 0.75
"""Shares of the time that the GPU idles."""
_ENOUGH_LOOKS, _WEIGHT = 3, 0.1
"""Until a stranger is judged; of a look, later: what it did ten looks ago hardly counts."""
_PER_PASS = 2
"""As many as workers."""
_LOST_KIN_NS = 5_000_000_000
"""At least so long between two searches for kin, which may come and go many times a second."""


class StrangerRecord:
    """In which part of its looks a stranger was active."""

    def __init__(self) -> None:
        self._active = self._works = 0.0
        self._looks = 0

    def note(self, activity: Activity) -> None:
        """Take in the next look."""
        self._looks += 1
        weight = max(_WEIGHT, 1 / self._looks)
        works = activity.active and activity is not Activity.NETWORK
        self._works += (works - self._works) * weight
        self._active += (activity.active - self._active) * weight

    def counts(self, idle: float) -> bool:
        """Whether it was active for most of the time that the GPU is idle, a share of `idle`.

        As a database or a proxy serves everybody, being connected says little.
        """
        return self._looks >= _ENOUGH_LOOKS and self._active > _MOSTLY * idle

    def works(self, idle: float) -> bool:
        """Whether it ran or read files for nearly all of that time.

        Then its answers are late for that, and not for the network.
        """
        return self.counts(idle) and self._works > _NEARLY_ALWAYS * idle


class Related:
    """Those of one GPU."""

    def __init__(self, proc: Path, timeouts: AnswerTimeouts | None) -> None:
        self.processes: dict[int, Process] = {}
        self._proc = proc
        self._timeouts = timeouts
        self._strangers: dict[int, StrangerRecord] = {}
        """Those of them that are no kin."""
        self._next = 0
        self._search = RefreshSchedule()
        self._searched_ns: int | None = None
        self._holders: frozenset[int] | None = None
        """Of all GPUs, when kin were last sought."""

    @property
    def was_searched(self) -> bool:
        """Whether kin were ever sought."""
        return self._searched_ns is not None

    def is_search_due(self, now_ns: int, holders: frozenset[int]) -> bool:
        """Whether to seek kin; `holders` of all GPUs are none. If so, it is due again later."""
        since_ns = now_ns - (self._searched_ns or 0)
        lost = any(self.processes[pid].gone for pid in self.kin) and since_ns >= _LOST_KIN_NS
        if not self._search.is_due(now_ns, new=holders != self._holders) and not lost:
            return False
        self._searched_ns, self._holders = now_ns, holders
        return True

    def adopt_kin(self, pids: set[int]) -> None:
        """Take over newly found kin; strangers stay."""
        self._adopt(pids, self._strangers.keys() - pids)

    def adopt_strangers(self, pids: set[int]) -> None:
        """Take over newly found strangers."""
        self._adopt(self.kin, pids - self.kin)

    def _adopt(self, kin: set[int], strangers: set[int]) -> None:
        known = self._strangers
        self._strangers = {pid: known.get(pid) or StrangerRecord() for pid in strangers}
        pids = kin | strangers
        for pid in self.processes.keys() - pids:
            self.processes.pop(pid).close()
        for pid in pids - self.processes.keys():
            self.processes[pid] = Process(self._proc, pid, self._timeouts)

    def close(self) -> None:
        """Forget all of them, and close their descriptors."""
        self._adopt(set(), set())
        self._holders = None

    @property
    def kin(self) -> set[int]:
        """Those that are no strangers."""
        return self.processes.keys() - self._strangers.keys()

    def counts(self, process: Process, idle: float) -> bool:
        """Whether one of them is kin, or a stranger that does enough.

        The GPU is idle for a share of `idle` of the time.
        """
        record = self._strangers.get(process.pid)
        return record is None or record.counts(idle)

    def in_the_job(self, idle: float) -> list[Process]:
        """The kin, with strangers whose work, not the network, is what is waited for."""
        records = self._strangers
        processes = self.processes.items()
        return [one for pid, one in processes if pid not in records or records[pid].works(idle)]

    def next(self) -> list[Process]:
        """Two of them, in turn."""
        processes = list(self.processes.values())
        first = self._next
        self._next += min(_PER_PASS, len(processes))
        return [processes[i % len(processes)] for i in range(first, self._next)]

    def note(self, process: Process, activity: Activity) -> None:
        """Note what one of them did, if it is a stranger."""
        if record := self._strangers.get(process.pid):
            record.note(activity)
