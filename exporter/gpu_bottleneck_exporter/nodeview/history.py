"""The last few minutes of a node's counters: turns them into shares and a verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, Key, Parts, parts_of

ENOUGH = 0.9
"""A GPU with at least this busy share has no bottleneck to name."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Seconds since the exporter started."""

    observed: float
    busy: float
    stalls: Mapping[str, float]
    sm_active: float | None = None


class Moment(NamedTuple):
    """Counters of a node; GPUs that have none are left out."""

    gpus: Mapping[Key, GpuTime]
    machine: Machine = Machine()


class Shares(NamedTuple):
    """What a GPU did in `seconds` of observed time."""

    seconds: float
    busy: float
    stalls: Parts
    """Largest first, without zeros."""
    sm_active: float | None = None

    @property
    def parts(self) -> Parts:
        """Busy share and stalls."""
        return parts_of(self.busy, self.stalls)

    @property
    def verdict(self) -> str | None:
        """What it waited on most, or `KEPT_BUSY`; None if the split is unknown."""
        return KEPT_BUSY if self.busy >= ENOUGH else next(iter(self.stalls), None)


class Lately(NamedTuple):
    """What a node did in the last `seconds` at most."""

    seconds: float
    gpus: Mapping[Key, Shares]
    verdict_seconds: Mapping[Key, float]
    """How long the verdict has been the same, at least."""
    cpu_busy: float | None
    """Share of all CPUs."""
    pressure: Parts
    """By resource: share of the time in which some tasks were held up."""


Trends = Mapping[Key, tuple[Shares | None, ...]]
"""Shares per step, oldest first; None for a step without observation."""


class History:
    """Keeps moments; any thread may call it."""

    def __init__(self, window_seconds: float, kept_seconds: float) -> None:
        """Shares are over `window_seconds`, trends over `kept_seconds`."""
        self._window = window_seconds
        self._kept = kept_seconds
        self._lock = Lock()
        self._moments: deque[tuple[float, Moment]] = deque()
        self._verdicts: dict[Key, tuple[str | None, float]] = {}
        """The last verdict, and the first moment with it."""

    def add(self, at: float, moment: Moment) -> None:
        """Keep the counters at `at` (monotonic seconds), later than those before."""
        with self._lock:
            self._moments.append((at, moment))
            while at - self._moments[0][0] > self._kept:
                self._moments.popleft()
            verdicts = {}
            for key, now in moment.gpus.items():
                shares = self._shares(at, key, now)
                verdict = shares.verdict if shares else None
                before, since = self._verdicts.get(key, (verdict, at))
                verdicts[key] = (verdict, since if verdict == before else at)
            self._verdicts = verdicts

    def lately(self, at: float, moment: Moment) -> Lately:
        """What was done until `at`, when the counters were `moment`."""
        with self._lock:
            shares = {key: self._shares(at, key, now) for key, now in moment.gpus.items()}
            gpus = {key: one for key, one in shares.items() if one}
            lasted = {key: self._lasted(at, key, one) for key, one in gpus.items() if one.verdict}
            machines = (
                (then, one.machine)
                for then, one in self._moments
                if at - then <= self._window and one.machine != Machine()
            )
            since, before = next(machines, (at, moment.machine))
            began = self._moments[0][0] if self._moments else at
        return Lately(
            min(self._window, at - began),
            gpus,
            lasted,
            _cpu_busy(before, moment.machine, at - since),
            _pressure(before, moment.machine, at - since),
        )

    def trends(self) -> Trends:
        """The course of the shares, by GPU."""
        with self._lock:
            courses = {key: self._course(key) for key in self._verdicts}
        return {
            key: tuple(between(before, now) for (_, before), (_, now) in pairwise(course))
            for key, course in courses.items()
        }

    def _course(self, key: Key) -> list[tuple[float, GpuTime]]:
        """The counters since the GPU was opened last, oldest first.

        Where it has none, its past says nothing about what it does now.
        """
        course: list[tuple[float, GpuTime]] = []
        for at, moment in reversed(self._moments):
            counters = moment.gpus.get(key)
            if counters is None or (course and counters.observed > course[-1][1].observed):
                break
            course.append((at, counters))
        return course[::-1]

    def _shares(self, at: float, key: Key, now: GpuTime) -> Shares | None:
        course = self._course(key)
        recent = (counters for then, counters in course if at - then <= self._window)
        # If none is that recent, from the last one on.
        before = next(recent, course[-1][1] if course else None)
        return between(before, now) if before else None

    def _lasted(self, at: float, key: Key, shares: Shares) -> float:
        verdict, since = self._verdicts[key]
        return at - since if shares.verdict == verdict else 0.0


def between(before: GpuTime, now: GpuTime) -> Shares | None:
    """What a GPU did between two moments; None if nothing was observed."""
    observed = now.observed - before.observed
    if observed <= 0:
        return None
    parts = {
        name: (value - before.stalls.get(name, 0.0)) / observed
        for name, value in now.stalls.items()
    }
    largest_first = sorted(parts.items(), key=lambda part: -part[1])
    stalls = {name: _ratio(part, 1.0) for name, part in largest_first if part > 0}
    sm_active = None
    if now.sm_active is not None and before.sm_active is not None:
        sm_active = _ratio(now.sm_active - before.sm_active, observed)
    return Shares(observed, _ratio(now.busy - before.busy, observed), stalls, sm_active)


def _cpu_busy(before: Machine, now: Machine, seconds: float) -> float | None:
    if now.cpus is None or now.cpu_busy_seconds is None or before.cpu_busy_seconds is None:
        return None
    spent = now.cpu_busy_seconds - before.cpu_busy_seconds
    return _ratio(spent, seconds * now.cpus) if seconds > 0 else None


def _pressure(before: Machine, now: Machine, seconds: float) -> Parts:
    return {
        resource: _ratio(ns - before.pressure_ns[resource, kind], seconds * 1e9)
        for (resource, kind), ns in now.pressure_ns.items()
        if kind == "some" and (resource, kind) in before.pressure_ns and seconds > 0
    }


def _ratio(part: float, whole: float) -> float:
    """0 to 1: two counters are not read at the same time, and sums are rounded."""
    return min(max(part / whole, 0.0), 1.0)
