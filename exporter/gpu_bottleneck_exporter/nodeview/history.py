"""The last few minutes of a node's counters: turns them into shares and a verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock
from typing import NamedTuple

from gpu_bottleneck_exporter.host.machine import Machine
from gpu_bottleneck_exporter.nodeview.model import KEPT_BUSY, Key, Parts, named, parts_of

ENOUGH = 0.9
"""A GPU with at least this busy share has no bottleneck to name."""
STEPS = 60
"""Of a trend."""


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Seconds since the exporter started."""

    observed: float
    busy: float
    stalls: Mapping[str, float]
    sm_active: float | None = None
    engines: Mapping[str, float] = field(default_factory=dict)
    """Busy seconds of video engines."""


class Moment(NamedTuple):
    """Counters of a node; GPUs that have none are left out."""

    gpus: Mapping[Key, GpuTime]
    machine: Machine = Machine()


class Shares(NamedTuple):
    """What a GPU did in some time. The fields are those of `Gpu`."""

    observed_seconds: float
    busy_ratio: float
    stall_ratios: Parts
    """Largest first, without zeros."""
    sm_active_ratio: float | None = None
    engine_ratios: Parts | None = None
    verdict_seconds: float | None = None
    """How long the verdict has been the same, at least; None without one."""
    trend: tuple[Parts, ...] = ()

    @property
    def verdict(self) -> str | None:
        """What it waited on most, or `KEPT_BUSY`; None if the split is unknown."""
        return KEPT_BUSY if self.busy_ratio >= ENOUGH else next(iter(self.stall_ratios), None)


class Lately(NamedTuple):
    """What a node did in the last `seconds` at most."""

    seconds: float
    gpus: Mapping[Key, Shares]
    cpu_busy: float | None
    """Share of all CPUs."""
    pressure: Parts
    """By resource: share of the time in which some tasks were held up."""


@dataclass(slots=True)
class _Track:
    """The history of one GPU, by monotonic seconds."""

    points: deque[tuple[float, GpuTime]] = field(default_factory=deque)
    verdict: str | None = None
    verdict_since: float = 0.0


class History:
    """Keeps moments; any thread may call it."""

    def __init__(self, window_seconds: float, kept_seconds: float) -> None:
        """Shares are over `window_seconds`, trends over `kept_seconds`."""
        self._window = window_seconds
        self._kept = kept_seconds
        self._lock = Lock()
        self._tracks: dict[Key, _Track] = {}
        self._hosts: deque[tuple[float, Machine]] = deque()
        self._began: float | None = None

    def add(self, at: float, moment: Moment) -> None:
        """Keep the counters at `at` (monotonic seconds), later than those before.

        A GPU without counters is forgotten: its past says nothing about what it does now.
        """
        with self._lock:
            self._began = at if self._began is None else self._began
            self._tracks = {key: self._follow(at, key, now) for key, now in moment.gpus.items()}
            if moment.machine != Machine():
                self._hosts.append((at, moment.machine))
            while self._hosts and at - self._hosts[0][0] > self._window:
                self._hosts.popleft()

    def lately(self, at: float, moment: Moment) -> Lately:
        """What was done until `at`, when the counters were `moment`."""
        with self._lock:
            since, before = self._hosts[0] if self._hosts else (at, moment.machine)
            shares = ((key, self._shares(at, key, now)) for key, now in moment.gpus.items())
            gpus = {key: self._timed(at, key, one) for key, one in shares if one}
            return Lately(
                min(self._window, at - (at if self._began is None else self._began)),
                gpus,
                _cpu_busy(before, moment.machine, at - since),
                _pressure(before, moment.machine, at - since),
            )

    def _follow(self, at: float, key: Key, now: GpuTime) -> _Track:
        track = self._tracks.get(key, _Track())
        if track.points and now.observed < track.points[-1][1].observed:
            track = _Track()  # the GPU was opened anew
        track.points.append((at, now))
        while at - track.points[0][0] > self._kept:
            track.points.popleft()
        self._tracks[key] = track
        shares = self._shares(at, key, now)
        verdict = shares.verdict if shares else None
        if verdict != track.verdict:
            track.verdict, track.verdict_since = verdict, at
        return track

    def _shares(self, at: float, key: Key, now: GpuTime) -> Shares | None:
        if key not in self._tracks:
            return None
        points = self._tracks[key].points
        recent = (counters for then, counters in points if at - then <= self._window)
        # If no point is that recent, from the last one on.
        return between(next(recent, points[-1][1]), now)

    def _timed(self, at: float, key: Key, shares: Shares) -> Shares:
        track, verdict = self._tracks[key], shares.verdict
        lasted = at - track.verdict_since if verdict == track.verdict else 0.0
        trend = tuple(_step(before, now) for (_, before), (_, now) in pairwise(track.points))
        return shares._replace(verdict_seconds=lasted if verdict else None, trend=trend[-STEPS:])


def between(before: GpuTime, now: GpuTime) -> Shares | None:
    """What a GPU did between two moments; None if nothing was observed."""
    observed = now.observed - before.observed
    if observed <= 0:
        return None
    waited = {name: value - before.stalls.get(name, 0.0) for name, value in now.stalls.items()}
    largest_first = sorted(waited.items(), key=lambda one: -one[1])
    sm_active = None
    if now.sm_active is not None and before.sm_active is not None:
        sm_active = _ratio(now.sm_active - before.sm_active, observed)
    stalls = {name: _ratio(seconds, observed) for name, seconds in largest_first if seconds > 0}
    engines = {
        name: _ratio(seconds - before.engines.get(name, seconds), observed)
        for name, seconds in now.engines.items()
    }
    busy = _ratio(now.busy - before.busy, observed)
    return Shares(observed, busy, stalls, sm_active, engines or None)


def _step(before: GpuTime, now: GpuTime) -> Parts:
    found = between(before, now)
    shares = named(parts_of(found.busy_ratio, found.stall_ratios)) if found else {}
    return {name: round(share, 3) for name, share in shares.items()}


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
