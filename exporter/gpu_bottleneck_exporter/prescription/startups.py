"""What a job's start-ups cost a GPU, where the same job starts on it again and again.

A single start-up has no price: nobody knows how long the job will run. Who has started twice within
the hour (a sweep's trials, short jobs, a job that is preempted or crashes) pays it again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpu_bottleneck_exporter.accounting import stall
from gpu_bottleneck_exporter.prescription import model
from gpu_bottleneck_exporter.prescription.advise import PAD
from gpu_bottleneck_exporter.prescription.model import Prescription, Refusal
from gpu_bottleneck_exporter.prescription.observed import Observed
from gpu_bottleneck_exporter.prescription.pauses import Pauses, Time

_MOST_RUNS = 64
_LEAST_STARTS = 2
_LEAST_WORK_SECONDS = 5.0


@dataclass(slots=True)
class _Run:
    """One run of a job, with the time before it since the last one; only held time counts."""

    at: float
    """Monotonic seconds, when it was last seen."""
    mains: frozenset[int]
    before: Time
    found: Time
    """The GPU's, when the process before was last seen, and when this one was found."""
    seconds: float = 0.0
    busy: float = 0.0
    """Seconds."""
    startup: Mapping[str, float] | None = None
    """Seconds by what the GPU waited for; None: it starts."""

    def add(self, part: Observed) -> None:
        self.seconds += part.seconds * (1 - part.stalls.get(stall.UNALLOCATED, 0.0))
        self.busy += part.seconds * part.busy


class Startups:
    """Those of one job on one GPU, within the last hour.

    The process that has a GPU is found up to ten seconds after it has come. Its start-up is the
    longest pause of the GPU between the last sight of the process before it and then.
    """

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._job = ""
        self._mains: frozenset[int] | None = None
        self._seen = Time()
        """The GPU's, when a main was last seen."""
        self._runs: deque[_Run] = deque(maxlen=_MOST_RUNS)
        self._between: list[Observed] = []

    def add(self, at: float, part: Observed, job: str, mains: frozenset[int]) -> None:
        """Take in what was seen until `at`, when `job` had its `mains` on the GPU.

        The part may span a change of the mains. A job that was there before this began to watch
        does not count until it starts again.
        """
        before, self._mains = self._mains, mains
        while self._runs and at - self._runs[0].at > model.REMEMBERED_SECONDS:
            self._runs.popleft()
        if not mains:
            self._between = [*self._between[-_MOST_RUNS:], part]
            return
        if job != self._job or len(mains) > 1:
            self._job = job if len(mains) == 1 else ""
            self._runs.clear()
        if before not in (None, mains) and (not self._runs or mains != self._runs[-1].mains):
            self._begin(at, mains)
        if self._runs:
            self._go_on(self._runs[-1], at, part)
        self._seen, self._between = self._pauses.time.copy(), []

    def _begin(self, at: float, mains: frozenset[int]) -> None:
        run = _Run(at, mains, self._seen, self._pauses.time.copy())
        for part in self._between:
            run.add(part)
        self._runs.append(run)

    def _go_on(self, run: _Run, at: float, part: Observed) -> None:
        run.at = at
        run.add(part)
        if run.startup is not None or not run.busy:
            return
        pauses = self._pauses.between(run.before, run.found)
        ends = [pause.end for pause in pauses if pause.end]
        if len(ends) == len(pauses):
            begins = [max(pause.begin, run.before, key=lambda time: time.ns) for pause in pauses]
            waits = map(_held, begins, ends)
            run.startup = max(waits, key=lambda wait: sum(wait.values()), default={})

    def advice(self) -> Prescription | Refusal:
        """What the GPU would do without them, at most."""
        startups = [run.startup for run in self._runs if run.startup is not None]
        starting = _summed(startups)
        total = sum(run.seconds for run in self._runs)
        worked = sum(run.busy for run in self._runs)
        took = sum(starting.values())
        if len(startups) < _LEAST_STARTS or total - took < _LEAST_WORK_SECONDS or not worked:
            return Refusal("starting")
        share, busy = took / total, worked / total
        predicted = busy / max(1 - share, busy)
        known = {cause: part for cause, part in starting.items() if cause != stall.UNKNOWN}
        return Prescription(
            cause=max(known, key=known.__getitem__, default=stall.UNKNOWN),
            knob=model.STARTUP,
            current=share,
            value=0.0,
            busy=busy,
            predicted=predicted,
            low=busy,
            high=min(predicted + PAD, 1.0),
            at_most=True,
        )


def _held(begin: Time, end: Time) -> dict[str, float]:
    """Seconds between them by what the GPU waited for, while somebody had it."""
    return {
        cause: (ns - begin.stall_ns.get(cause, 0)) / 1e9
        for cause, ns in end.stall_ns.items()
        if cause != stall.UNALLOCATED
    }


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for cause, seconds in part.items():
            total[cause] = total.get(cause, 0.0) + seconds
    return total
